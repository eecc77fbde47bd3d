//! Logical sandboxes: ensure, look, explain, delete.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{Answer, about, made};
use super::body::Body;
use super::extract::{Authenticated, Id};
use super::query::{Filters, LongPoll, Query};
use super::wire::explain::Explanation;
use super::wire::retention::Retention;
use super::wire::sandbox::{Sandbox, SandboxEnsure, SandboxPage};
use super::{Http, words};
use crate::model::instance::Status;
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(ensure, list)).routes(routes!(get, delete)).routes(routes!(explain)).routes(routes!(retention))
}

/// Ensure a sandbox
///
/// Finds the one sandbox of an environment and scope, or makes its row. Nothing is started.
#[utoipa::path(post, path = "/v1/sandboxes", operation_id = "sandbox_ensure", tag = "sandboxes", request_body = SandboxEnsure,
    responses(
        (status = 201, description = "The sandbox is new.", body = Sandbox),
        (status = 200, description = "It was there.", body = Sandbox)),
    extensions(("x-error-codes" = json!(["environment_archived", "draining", "not_found", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn ensure(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Body(wanted): Body<SandboxEnsure>) -> Answer {
    let (view, new) = ops::sandbox::ensure(&berth, &caller, &wanted.environment, wanted.scope).await?;
    let location = format!("/v1/sandboxes/{}", view.sandbox.id);
    let response = made(if new { Answered::Created } else { Answered::Existing }, &location, Sandbox::of(&view));
    Ok(about(response, Kind::Sandbox, view.sandbox.id))
}

/// Which sandboxes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct SandboxFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Words of the instance's `status`, separated by commas.
    #[param(example = "running,stopped", max_length = 200)]
    status: Option<String>,
    /// Id or name of the environment.
    #[param(max_length = 200)]
    environment: Option<String>,
    /// `key:value` of the scope; may be repeated, all must hold.
    scope: Option<Vec<String>>,
}

/// List sandboxes
///
/// Newest first.
#[utoipa::path(get, path = "/v1/sandboxes", operation_id = "sandbox_list", tag = "sandboxes", params(SandboxFilters),
    responses((status = 200, description = "A page of sandboxes.", body = SandboxPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<SandboxFilters>,
) -> Answer<Json<SandboxPage>> {
    let SandboxFilters { limit, cursor, status, environment, scope } = filters;
    let filters = Filters { limit, cursor, status, scope, ..Filters::default() };
    let mut query = filters.list(&words::of(Status::ALL, Status::as_str))?;
    query.environment = environment;
    Ok(Json(ops::sandbox::list(&berth, &caller, query).await?.into()))
}

/// Look at a sandbox
///
/// With its instance, its current checkpoint and its live leases. With `wait_seconds` it waits while the instance is being made,
/// started, stopped, saved or ended.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", operation_id = "sandbox_get", tag = "sandboxes",
    params(("id" = uuid::Uuid, Path, description = "The sandbox."), LongPoll),
    responses((status = 200, description = "The sandbox.", body = Sandbox)))]
async fn get(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(poll): Query<LongPoll>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(Sandbox::of(&ops::sandbox::get(&berth, &caller, id, poll.wait()).await?)))
}

/// Delete a sandbox
///
/// Ends its instance and deletes its checkpoints: all its work is gone, and its scope is free. Refused while leases on it live.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", operation_id = "sandbox_delete", tag = "sandboxes",
    params(("id" = uuid::Uuid, Path, description = "The sandbox.")),
    responses((status = 204, description = "The sandbox is gone.")),
    extensions(("x-error-codes" = json!(["sandbox_in_use", "transition_in_progress", "provider_unavailable"]))))]
async fn delete(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<StatusCode> {
    ops::delete::delete(&berth, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Explain a sandbox
///
/// Why it lives, what would end it, when, and what holds that back.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/explain", operation_id = "sandbox_explain", tag = "sandboxes",
    params(("id" = uuid::Uuid, Path, description = "The sandbox.")),
    responses((status = 200, description = "The explanation.", body = Explanation)))]
async fn explain(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Explanation>> {
    Ok(Json(ops::explain::sandbox(&berth, &caller, id).await?.into()))
}

/// Ask what retention would do
///
/// Which of the sandbox's checkpoints would leave now, and why each of the others stays. Nothing is changed.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/retention", operation_id = "sandbox_retention", tag = "sandboxes",
    params(("id" = uuid::Uuid, Path, description = "The sandbox.")),
    responses((status = 200, description = "Every checkpoint, newest first.", body = Retention)))]
async fn retention(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Retention>> {
    Ok(Json(ops::retain::dry_run(&berth, &caller, id).await?.into()))
}
