//! Commands inside the sandbox.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{Answer, about, fenced, made};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id, Ids};
use super::query::{Filters, LongPoll, Query};
use super::wire::exec::{Exec, ExecPage, ExecRun};
use super::{Http, words};
use crate::model::operation::Status;
use crate::model::resource::Kind;
use crate::ops::view::{Answered, ExecView};
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(run)).routes(routes!(list)).routes(routes!(get, cancel))
}

/// A command, as every verb on it answers it.
pub fn answer(view: &ExecView, answered: Answered) -> Response {
    let row = &view.operation;
    let location = format!("/v1/leases/{}/execs/{}", row.lease_id, row.id);
    // A command is not a resource that was made: an ended one is 200, whatever it returned.
    let answered = if answered == Answered::Created { Answered::Existing } else { answered };
    about(fenced(made(answered, &location, Exec::of(view)), Some(row.generation), Some(row.epoch)), Kind::Exec, row.id)
}

/// Run a command
///
/// Waits for its end and answers what it wrote. A non-zero exit is a 200. If the client leaves before the answer, the command is
/// killed with its whole tree unless `on_disconnect: keep`.
#[utoipa::path(post, path = "/v1/leases/{id}/exec", operation_id = "exec_run", tag = "exec",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence), request_body = ExecRun,
    responses(
        (status = 200, description = "The command is over.", body = Exec),
        (status = 202, description = "It runs on; look again at `Location`.", body = Exec)),
    extensions(("x-error-codes" = json!([
        "read_only_lease", "capability_not_granted", "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation",
        "generation_required", "instance_lost", "instance_not_running", "capture_in_progress", "transition_in_progress",
        "rotation_in_progress", "resume_failed", "resume_unavailable", "operation_unknown", "invalid_path", "idempotency_key_in_use",
        "idempotency_key_mismatch", "provider_error", "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn run(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Body(wanted): Body<ExecRun>,
) -> Answer {
    // Awaited here and nowhere else: when the client leaves, this future is dropped, and with it the command.
    let (view, answered) = ops::exec::run(&berth, &caller, id, wanted.input(fence)).await?;
    Ok(answer(&view, answered))
}

/// Which execs.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ExecFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Words of `status`, separated by commas.
    #[param(example = "running", max_length = 200)]
    status: Option<String>,
}

/// List the execs of a lease
///
/// Newest first; kept for 24 h.
#[utoipa::path(get, path = "/v1/leases/{id}/execs", operation_id = "exec_list", tag = "exec",
    params(("id" = uuid::Uuid, Path, description = "The lease."), ExecFilters),
    responses((status = 200, description = "A page of execs.", body = ExecPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(filters): Query<ExecFilters>,
) -> Answer<Json<ExecPage>> {
    let ExecFilters { limit, cursor, status } = filters;
    let query = Filters { limit, cursor, status, ..Filters::default() }.list(&words::of(Status::ALL, Status::as_str))?;
    Ok(Json(ops::exec::list(&berth, &caller, id, query).await?.into()))
}

/// Look at an exec
///
/// With what it has written in all, once it is over. With `wait_seconds` it waits for the end of a running one.
#[utoipa::path(get, path = "/v1/leases/{id}/execs/{exec_id}", operation_id = "exec_get", tag = "exec",
    params(("id" = uuid::Uuid, Path, description = "The lease."), ("exec_id" = uuid::Uuid, Path, description = "The exec."),
        LongPoll),
    responses((status = 200, description = "The exec.", body = Exec)),
    extensions(("x-error-codes" = json!(["exec_not_found"]))))]
async fn get(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Ids(lease, exec): Ids,
    Query(poll): Query<LongPoll>,
) -> Answer {
    let view = ops::exec::get(&berth, &caller, lease, exec, poll.wait()).await?;
    Ok(answer(&view, Answered::Existing))
}

/// Cancel an exec
///
/// Kills the command with its whole tree and answers when it is dead; one that is over stays as it is.
#[utoipa::path(delete, path = "/v1/leases/{id}/execs/{exec_id}", operation_id = "exec_cancel", tag = "exec",
    params(("id" = uuid::Uuid, Path, description = "The lease."), ("exec_id" = uuid::Uuid, Path, description = "The exec.")),
    responses((status = 200, description = "The exec as it ended.", body = Exec)),
    extensions(("x-error-codes" = json!([
        "exec_not_found", "read_only_lease", "lease_not_active", "lease_taken_over", "stale_generation", "instance_lost",
        "provider_error", "provider_unavailable", "provider_timeout"
    ]))))]
async fn cancel(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Ids(lease, exec): Ids) -> Answer {
    let view = ops::exec::cancel(&berth, &caller, lease, exec).await?;
    Ok(answer(&view, Answered::Existing))
}
