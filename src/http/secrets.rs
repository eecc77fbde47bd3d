//! Secrets: put, listed without their values, deleted.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, made};
use super::body::Body;
use super::extract::{Authenticated, Named};
use super::query::{Paging, Query};
use super::wire::secret::{Secret, SecretPage, SecretPut};
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(put, delete))
}

/// Put a secret
///
/// Stores the value as the next version of the secret, sealed. Nothing ever shows it again; a configuration refers to it as
/// `{"secret_ref": {"name": "…"}}` wherever its provider's schema says string, or with a `version` to one that is not the latest.
/// Sandboxes made with another version are replaced at the next acquire.
#[utoipa::path(put, path = "/v1/secrets/{name}", operation_id = "secret_put", tag = "secrets", request_body = SecretPut,
    params(("name" = String, Path, description = "The secret's name: `[a-z0-9][a-z0-9._-]{0,62}`.")),
    responses((status = 201, description = "The secret is new.", body = Secret), (status = 200, description = "It has a new version.", body = Secret)),
    extensions(("x-error-codes" = json!(["quota_exceeded"]))))]
async fn put(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Named(name): Named,
    Body(wanted): Body<SecretPut>,
) -> Answer {
    let (secret, new) = ops::secrets::put(&berth, &caller, &name, &wanted.value).await?;
    let answered = if new { Answered::Created } else { Answered::Existing };
    Ok(made(answered, &format!("/v1/secrets/{}", secret.name), Secret::of(&secret)))
}

/// List secrets
///
/// Newest first, without their values.
#[utoipa::path(get, path = "/v1/secrets", operation_id = "secret_list", tag = "secrets", params(Paging),
    responses((status = 200, description = "A page of secrets.", body = SecretPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(paging): Query<Paging>,
) -> Answer<Json<SecretPage>> {
    Ok(Json(ops::secrets::list(&berth, &caller, paging.list()).await?.into()))
}

/// Delete a secret
///
/// With all its versions. Refused while instances that are not over were made with it. A configuration that still refers to it makes
/// nothing more: `secret_missing`.
#[utoipa::path(delete, path = "/v1/secrets/{name}", operation_id = "secret_delete", tag = "secrets",
    params(("name" = String, Path, description = "The secret's name.")),
    responses((status = 204, description = "The secret is gone.")),
    extensions(("x-error-codes" = json!(["in_use"]))))]
async fn delete(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Named(name): Named) -> Answer<StatusCode> {
    ops::secrets::delete(&berth, &caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
