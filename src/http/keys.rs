//! Organizations and API keys.

use std::sync::Arc;

use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, about, made};
use super::body::Body;
use super::extract::Authenticated;
use super::wire::service::{ApiKeyCreate, ApiKeySecret, Organization, OrganizationCreate};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(create_organization)).routes(routes!(create))
}

/// Create an organization
///
/// For operators.
#[utoipa::path(post, path = "/v1/organizations", operation_id = "organization_create", tag = "keys", request_body = OrganizationCreate,
    responses((status = 201, description = "The organization was made.", body = Organization)),
    extensions(("x-error-codes" = json!(["name_taken", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn create_organization(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Body(wanted): Body<OrganizationCreate>,
) -> Answer {
    let (id, name, created_at) = ops::keys::create_organization(&berth, &caller, &wanted.name).await?;
    let response = made(Answered::Created, &format!("/v1/organizations/{id}"), Organization { id, name, created_at });
    Ok(about(response, Kind::Organization, id))
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
