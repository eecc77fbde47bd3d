//! Files inside the sandbox: raw bytes, streamed; names relative to the workspace or absolute inside the sandbox.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::Body as RawBody;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, RANGE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, about, fenced};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id, refuse_encoding};
use super::problem::Problem;
use super::query::Query;
use super::range::{is_known, of_range, parse_range};
use super::wire::file::{DirectoryMake, FileChanged, FileEntry, FileMove, FileWritten, octal};
use crate::error::Code;
use crate::model::resource::Kind;
use crate::ops::caller::{Caller, Credential};
use crate::ops::view::FileBody;
use crate::ops::{self, Berth};

/// The permission bits of a file that is answered.
const BERTH_FILE_MODE: HeaderName = HeaderName::from_static("berth-file-mode");
/// Bytes of a file that are read at a time.
const CHUNK: usize = 64 * 1024;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(read, write, remove)).routes(routes!(stat)).routes(routes!(make_directory)).routes(routes!(rename))
}

/// The fence of an answer to a write: what was carried is what is current, or the write would have been refused.
fn fence_of(caller: &Caller, fence: Fence) -> (Option<i64>, Option<i64>) {
    match &caller.credential {
        Credential::Token(claims) => (Some(claims.generation), Some(claims.epoch)),
        Credential::Key(_) => (fence.generation, fence.epoch),
    }
}

/// The answer to a change.
pub(super) fn changed(caller: &Caller, fence: Fence, workspace_seq: i64) -> Response {
    let (generation, epoch) = fence_of(caller, fence);
    let response = fenced(Json(FileChanged { workspace_seq }).into_response(), generation, epoch);
    match caller.named {
        Some(id) => about(response, Kind::File, id),
        None => response,
    }
}

/// Which file.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FilePath {
    /// Relative to the workspace, or absolute inside the sandbox.
    #[param(min_length = 1, max_length = 4096, example = "src/main.rs")]
    path: String,
}

/// Read a file
///
/// Its raw bytes, streamed, or one range of them. Links are followed inside the sandbox only.
#[utoipa::path(get, path = "/v1/leases/{id}/files", operation_id = "file_read", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), FilePath),
    responses((status = 200, description = "The file's bytes.", body = String, content_type = "application/octet-stream",
        headers(("Berth-File-Mode" = String, description = "Permission bits in octal.")), example = json!("hello\n")),
        (status = 206, description = "The range.", body = String, content_type = "application/octet-stream", example = json!("hell")),
        (status = 304, description = "The caller has these bytes.")),
    extensions(("x-error-codes" = json!([
        "range_not_satisfiable", "invalid_path", "file_not_found", "is_a_directory", "not_a_directory", "lease_not_active", "lease_expired", "lease_taken_over",
        "instance_lost", "instance_not_running", "transition_in_progress", "resume_failed", "provider_error", "provider_unavailable",
        "provider_timeout"
    ]))))]
async fn read(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(file): Query<FilePath>,
    headers: HeaderMap,
) -> Answer {
    let file = ops::files::read(&berth, &caller, id, &file.path).await?;
    let etag = file.modified_at.map(|at| format!("W/\"{:x}-{:x}-{:o}\"", file.size, at.0, file.mode));
    if let Some(etag) = etag.as_ref().filter(|etag| is_known(&headers, etag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, etag)]).into_response());
    }
    let range = headers.get(RANGE).map(|range| parse_range(range, file.size)).transpose()?.flatten();
    let mut response = raw(file, range).await?;
    response.headers_mut().extend(etag.and_then(|etag| HeaderValue::from_str(&etag).ok()).map(|etag| (ETAG, etag)));
    Ok(response)
}

/// Workspace bytes are a stranger's: a browser must neither run nor keep nor guess them.
pub(super) fn raw_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
}

async fn raw(mut file: FileBody, range: Option<Range<u64>>) -> Result<Response, Problem> {
    let (start, end) = range.as_ref().map_or((0, file.size), |range| (range.start, range.end));
    let broke = |_| Problem::new(Code::ProviderError, "The file's bytes broke off before the range.");
    let skipped = tokio::io::copy(&mut (&mut file.body).take(start), &mut tokio::io::sink()).await.map_err(broke)?;
    if skipped < start {
        return Err(Problem::new(Code::ProviderError, "The file became shorter while it was read."));
    }
    let bytes = ReaderStream::with_capacity(file.body.take(end - start), CHUNK);
    let mut response = RawBody::from_stream(bytes).into_response();
    raw_headers(response.headers_mut());
    of_range(&mut response, range.as_ref(), file.size);
    if let Ok(mode) = HeaderValue::from_str(&octal(file.mode)) {
        response.headers_mut().insert(BERTH_FILE_MODE, mode);
    }
    Ok(response)
}

/// Where a file goes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FileTarget {
    /// Relative to the workspace, or absolute inside the sandbox.
    #[param(min_length = 1, max_length = 4096, example = "src/main.rs")]
    path: String,
    /// Permission bits in octal; 0644 for a new file and unchanged for an existing one when absent.
    #[param(pattern = "^0?[0-7]{3,4}$", example = "0644")]
    mode: Option<String>,
    /// Make missing parent directories; true when absent.
    parents: Option<bool>,
}

