//! Archives: whole workspaces uploaded and downloaded as raw bytes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ETAG, RANGE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::TryStreamExt;
use serde::Deserialize;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Http;
use super::answer::{Answer, made};
use super::extract::{Authenticated, Id, Ids, refuse_encoding};
use super::problem::Problem;
use super::query::Query;
use super::range::{is_known, of_range, parse_range};
use super::wire::pointer::Archive;
use crate::error::Error;
use crate::ops::Berth;
use crate::ops::upload::{self, Form};
use crate::ops::view::Answered;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(upload)).routes(routes!(download))
}

/// Whose upload it is.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct UploadTarget {
    /// The live writer's lease, when there is one.
    lease_id: Option<Uuid>,
}

/// Upload an archive
///
/// A tar, a tar compressed with zstd, or the receipt of a native snapshot, told by its content. It is checked while it streams in;
/// whatever a restore would refuse is refused here. `Content-Digest: sha-256=:…:` is checked when present. Unless it is recorded, it goes after 24 hours.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/archives", operation_id = "archive_upload", tag = "checkpoints",
    params(("id" = Uuid, Path, description = "The sandbox."), UploadTarget),
    request_body(content = String, content_type = "application/octet-stream", description = "The archive's bytes.",
        example = json!("(a tar)")),
    responses((status = 201, description = "The archive is stored.", body = Archive)),
    extensions(("x-error-codes" = json!(["lease_conflict", "lease_not_active", "lease_taken_over", "archive_unsafe", "archive_invalid", "archive_limit_exceeded", "digest_mismatch", "checkpoint_integrity",
        "unsupported_media_type", "storage_full"]))))]
async fn upload(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(target): Query<UploadTarget>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    refuse_encoding(&parts.headers)?;
    let digest = promised_digest(&parts.headers)?;
    let bytes = Box::pin(StreamReader::new(body.into_data_stream().map_err(std::io::Error::other)));
    let stored = upload::upload(&berth, &caller, id, target.lease_id, bytes, digest).await?;
    Ok(made(Answered::Created, &format!("/v1/sandboxes/{id}/checkpoints"), Archive::from(stored)))
}

/// The SHA-256 of RFC 9530's `Content-Digest`; other algorithms are not ours to check.
fn promised_digest(headers: &HeaderMap) -> Result<Option<[u8; 32]>, Problem> {
    let Some(header) = headers.get("content-digest") else { return Ok(None) };
    let wrong = || Problem::from(Error::invalid("Content-Digest", "must be like sha-256=:BASE64:"));
    let text = header.to_str().map_err(|_| wrong())?;
    let Some(value) = text.split(',').find_map(|member| member.trim().strip_prefix("sha-256=")) else { return Ok(None) };
    let base64 = value.strip_prefix(':').and_then(|v| v.strip_suffix(':')).ok_or_else(wrong)?;
    let bytes = STANDARD.decode(base64).map_err(|_| wrong())?;
    bytes.try_into().map(Some).map_err(|_| wrong())
}

/// In which form.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DownloadForm {
    /// `tar`, which is the default, or `tar.zst`: the stored bytes, of which ranges can be had.
    #[param(example = "tar")]
    format: Option<String>,
}

/// Download an archive
///
/// A portable checkpoint's whole workspace. A download that breaks off was not whole: it never ends cleanly then.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/checkpoints/{checkpoint_id}/archive", operation_id = "archive_download", tag = "checkpoints",
    params(("id" = Uuid, Path, description = "The sandbox."), ("checkpoint_id" = Uuid, Path, description = "The checkpoint."), DownloadForm),
    responses(
        (status = 200, description = "The archive.", body = String, content_type = "application/octet-stream", example = json!("(a tar)")),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream", example = json!("(a part)")),
        (status = 304, description = "The caller has these bytes.")),
    extensions(("x-error-codes" = json!(["checkpoint_unavailable", "checkpoint_integrity", "range_not_satisfiable"]))))]
async fn download(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Ids(sandbox, checkpoint): Ids,
    Query(form): Query<DownloadForm>,
    headers: HeaderMap,
) -> Answer {
    let form = match form.format.as_deref() {
        None | Some("tar") => Form::Tar,
        Some("tar.zst") => Form::TarZst,
        Some(_) => return Err(Error::invalid("?format", "must be tar or tar.zst").into()),
    };
    let row = crate::ops::checkpoint::get(&berth, &caller, sandbox, checkpoint, Duration::ZERO).await?;
    let etag = format!("\"{}{}\"", row.archive_sha256.as_deref().unwrap_or_default(), if form == Form::Tar { "-tar" } else { "" });
    if is_known(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, etag)]).into_response());
    }
    let size = row.size_bytes.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
    let wanted = headers.get(RANGE).filter(|_| form == Form::TarZst);
    let range = wanted.map(|range| parse_range(range, size)).transpose()?.flatten();
    let (_, body) = upload::download(&berth, &caller, sandbox, checkpoint, form, range.clone()).await?;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(body, 64 * 1024)));
    let out = response.headers_mut();
    super::files::raw_headers(out);
    out.extend(HeaderValue::from_str(&etag).ok().map(|etag| (ETAG, etag)));
    if form == Form::TarZst {
        of_range(&mut response, range.as_ref(), size);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_digest_is_read_strictly() {
        let mut headers = HeaderMap::new();
        assert_eq!(promised_digest(&headers).unwrap(), None);
        headers.insert("content-digest", HeaderValue::from_static("sha-256=:AAAA:"));
        assert!(promised_digest(&headers).is_err());
        let good = format!("sha-256=:{}:", STANDARD.encode([7; 32]));
        headers.insert("content-digest", HeaderValue::from_str(&good).unwrap());
        assert_eq!(promised_digest(&headers).unwrap(), Some([7; 32]));
    }
}
