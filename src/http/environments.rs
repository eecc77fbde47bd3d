//! Environments: make, look.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::{Answer, about, made};
use super::body::Draft;
use super::extract::{Authenticated, Named};
use super::query::{Filters, Query};
use super::wire::environment::{Environment, EnvironmentCreate, EnvironmentPage};
use crate::error::{Error, FieldError};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get))
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
    let Draft { value, mut errors } = draft;
    if !errors.is_empty() {
        // The verb will not be asked, so the provider's name is looked up here: every problem is told at once.
        errors.extend(unknown_provider(&berth, &value.provider).await?);
        return Err(Error::invalid_fields(errors).into());
    }
    let made_environment = ops::environment::create(&berth, &caller, value.input()).await?;
    let location = format!("/v1/environments/{}", made_environment.id);
    let response = made(Answered::Created, &location, Environment::of(&made_environment));
    Ok(about(response, Kind::Environment, made_environment.id))
}

async fn unknown_provider(berth: &Berth, name: &str) -> Result<Option<FieldError>, Error> {
    let known: Vec<String> = ops::provider::list(berth).await?.into_iter().map(|provider| provider.kind).collect();
    let message = format!("must be one of {}", known.join(", "));
    Ok((!known.iter().any(|kind| kind == name)).then(|| FieldError { pointer: "/provider".to_owned(), message }))
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
#[utoipa::path(get, path = "/v1/environments/{id}", operation_id = "environment_get", tag = "environments",
    params(("id" = String, Path, description = "Id or name of the environment.")),
    responses((status = 200, description = "The environment.", body = Environment)))]
async fn get(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Named(id): Named) -> Answer<Json<Environment>> {
    Ok(Json(Environment::of(&ops::environment::get(&berth, &caller, &id).await?)))
}
