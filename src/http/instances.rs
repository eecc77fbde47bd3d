//! The ledger: every instance that was ever asked for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::answer::Answer;
use super::extract::{Authenticated, Id};
use super::query::{Filters, Query};
use super::wire::instance::{Instance, InstancePage};
use super::{Http, words};
use crate::model::instance::Status;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get))
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
#[utoipa::path(get, path = "/v1/instances/{id}", operation_id = "instance_get", tag = "instances",
    params(("id" = Uuid, Path, description = "The instance.")), responses((status = 200, description = "The instance.", body = Instance)))]
async fn get(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Instance>> {
    Ok(Json(Instance::of(&ops::instance::get(&berth, &caller, id).await?)))
}