/// Write a file
///
/// The request's body, streamed, becomes the file's content; atomically where the provider can.
#[utoipa::path(put, path = "/v1/leases/{id}/files", operation_id = "file_write", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence, FileTarget),
    request_body(content = String, content_type = "application/octet-stream", description = "The bytes.", example = json!("hello\n")),
    responses(
        (status = 201, description = "The file is new.", body = FileWritten),
        (status = 200, description = "The file has the new content.", body = FileWritten)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "file_not_found", "is_a_directory", "not_a_directory", "read_only_lease", "lease_not_active", "lease_expired",
        "lease_taken_over", "stale_generation", "generation_required", "instance_lost", "instance_not_running", "capture_in_progress",
        "transition_in_progress", "rotation_in_progress", "resume_failed", "unsupported_media_type", "provider_error",
        "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn write(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Query(target): Query<FileTarget>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    refuse_encoding(&parts.headers)?;
    let bytes = Box::pin(StreamReader::new(body.into_data_stream().map_err(std::io::Error::other)));
    let mode = target.mode.as_deref().and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let parents = target.parents.unwrap_or(true);
    let put = ops::files::write(&berth, &caller, id, fence.carried(), &target.path, bytes, mode, parents).await?;
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    let written = FileWritten { created: put.created, workspace_seq: put.workspace_seq };
    let (generation, epoch) = fence_of(&caller, fence);
    Ok(fenced((status, Json(written)).into_response(), generation, epoch))
}

/// What is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct FileRemoval {
    /// Relative to the workspace, or absolute inside the sandbox.
    #[param(min_length = 1, max_length = 4096, example = "build")]
    path: String,
    /// Remove a directory with everything in it.
    recursive: Option<bool>,
}

/// Remove a file
///
/// A file, a link or an empty directory; a whole tree with `recursive`.
#[utoipa::path(delete, path = "/v1/leases/{id}/files", operation_id = "file_remove", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence, FileRemoval),
    responses((status = 200, description = "It is gone.", body = FileChanged)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "file_not_found", "not_a_directory", "directory_not_empty", "read_only_lease", "lease_not_active",
        "lease_expired", "lease_taken_over", "stale_generation", "generation_required", "instance_lost", "instance_not_running",
        "capture_in_progress", "transition_in_progress", "rotation_in_progress", "resume_failed", "provider_error",
        "provider_unavailable", "provider_timeout"
    ]))))]
async fn remove(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Query(what): Query<FileRemoval>,
) -> Answer {
    let recursive = what.recursive.unwrap_or(false);
    let seq = ops::files::remove(&berth, &caller, id, fence.carried(), &what.path, recursive).await?;
    Ok(changed(&caller, fence, seq))
}

/// Look at a file
///
/// What is at a path; a final link is not followed.
#[utoipa::path(get, path = "/v1/leases/{id}/files/stat", operation_id = "file_stat", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), FilePath),
    responses((status = 200, description = "The entry.", body = FileEntry)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "file_not_found", "not_a_directory", "lease_not_active", "lease_expired", "lease_taken_over", "instance_lost",
        "instance_not_running", "transition_in_progress", "resume_failed", "provider_error", "provider_unavailable", "provider_timeout"
    ]))))]
async fn stat(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(file): Query<FilePath>,
) -> Answer<Json<FileEntry>> {
    Ok(Json(ops::files::stat(&berth, &caller, id, &file.path).await?.into()))
}

/// Make a directory
///
/// With its parents; an existing directory is fine.
#[utoipa::path(post, path = "/v1/leases/{id}/files/mkdir", operation_id = "file_mkdir", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence), request_body = DirectoryMake,
    responses((status = 200, description = "The directory is there.", body = FileChanged)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "not_a_directory", "file_exists", "read_only_lease", "lease_not_active", "lease_expired", "lease_taken_over",
        "stale_generation", "generation_required", "instance_lost", "instance_not_running", "capture_in_progress",
        "transition_in_progress", "rotation_in_progress", "resume_failed", "provider_error", "provider_unavailable", "provider_timeout",
        "storage_full", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn make_directory(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Body(wanted): Body<DirectoryMake>,
) -> Answer {
    let seq = ops::files::make_directory(&berth, &caller, id, fence.carried(), &wanted.path).await?;
    Ok(changed(&caller, fence, seq))
}

/// Move a file
///
/// Renames inside the sandbox; refuses to replace anything unless `overwrite`.
#[utoipa::path(post, path = "/v1/leases/{id}/files/move", operation_id = "file_move", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence), request_body = FileMove,
    responses((status = 200, description = "It was moved.", body = FileChanged)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "file_not_found", "file_exists", "is_a_directory", "not_a_directory", "directory_not_empty", "read_only_lease",
        "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation", "generation_required", "instance_lost",
        "instance_not_running", "capture_in_progress", "transition_in_progress", "rotation_in_progress", "resume_failed",
        "provider_error", "provider_unavailable", "provider_timeout", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn rename(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Body(wanted): Body<FileMove>,
) -> Answer {
    let overwrite = wanted.overwrite.unwrap_or(false);
    let seq = ops::files::rename(&berth, &caller, id, fence.carried(), &wanted.from, &wanted.to, overwrite).await?;
    Ok(changed(&caller, fence, seq))
}
