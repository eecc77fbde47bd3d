//! The ledger: every instance that was ever asked for, and a person's word on one of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::answer::Answer;
use super::body::Body;
use super::extract::{Authenticated, Id};
use super::query::{Filters, LongPoll, Query};
use super::wire::instance::{Instance, InstancePage, InstanceWord};
use super::{Http, words};
use crate::model::instance::Status;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(retry))
        .routes(routes!(mark_lost))
        .routes(routes!(forget))
}

/// Which instances.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct InstanceFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Words of `status`, separated by commas.
    #[param(example = "pending_cleanup", max_length = 200)]
    status: Option<String>,
    /// Id or name of the environment.
    #[param(max_length = 200)]
    environment: Option<String>,
    /// Exactly this sandbox.
    sandbox_id: Option<Uuid>,
    /// Only those whose teardown needs a person, or only the others.
    quarantined: Option<bool>,
}

/// List instances
///
/// The ledger, newest first: a row is written before the provider is asked, so that nothing can exist that is not in it.
#[utoipa::path(get, path = "/v1/instances", operation_id = "instance_list", tag = "instances", params(InstanceFilters),
    responses((status = 200, description = "A page of instances.", body = InstancePage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<InstanceFilters>,
) -> Answer<Json<InstancePage>> {
    let InstanceFilters { limit, cursor, status, environment, sandbox_id, quarantined } = filters;
    let mut query = Filters { limit, cursor, status, ..Filters::default() }.list(&words::of(Status::ALL, Status::as_str))?;
    (query.environment, query.sandbox_id, query.quarantined) = (environment, sandbox_id, quarantined);
    Ok(Json(ops::instance::list(&berth, &caller, query).await?.into()))
}

/// Look at an instance
///
/// With `wait_seconds` it waits while the instance is being made, started, stopped, saved or ended.
#[utoipa::path(get, path = "/v1/instances/{id}", operation_id = "instance_get", tag = "instances",
    params(("id" = Uuid, Path, description = "The instance."), LongPoll),
    responses((status = 200, description = "The instance.", body = Instance)))]
async fn get(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(poll): Query<LongPoll>,
) -> Answer<Json<Instance>> {
    Ok(Json(Instance::of(&ops::instance::get(&berth, &caller, id, poll.wait()).await?)))
}

/// Retry a teardown
///
/// Now, whatever its back-off or quarantine says. For administrators; the reason becomes an event.
#[utoipa::path(post, path = "/v1/instances/{id}/retry-cleanup", operation_id = "instance_retry_cleanup", tag = "instances",
    params(("id" = Uuid, Path, description = "The instance.")), request_body = InstanceWord,
    responses((status = 200, description = "The instance after the attempt.", body = Instance)),
    extensions(("x-error-codes" = json!(["in_use", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn retry(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(word): Body<InstanceWord>,
) -> Answer<Json<Instance>> {
    Ok(Json(Instance::of(&ops::ledger::retry_cleanup(&berth, &caller, id, &word.reason).await?)))
}

/// Mark an instance lost
///
/// For a provider that cannot tell stopped from gone. Its leases answer `instance_lost` until they are recovered. For administrators;
/// the reason becomes an event.
#[utoipa::path(post, path = "/v1/instances/{id}/mark-lost", operation_id = "instance_mark_lost", tag = "instances",
    params(("id" = Uuid, Path, description = "The instance.")), request_body = InstanceWord,
    responses((status = 200, description = "The lost instance.", body = Instance)),
    extensions(("x-error-codes" = json!([
        "in_use", "transition_in_progress", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn mark_lost(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(word): Body<InstanceWord>,
) -> Answer<Json<Instance>> {
    Ok(Json(Instance::of(&ops::ledger::mark_lost(&berth, &caller, id, &word.reason).await?)))
}

/// Forget an instance
///
/// Ends a teardown that can never be confirmed. Only for a row whose end is decided. For administrators; the reason becomes an event.
#[utoipa::path(post, path = "/v1/instances/{id}/forget", operation_id = "instance_forget", tag = "instances",
    params(("id" = Uuid, Path, description = "The instance.")), request_body = InstanceWord,
    responses((status = 200, description = "The forgotten instance.", body = Instance)),
    extensions(("x-error-codes" = json!(["in_use", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn forget(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(word): Body<InstanceWord>,
) -> Answer<Json<Instance>> {
    Ok(Json(Instance::of(&ops::ledger::forget(&berth, &caller, id, &word.reason).await?)))
}
