//! The pointer of a sandbox: record, roll back, collect, delete, and put a live lease back.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{self, Answer, about, made};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id, Ids, Prefer};
use super::wire::checkpoint::Checkpoint;
use super::wire::lease::Lease;
use super::wire::pointer::{CheckpointRecord, Collected, LeaseRestore, RolledBack, SandboxCollect, SandboxRollback};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(record))
        .routes(routes!(rollback))
        .routes(routes!(collect))
        .routes(routes!(delete))
        .routes(routes!(restore))
}

/// Record a checkpoint
///
/// Gives a checkpoint that was made elsewhere its row. A portable one needs its archive uploaded under this sandbox first. The same
/// revision again answers 200 with the existing row, whatever has happened since.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/checkpoints", operation_id = "checkpoint_record", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), Fence), request_body = CheckpointRecord,
    responses(
        (status = 201, description = "The checkpoint is recorded.", body = Checkpoint),
        (status = 200, description = "It was recorded already.", body = Checkpoint)),
    extensions(("x-error-codes" = json!(["lease_conflict", "lease_not_active", "lease_taken_over", "stale_generation", "revision_conflict", "checkpoint_unavailable",
        "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn record(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Body(wanted): Body<CheckpointRecord>,
) -> Answer {
    fence.agree(wanted.generation)?;
    let (row, new) = ops::record::record(&berth, &caller, id, wanted.into()).await?;
    let location = format!("/v1/sandboxes/{id}/checkpoints/{}", row.id);
    let response = made(if new { Answered::Created } else { Answered::Existing }, &location, Checkpoint::of(&row));
    Ok(about(response, Kind::Checkpoint, row.id))
}

/// Reject a checkpoint
///
/// Moves the pointer from the rejected checkpoint to the newest other one that was attached, or to none. If the pointer names
/// another one already, nothing happens and the answer says which.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/rollback", operation_id = "sandbox_rollback", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), Fence), request_body = SandboxRollback,
    responses((status = 200, description = "Where the pointer is now.", body = RolledBack)),
    extensions(("x-error-codes" = json!(["lease_conflict", "lease_not_active", "lease_taken_over", "stale_generation", "capture_in_progress", "transition_in_progress",
        "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn rollback(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Body(wanted): Body<SandboxRollback>,
) -> Answer<Json<RolledBack>> {
    fence.agree(wanted.generation)?;
    let (current, moved) = ops::rollback::rollback(&berth, &caller, id, wanted.into()).await?;
    Ok(Json(RolledBack { current: current.as_ref().map(Checkpoint::of), moved }))
}

/// Collect revisions
///
/// Takes revisions that were never attached, or were detached, before the cutoff, oldest first. Never the current one.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/collect", operation_id = "sandbox_collect", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox.")), request_body = SandboxCollect,
    responses((status = 200, description = "What was taken.", body = Collected)),
    extensions(("x-error-codes" = json!(["idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn collect(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(wanted): Body<SandboxCollect>,
) -> Answer<Json<Collected>> {
    Ok(Json(Collected { collected: ops::collect::collect(&berth, &caller, id, wanted.before, wanted.limit).await? }))
}

/// Delete a checkpoint
///
/// Its bytes are deleted in the background once no other checkpoint needs them. The current one cannot be deleted.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/checkpoints/{checkpoint_id}", operation_id = "checkpoint_delete", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), ("checkpoint_id" = uuid::Uuid, Path, description = "The checkpoint.")),
    responses((status = 202, description = "It is gone; its bytes follow.")),
    extensions(("x-error-codes" = json!(["checkpoint_in_use"]))))]
async fn delete(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Ids(sandbox, checkpoint): Ids) -> Answer {
    ops::collect::delete(&berth, &caller, sandbox, checkpoint).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Restore a lease
///
/// Puts the workspace of a live lease back to a checkpoint: a new instance is made and verified first, then it takes the place of
/// the old one at generation + 1. Any failure leaves everything as it was.
#[utoipa::path(post, path = "/v1/leases/{id}/restore", operation_id = "lease_restore", tag = "leases",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence, Prefer), request_body = LeaseRestore,
    responses(
        (status = 200, description = "The lease at its new generation.", body = Lease),
        (status = 202, description = "The restore goes on; look again at `Location`.", body = Lease)),
    extensions(("x-error-codes" = json!(["read_only_lease", "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation", "generation_required", "instance_lost",
        "unsaved_changes", "capture_failed", "capture_in_progress", "operations_in_progress", "transition_in_progress", "checkpoint_integrity", "checkpoint_unavailable", "config_invalid", "secret_missing",
        "provider_error", "provider_unavailable", "provider_timeout", "storage_full", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn restore(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    prefer: Prefer,
    Body(wanted): Body<LeaseRestore>,
) -> Answer {
    let (view, answered) = ops::restore::restore(&berth, &caller, id, wanted.input(fence, prefer.respond_async())).await?;
    Ok(answer::lease(&view, answered))
}
