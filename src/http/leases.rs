//! Leases: acquire, look, renew, release, recover, resume, explain.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::answer::{self, Answer, fenced};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id, Prefer};
use super::query::{Filters, LongPoll, Query};
use super::wire::asked::{LeaseAcquire, LeaseRecover, LeaseRelease, LeaseRenew, LeaseResume, waiting};
use super::wire::explain::Explanation;
use super::wire::lease::{Lease, LeasePage};
use super::{Http, words};
use crate::model::lease::Status;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(acquire, list))
        .routes(routes!(get, delete))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(recover))
        .routes(routes!(resume))
        .routes(routes!(explain))
}

/// Acquire a lease
///
/// Gives a holder a sandbox to write in: its own live lease if it has one, the scope's running or stopped sandbox if there is one,
/// else a new one, with the current checkpoint's content put back. Answers when the sandbox is ready, or with 202 after the
/// provision wait.
#[utoipa::path(post, path = "/v1/leases", operation_id = "lease_acquire", tag = "leases", params(Prefer), request_body = LeaseAcquire,
    responses(
        (status = 201, description = "The lease is new and active.", body = Lease),
        (status = 200, description = "The holder had this lease already.", body = Lease),
        (status = 202, description = "The sandbox is being made ready; look again at `Location`.", body = Lease)),
    extensions(("x-error-codes" = json!([
        "lease_conflict", "lease_taken_over", "transition_in_progress", "capture_in_progress", "operations_in_progress",
        "configuration_conflict", "capture_failed", "checkpoint_integrity", "checkpoint_unavailable", "checkpoint_required",
        "environment_archived", "instance_not_running", "resume_failed", "resume_unavailable", "provider_expiry_unattested",
        "idempotency_key_in_use", "idempotency_key_mismatch", "config_invalid", "secret_missing", "capability_not_granted", "not_found", "quota_exceeded",
        "orphan_unrecorded", "provider_error", "image_unavailable", "provider_unavailable", "provider_timeout", "draining", "storage_full"
    ]))))]
async fn acquire(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    prefer: Prefer,
    Body(wanted): Body<LeaseAcquire>,
) -> Answer {
    let (view, answered) = ops::acquire::acquire(&berth, &caller, wanted.input(prefer.respond_async())).await?;
    Ok(answer::lease(&view, answered))
}

/// Which leases.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct LeaseFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Words of `status`, separated by commas.
    #[param(example = "pending,active", max_length = 200)]
    status: Option<String>,
    /// Id or name of the environment.
    #[param(max_length = 200)]
    environment: Option<String>,
    /// Exactly this holder.
    #[param(max_length = 200)]
    holder: Option<String>,
    /// Exactly this sandbox.
    sandbox_id: Option<Uuid>,
    /// `key:value` of the scope; may be repeated, all must hold.
    scope: Option<Vec<String>>,
    /// `key:value` of the metadata; may be repeated, all must hold.
    metadata: Option<Vec<String>>,
}

/// List leases
///
/// Newest first.
#[utoipa::path(get, path = "/v1/leases", operation_id = "lease_list", tag = "leases", params(LeaseFilters),
    responses((status = 200, description = "A page of leases.", body = LeasePage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<LeaseFilters>,
) -> Answer<Json<LeasePage>> {
    let LeaseFilters { limit, cursor, status, environment, holder, sandbox_id, scope, metadata } = filters;
    let mut query = Filters { limit, cursor, status, scope, metadata }.list(&words::of(Status::ALL, Status::as_str))?;
    (query.environment, query.holder, query.sandbox_id) = (environment, holder, sandbox_id);
    Ok(Json(ops::lease::list(&berth, &caller, query).await?.into()))
}

/// Look at a lease
///
/// Never answers a token. With `wait_seconds` it waits for a pending lease to become something else.
#[utoipa::path(get, path = "/v1/leases/{id}", operation_id = "lease_get", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease."), LongPoll), responses((status = 200, description = "The lease.", body = Lease)))]
async fn get(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id, Query(poll): Query<LongPoll>) -> Answer {
    let view = ops::lease::get(&berth, &caller, id, poll.wait()).await?;
    Ok(answer::lease(&view, Answered::Existing))
}

/// Renew a lease
///
/// Moves `expires_at` to `ttl_seconds` from now; it never shortens unless `exact`. Hands out the present token.
#[utoipa::path(post, path = "/v1/leases/{id}/renew", operation_id = "lease_renew", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease.")), request_body = LeaseRenew,
    responses((status = 200, description = "The lease with the granted `expires_at`.", body = Lease)),
    extensions(("x-error-codes" = json!(["lease_not_active", "lease_expired", "lease_taken_over", "transition_in_progress"]))))]
async fn renew(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(wanted): Body<LeaseRenew>,
) -> Answer {
    let view = ops::renew::renew(&berth, &caller, id, wanted.input()).await?;
    Ok(answer::lease(&view, Answered::Existing))
}

