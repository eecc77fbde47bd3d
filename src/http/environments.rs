//! Environments: make, look, change, probe, archive.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, about, made};
use super::body::{Draft, draft};
use super::extract::{Asked, Authenticated, Named};
use super::patch::{IfMatch, Patch, tagged};
use super::query::{Filters, Query};
use super::wire::environment::{Environment, EnvironmentCreate, EnvironmentPage};
use super::wire::environment_patch::{EnvironmentPatch, as_asked};
use super::wire::probe::EnvironmentProbe;
use crate::error::Error;
use crate::model::environment;
use crate::model::resource::Kind;
use crate::ops::input::NewEnvironment;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get, update, delete)).routes(routes!(probe))
}

/// Create an environment
///
/// A named provider configuration with the defaults of its leases. `config` is checked against the provider's schema first.
#[utoipa::path(post, path = "/v1/environments", operation_id = "environment_create", tag = "environments", request_body = EnvironmentCreate,
    responses((status = 201, description = "The environment was made.", body = Environment)),
    extensions(("x-error-codes" = json!([
        "name_taken", "config_invalid", "secret_missing", "idempotency_key_in_use", "idempotency_key_mismatch"
    ]))))]
async fn create(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, draft: Draft<EnvironmentCreate>) -> Answer {
    let input = wish(&berth, draft)?;
    let made_environment = ops::environment::create(&berth, &caller, input).await?;
    let location = format!("/v1/environments/{}", made_environment.id);
    let response = made(Answered::Created, &location, Environment::of(&made_environment));
    Ok(about(tagged(response, made_environment.version), Kind::Environment, made_environment.id))
}

/// What the verb is asked; when the body alone is wrong already, with what the verb would have said: every problem is told at once.
fn wish(berth: &Berth, mut draft: Draft<EnvironmentCreate>) -> Result<NewEnvironment, Error> {
    let input = draft.value.clone().input();
    if draft.errors.is_empty() {
        return Ok(input);
    }
    draft.also(ops::environment::problems(berth, &input));
    Err(Error::invalid_fields(draft.errors))
}

/// Which environments.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct EnvironmentFilters {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    cursor: Option<String>,
    /// `key:value` of the metadata; may be repeated, all must hold.
    metadata: Option<Vec<String>>,
}

/// List environments
///
/// Newest first.
#[utoipa::path(get, path = "/v1/environments", operation_id = "environment_list", tag = "environments", params(EnvironmentFilters),
    responses((status = 200, description = "A page of environments.", body = EnvironmentPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<EnvironmentFilters>,
) -> Answer<Json<EnvironmentPage>> {
    let EnvironmentFilters { limit, cursor, metadata } = filters;
    let query = Filters { limit, cursor, metadata, ..Filters::default() }.list(&[])?;
    Ok(Json(ops::environment::list(&berth, &caller, query).await?.into()))
}

/// Look at an environment
///
/// Its `ETag` is its version, for `If-Match` of a change.
#[utoipa::path(get, path = "/v1/environments/{id}", operation_id = "environment_get", tag = "environments",
    params(("id" = String, Path, description = "Id or name of the environment.")),
    responses((status = 200, description = "The environment.", body = Environment)))]
async fn get(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Named(id): Named) -> Answer {
    Ok(shown(&ops::environment::get(&berth, &caller, &id).await?))
}

fn shown(environment: &environment::Environment) -> Response {
    tagged(Json(Environment::of(environment)).into_response(), environment.version)
}

/// Change an environment
///
/// A merge patch; what comes out is checked as a whole and is the next version. Instances that live go on as they were made; the
/// next acquire of their sandbox sees that the configuration differs.
#[utoipa::path(patch, path = "/v1/environments/{id}", operation_id = "environment_update", tag = "environments",
    params(("id" = String, Path, description = "Id or name of the environment."), IfMatch),
    request_body(content((EnvironmentPatch = "application/merge-patch+json"), (EnvironmentPatch = "application/json"))),
    responses((status = 200, description = "The environment at its next version.", body = Environment)),
    extensions(("x-error-codes" = json!([
        "name_taken", "config_invalid", "secret_missing", "environment_archived", "precondition_failed", "idempotency_key_in_use",
        "idempotency_key_mismatch"
    ]))))]
async fn update(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Named(id): Named,
    if_match: IfMatch,
    patch: Patch,
) -> Answer {
    let change = |present: &environment::Environment| wish(&berth, draft(patch.onto(as_asked(present)))?);
    let changed = ops::environment::update(&berth, &caller, &id, if_match.versions().as_deref(), change).await?;
    Ok(shown(&changed))
}

/// How an environment is deleted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct EnvironmentDelete {
    /// End its leases and destroy its instances first; unsaved work is saved, or what holds it stays.
    destroy: Option<bool>,
}

/// Delete an environment
///
/// Archives it: its name is free, nothing new starts in it, its checkpoints stay readable. Refused while leases or instances of it
/// live, unless `destroy=true` ends them first.
#[utoipa::path(delete, path = "/v1/environments/{id}", operation_id = "environment_delete", tag = "environments",
    params(("id" = String, Path, description = "Id or name of the environment."), EnvironmentDelete),
    responses((status = 204, description = "The environment is archived.")),
    extensions(("x-error-codes" = json!(["environment_in_use"]))))]
async fn delete(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Named(id): Named,
    Query(how): Query<EnvironmentDelete>,
) -> Answer<StatusCode> {
    ops::archive_environment::archive(&berth, &caller, &id, how.destroy.unwrap_or(false)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Probe an environment
///
/// Makes an instance, runs `true` in it and destroys it. A probe that fails is a 200 that says at which step.
#[utoipa::path(post, path = "/v1/environments/{id}/probe", operation_id = "environment_probe", tag = "environments",
    params(("id" = String, Path, description = "Id or name of the environment.")),
    responses((status = 200, description = "How it went.", body = EnvironmentProbe)),
    extensions(("x-error-codes" = json!(["environment_archived", "draining"]))))]
async fn probe(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Named(id): Named,
    asked: Asked,
) -> Answer<Json<EnvironmentProbe>> {
    Ok(Json(EnvironmentProbe::of(ops::probe::probe(&berth, &caller, &id).await?, &asked)))
}
