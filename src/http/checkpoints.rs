//! Checkpoints: capture, look, attach.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{Answer, about, fenced, made};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id, Ids, Prefer};
use super::query::{Filters, LongPoll, Query};
use super::wire::checkpoint::{Checkpoint, CheckpointAttach, CheckpointCapture, CheckpointPage};
use super::{Http, words};
use crate::model::checkpoint::Status;
use crate::model::resource::Kind;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(capture))
        .routes(routes!(list))
        .routes(routes!(current))
        .routes(routes!(get))
        .routes(routes!(attach))
}

/// Capture a checkpoint
///
/// Waits for running operations, then saves the workspace and makes the revision the current one. `auto` on a clean sandbox answers 200
/// with the current checkpoint.
#[utoipa::path(post, path = "/v1/leases/{id}/checkpoints", operation_id = "checkpoint_capture", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence, Prefer), request_body = CheckpointCapture,
    responses(
        (status = 201, description = "The workspace was captured.", body = Checkpoint),
        (status = 200, description = "Nothing had changed; this is the current checkpoint.", body = Checkpoint),
        (status = 202, description = "The capture goes on; look again at `Location`.", body = Checkpoint)),
    extensions(("x-error-codes" = json!([
        "read_only_lease", "capability_not_granted", "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation",
        "generation_required", "instance_lost", "instance_not_running", "capture_in_progress", "operations_in_progress",
        "transition_in_progress", "rotation_in_progress", "capture_failed", "archive_limit_exceeded", "idempotency_key_in_use",
        "idempotency_key_mismatch", "provider_error", "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn capture(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    prefer: Prefer,
    Body(wanted): Body<CheckpointCapture>,
) -> Answer {
    let (checkpoint, answered) = ops::capture::capture(&berth, &caller, id, wanted.input(fence, prefer.respond_async())).await?;
    let location = format!("/v1/sandboxes/{}/checkpoints/{}", checkpoint.sandbox_id, checkpoint.id);
    let response = fenced(made(answered, &location, Checkpoint::of(&checkpoint)), Some(checkpoint.generation), fence.epoch);
    Ok(about(response, Kind::Checkpoint, checkpoint.id))
}

/// Which checkpoints.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CheckpointFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Words of `status`, separated by commas.
    #[param(example = "attached", max_length = 200)]
    status: Option<String>,
    /// Exactly this turn.
    #[param(max_length = 200)]
    source_turn_id: Option<String>,
    /// Exactly this tool call.
    #[param(max_length = 200)]
    source_tool_call_id: Option<String>,
}

/// List the checkpoints of a sandbox
///
/// Newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/checkpoints", operation_id = "checkpoint_list", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), CheckpointFilters),
    responses((status = 200, description = "A page of checkpoints.", body = CheckpointPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(filters): Query<CheckpointFilters>,
) -> Answer<Json<CheckpointPage>> {
    let CheckpointFilters { limit, cursor, status, source_turn_id, source_tool_call_id } = filters;
    let mut query = Filters { limit, cursor, status, ..Filters::default() }.list(&words::of(Status::ALL, Status::as_str))?;
    (query.source_turn_id, query.source_tool_call_id) = (source_turn_id, source_tool_call_id);
    Ok(Json(ops::checkpoint::list(&berth, &caller, id, query).await?.into()))
}

/// Look at the current checkpoint
///
/// What the sandbox would be restored from now.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/checkpoints/current", operation_id = "checkpoint_current", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox.")),
    responses((status = 200, description = "The current checkpoint.", body = Checkpoint)),
    extensions(("x-error-codes" = json!(["no_current_checkpoint"]))))]
async fn current(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Checkpoint>> {
    Ok(Json(Checkpoint::of(&ops::checkpoint::current(&berth, &caller, id).await?)))
}

/// Look at a checkpoint
///
/// With `wait_seconds` it waits for the end of a running capture.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/checkpoints/{checkpoint_id}", operation_id = "checkpoint_get", tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), ("checkpoint_id" = uuid::Uuid, Path, description = "The checkpoint."),
        LongPoll),
    responses((status = 200, description = "The checkpoint.", body = Checkpoint)))]
async fn get(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Ids(sandbox, checkpoint): Ids,
    Query(poll): Query<LongPoll>,
) -> Answer<Json<Checkpoint>> {
    Ok(Json(Checkpoint::of(&ops::checkpoint::get(&berth, &caller, sandbox, checkpoint, poll.wait()).await?)))
}

/// Attach a checkpoint
///
/// Makes it the current one. Already current is fine; one that was current before needs `move_back: true`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/checkpoints/{checkpoint_id}/attach", operation_id = "checkpoint_attach",
    tag = "checkpoints",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), ("checkpoint_id" = uuid::Uuid, Path, description = "The checkpoint."),
        Fence),
    request_body = CheckpointAttach,
    responses((status = 200, description = "The checkpoint, current now.", body = Checkpoint)),
    extensions(("x-error-codes" = json!([
        "lease_conflict", "lease_not_active", "lease_taken_over", "stale_generation", "superseded", "capture_in_progress",
        "checkpoint_unavailable", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn attach(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Ids(sandbox, checkpoint): Ids,
    fence: Fence,
    Body(wanted): Body<CheckpointAttach>,
) -> Answer {
    fence.agree(wanted.generation)?;
    let row = ops::attach::attach(&berth, &caller, sandbox, checkpoint, wanted.input()).await?;
    Ok(about(Json(Checkpoint::of(&row)).into_response(), Kind::Checkpoint, row.id))
}
