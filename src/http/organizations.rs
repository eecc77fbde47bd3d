//! Organizations, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, about, made};
use super::body::Body;
use super::extract::{Authenticated, Id};
use super::query::{Paging, Query};
use super::wire::key::OrganizationPage;
use super::wire::service::{Organization, OrganizationCreate};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(delete))
}

/// Create an organization
///
/// For operators.
#[utoipa::path(post, path = "/v1/organizations", operation_id = "organization_create", tag = "keys", request_body = OrganizationCreate,
    responses((status = 201, description = "The organization was made.", body = Organization)),
    extensions(("x-error-codes" = json!(["name_taken", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn create(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Body(wanted): Body<OrganizationCreate>) -> Answer {
    let organization = ops::organization::create(&berth, &caller, &wanted.name).await?;
    let response = made(Answered::Created, &format!("/v1/organizations/{}", organization.id), Organization::of(&organization));
    Ok(about(response, Kind::Organization, organization.id))
}

/// List organizations
///
/// For operators. Newest first.
#[utoipa::path(get, path = "/v1/organizations", operation_id = "organization_list", tag = "keys", params(Paging),
    responses((status = 200, description = "A page of organizations.", body = OrganizationPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(paging): Query<Paging>,
) -> Answer<Json<OrganizationPage>> {
    Ok(Json(ops::organization::list(&berth, &caller, paging.list()).await?.into()))
}

/// Delete an organization
///
/// For operators. Its keys stop working, its environments are archived, its checkpoints are deleted. Refused while it has live
/// leases or instances whose teardown is not confirmed; `default` and the caller's own organization stay.
#[utoipa::path(delete, path = "/v1/organizations/{id}", operation_id = "organization_delete", tag = "keys",
    params(("id" = uuid::Uuid, Path, description = "The organization.")),
    responses((status = 204, description = "The organization is gone.")),
    extensions(("x-error-codes" = json!(["in_use"]))))]
async fn delete(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<StatusCode> {
    ops::organization::delete(&berth, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
