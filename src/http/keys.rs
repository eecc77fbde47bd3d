//! API keys: made, listed, rotated, revoked.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Http;
use super::answer::{Answer, about, made};
use super::body::Body;
use super::extract::{Authenticated, Id};
use super::query::{Paging, Query};
use super::wire::key::{ApiKeyPage, ApiKeyRotate};
use super::wire::service::{ApiKeyCreate, ApiKeySecret};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(rotate)).routes(routes!(revoke))
}

/// Create an API key
///
/// Shows its secret this once. An operator may make one for another organization.
#[utoipa::path(post, path = "/v1/api-keys", operation_id = "api_key_create", tag = "keys", request_body = ApiKeyCreate,
    responses((status = 201, description = "The key was made.", body = ApiKeySecret)),
    extensions(("x-error-codes" = json!([
        "scope_escalation", "name_taken", "not_found", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn create(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Body(wanted): Body<ApiKeyCreate>) -> Answer {
    let ApiKeyCreate { name, scopes, expires_at, organization_id } = wanted;
    let (key, secret) = ops::keys::create(&berth, &caller, &name, scopes, expires_at, organization_id).await?;
    let id = key.id;
    Ok(about(made(Answered::Created, &format!("/v1/api-keys/{id}"), ApiKeySecret::of(key, Some(secret))), Kind::ApiKey, id))
}

/// Which keys.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct KeyFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// Another organization's keys, for operators; the caller's own when absent.
    organization_id: Option<Uuid>,
}

/// List API keys
///
/// Those that work, newest first, without their secrets.
#[utoipa::path(get, path = "/v1/api-keys", operation_id = "api_key_list", tag = "keys", params(KeyFilters),
    responses((status = 200, description = "A page of keys.", body = ApiKeyPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<KeyFilters>,
) -> Answer<Json<ApiKeyPage>> {
    let KeyFilters { limit, cursor, organization_id } = filters;
    Ok(Json(ops::keys::list(&berth, &caller, organization_id, Paging { limit, cursor }.list()).await?.into()))
}

/// Rotate an API key
///
/// Makes a new key with the same name, scopes and end, and shows its secret this once; the old one ends after the overlap.
#[utoipa::path(post, path = "/v1/api-keys/{id}/rotate", operation_id = "api_key_rotate", tag = "keys",
    params(("id" = Uuid, Path, description = "The key.")), request_body = ApiKeyRotate,
    responses((status = 201, description = "The new key.", body = ApiKeySecret)),
    extensions(("x-error-codes" = json!(["scope_escalation", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn rotate(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Body(wanted): Body<ApiKeyRotate>,
) -> Answer {
    let (key, secret) = ops::keys::rotate(&berth, &caller, id, wanted.overlap_seconds).await?;
    let id = key.id;
    Ok(about(made(Answered::Created, &format!("/v1/api-keys/{id}"), ApiKeySecret::of(key, Some(secret))), Kind::ApiKey, id))
}

/// Revoke an API key
///
/// It stops working everywhere within 5 s. The last admin key of an organization stays.
#[utoipa::path(delete, path = "/v1/api-keys/{id}", operation_id = "api_key_revoke", tag = "keys",
    params(("id" = Uuid, Path, description = "The key.")),
    responses((status = 204, description = "The key is revoked.")),
    extensions(("x-error-codes" = json!(["last_admin_key"]))))]
async fn revoke(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<StatusCode> {
    ops::keys::revoke(&berth, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
