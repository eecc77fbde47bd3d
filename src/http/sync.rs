//! Whole trees in and out of a live sandbox, and what the sandbox can do.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::TryStreamExt;
use serde::Deserialize;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::extract::{Authenticated, Fence, Id, refuse_encoding};
use super::files::{changed, raw_headers};
use super::query::Query;
use super::wire::file::FileChanged;
use super::wire::sync::{Capability, CapabilityPage};
use crate::ops::sync::{Format, WORKSPACE, WriteMode};
use crate::ops::{self, Berth};

/// Bytes of a tree that are read at a time.
const CHUNK: usize = 64 * 1024;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(sync_in)).routes(routes!(sync_out)).routes(routes!(capabilities))
}

/// Where a tree goes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SyncTarget {
    /// The directory, as in file operations: `.` or left out for the workspace. It is made, with its parents, where it is missing.
    #[param(max_length = 4096, example = ".")]
    path: Option<String>,
    /// `merge`, which is the default, lays the tree over what is there; after `replace` the directory is exactly the tree.
    #[param(pattern = "^(merge|replace)$", example = "merge")]
    mode: Option<String>,
}

/// Put a tree into the workspace
///
/// A tar, plain or compressed with gzip or zstd, told by its content. `merge` lays it over what is there; with `replace` the directory is
/// exactly the tree afterwards, all or nothing. An archive that is refused changes nothing.
#[utoipa::path(post, path = "/v1/leases/{id}/sync/in", operation_id = "sync_in", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence, SyncTarget),
    request_body(content = String, content_type = "application/octet-stream", description = "The tar's bytes.", example = json!("(a tar)")),
    responses((status = 200, description = "The tree is in the workspace.", body = FileChanged)),
    extensions(("x-error-codes" = json!([
        "archive_unsafe", "archive_invalid", "archive_limit_exceeded", "is_a_directory", "invalid_path", "file_exists", "not_a_directory",
        "read_only_lease", "capability_not_granted",
        "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation", "generation_required", "instance_lost",
        "instance_not_running", "capture_in_progress", "transition_in_progress", "rotation_in_progress", "resume_failed",
        "operation_unknown", "unsupported_media_type", "provider_error", "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn sync_in(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Query(target): Query<SyncTarget>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    refuse_encoding(&parts.headers)?;
    let mode = if target.mode.as_deref() == Some("replace") { WriteMode::Replace } else { WriteMode::Merge };
    let bytes = Box::pin(StreamReader::new(body.into_data_stream().map_err(std::io::Error::other)));
    let seq =
        ops::sync::sync_in(&berth, &caller, id, fence.carried(), target.path.unwrap_or_else(|| WORKSPACE.to_owned()), mode, bytes).await?;
    Ok(changed(&caller, fence, seq))
}

/// What is taken out, and how.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SyncSource {
    /// The directory, as in file operations: `.` or left out for the workspace.
    #[param(max_length = 4096, example = ".")]
    path: Option<String>,
    /// `tar`, which is the default, `tar.zst` or `tar.gz`.
    #[param(pattern = "^tar(\\.zst|\\.gz)?$", example = "tar")]
    format: Option<String>,
}

/// Take a tree out of the workspace
///
/// As a tar, plain or compressed, with names relative to the directory. A download that breaks off was not whole: it never ends cleanly then.
#[utoipa::path(get, path = "/v1/leases/{id}/sync/out", operation_id = "sync_out", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), SyncSource),
    responses((status = 200, description = "The tar's bytes.", body = String, content_type = "application/octet-stream",
        example = json!("(a tar)"))),
    extensions(("x-error-codes" = json!([
        "invalid_path", "file_not_found", "not_a_directory", "capability_not_granted", "lease_not_active", "lease_expired",
        "lease_taken_over", "instance_lost", "instance_not_running", "transition_in_progress", "resume_failed", "provider_error", "provider_unavailable", "provider_timeout"
    ]))))]
async fn sync_out(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(source): Query<SyncSource>,
) -> Answer {
    let format = match source.format.as_deref() {
        Some("tar.zst") => Format::TarZst,
        Some("tar.gz") => Format::TarGz,
        _ => Format::Tar,
    };
    let tree = ops::sync::sync_out(&berth, &caller, id, source.path.as_deref().unwrap_or(WORKSPACE), format).await?;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(tree, CHUNK)));
    raw_headers(response.headers_mut());
    Ok(response)
}

/// List the capabilities of a lease
///
/// What its sandbox can do: the nine, in a fixed order.
#[utoipa::path(get, path = "/v1/leases/{id}/capabilities", operation_id = "lease_capabilities", tag = "leases",
    params(("id" = uuid::Uuid, Path, description = "The lease.")),
    responses((status = 200, description = "Each of the nine.", body = CapabilityPage)))]
async fn capabilities(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<CapabilityPage>> {
    let told = ops::sync::capabilities(&berth, &caller, id).await?;
    let items = told.into_iter().map(|(key, granted, reason)| Capability { key, granted, reason }).collect();
    Ok(Json(CapabilityPage { items, next_cursor: None }))
}