/// Release a lease
///
/// Saves the workspace as the checkpoint policy says, then keeps, stops or destroys the instance. A repeated release answers the same end.
#[utoipa::path(post, path = "/v1/leases/{id}/release", operation_id = "lease_release", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease."), Prefer), request_body = LeaseRelease,
    responses(
        (status = 200, description = "The lease has ended.", body = Lease),
        (status = 202, description = "The teardown it requires is not confirmed yet.", body = Lease)),
    extensions(("x-error-codes" = json!([
        "lease_taken_over", "capture_in_progress", "operations_in_progress", "transition_in_progress", "rotation_in_progress",
        "capture_failed", "checkpoint_required", "capability_not_granted", "provider_error", "provider_unavailable", "provider_timeout",
        "storage_full", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn release(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    prefer: Prefer,
    Body(wanted): Body<LeaseRelease>,
) -> Answer {
    let (view, answered) = ops::release::release(&berth, &caller, id, wanted.input(prefer.respond_async())).await?;
    Ok(answer::lease(&view, answered))
}

/// How a lease is deleted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct LeaseDelete {
    /// Consent to lose what is not saved.
    discard_workspace: Option<bool>,
}

/// Delete a lease
///
/// Releases it and destroys its instance, from whatever status. Not with a lease token.
#[utoipa::path(delete, path = "/v1/leases/{id}", operation_id = "lease_delete", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease."), LeaseDelete),
    responses(
        (status = 204, description = "The provider confirmed that the instance is gone."),
        (status = 202, description = "The teardown is not confirmed yet.", body = Lease)),
    extensions(("x-error-codes" = json!([
        "operations_in_progress", "capture_in_progress", "transition_in_progress", "capture_failed", "checkpoint_required",
        "provider_error", "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn delete(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(how): Query<LeaseDelete>,
) -> Answer {
    let (view, answered) = ops::release::delete(&berth, &caller, id, how.discard_workspace.unwrap_or(false)).await?;
    Ok(match answered {
        Answered::Pending => answer::lease(&view, answered),
        Answered::Existing | Answered::Created => gone(view.lease.generation, view.lease.epoch),
    })
}

fn gone(generation: i64, epoch: i64) -> Response {
    fenced(StatusCode::NO_CONTENT.into_response(), Some(generation), Some(epoch))
}

/// Recover a lease
///
/// After `instance_lost`: makes a new instance, puts the checkpoint back and goes on under the same lease. Where there is nothing to
/// recover it answers the lease as it is.
#[utoipa::path(post, path = "/v1/leases/{id}/recover", operation_id = "lease_recover", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease."), Fence, Prefer), request_body = LeaseRecover,
    responses(
        (status = 200, description = "The lease is active.", body = Lease),
        (status = 201, description = "The lease is active again, with a new instance.", body = Lease),
        (status = 202, description = "The new instance is being made ready.", body = Lease)),
    extensions(("x-error-codes" = json!([
        "read_only_lease", "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation", "generation_required",
        "transition_in_progress", "checkpoint_integrity", "checkpoint_unavailable", "config_invalid", "secret_missing", "quota_exceeded", "orphan_unrecorded",
        "provider_error", "image_unavailable", "provider_unavailable", "provider_timeout", "storage_full", "idempotency_key_in_use",
        "idempotency_key_mismatch"
    ]))))]
async fn recover(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    prefer: Prefer,
    Body(wanted): Body<LeaseRecover>,
) -> Answer {
    let (view, answered) = ops::recover::recover(&berth, &caller, id, wanted.input(fence, prefer.respond_async())).await?;
    Ok(answer::lease(&view, answered))
}

/// Resume a lease
///
/// Starts exactly the stopped instance; never a replacement.
#[utoipa::path(post, path = "/v1/leases/{id}/resume", operation_id = "lease_resume", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease."), Fence, Prefer), request_body = LeaseResume,
    responses(
        (status = 200, description = "The instance runs.", body = Lease),
        (status = 202, description = "The instance is being started.", body = Lease)),
    extensions(("x-error-codes" = json!([
        "read_only_lease", "lease_not_active", "lease_expired", "lease_taken_over", "stale_generation", "generation_required",
        "instance_lost", "transition_in_progress", "resume_failed", "resume_unavailable", "provider_error", "provider_unavailable",
        "provider_timeout", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn resume(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    prefer: Prefer,
    Body(wanted): Body<LeaseResume>,
) -> Answer {
    let wait = waiting(wanted.wait_seconds, prefer.respond_async());
    let (view, answered) = ops::resume::resume(&berth, &caller, id, fence.carried(), wait).await?;
    Ok(answer::lease(&view, answered))
}

/// Explain a lease
///
/// Why it lives, what would end it, when, and what holds that back.
#[utoipa::path(get, path = "/v1/leases/{id}/explain", operation_id = "lease_explain", tag = "leases",
    params(("id" = Uuid, Path, description = "The lease.")),
    responses((status = 200, description = "The explanation.", body = Explanation)))]
async fn explain(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Explanation>> {
    Ok(Json(ops::explain::lease(&berth, &caller, id).await?.into()))
}
