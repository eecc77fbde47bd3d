//! For operators: limits, background tasks, maintenance and draining.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::body::Body;
use super::extract::Authenticated;
use super::wire::maintenance::{BackgroundTasks, Draining, Limits, MaintenanceDrain, MaintenanceReport, MaintenanceRun};
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(limits))
        .routes(routes!(background))
        .routes(routes!(reap))
        .routes(routes!(sweep))
        .routes(routes!(collect))
        .routes(routes!(drain))
}

/// List limits
///
/// Each limit the caller meets, with its value, how much of it is used and who set it.
#[utoipa::path(get, path = "/v1/limits", operation_id = "limit_list", tag = "service",
    responses((status = 200, description = "The limits.", body = Limits)))]
async fn limits(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated) -> Answer<Json<Limits>> {
    Ok(Json(ops::limits::list(&berth, &caller).await?.into()))
}

/// List background tasks
///
/// For operators. What the server that answers did last without a request, and when it does it next.
#[utoipa::path(get, path = "/v1/background", operation_id = "background_list", tag = "maintenance",
    responses((status = 200, description = "The tasks.", body = BackgroundTasks)))]
async fn background(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated) -> Answer<Json<BackgroundTasks>> {
    Ok(Json(ops::tasks::list(&berth, &caller).await?.into()))
}

/// Reap
///
/// For operators. Begins the end of what time has ended, or says what it would begin.
#[utoipa::path(post, path = "/v1/maintenance/reap", operation_id = "maintenance_reap", tag = "maintenance", request_body = MaintenanceRun,
    responses((status = 200, description = "What was begun, or would be.", body = MaintenanceReport)))]
async fn reap(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Body(wanted): Body<MaintenanceRun>,
) -> Answer<Json<MaintenanceReport>> {
    let dry_run = wanted.dry_run.unwrap_or(true);
    Ok(Json(MaintenanceReport::of(dry_run, ops::maintenance::reap(&berth, &caller, dry_run).await?)))
}

/// Sweep
///
/// For operators. Compares providers' inventories with the ledger and ends orphans, or says which it would end and what it leaves alone.
#[utoipa::path(post, path = "/v1/maintenance/sweep", operation_id = "maintenance_sweep", tag = "maintenance", request_body = MaintenanceRun,
    responses((status = 200, description = "What was ended, or would be, and what was left alone.", body = MaintenanceReport)))]
async fn sweep(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Body(wanted): Body<MaintenanceRun>,
) -> Answer<Json<MaintenanceReport>> {
    let dry_run = wanted.dry_run.unwrap_or(true);
    Ok(Json(MaintenanceReport::of(dry_run, ops::maintenance::sweep(&berth, &caller, dry_run).await?)))
}

/// Collect
///
/// For operators. Deletes archives that no checkpoint needs any more, or says which it would delete.
#[utoipa::path(post, path = "/v1/maintenance/collect", operation_id = "maintenance_collect", tag = "maintenance",
    request_body = MaintenanceRun,
    responses((status = 200, description = "What was deleted, or would be.", body = MaintenanceReport)))]
async fn collect(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Body(wanted): Body<MaintenanceRun>,
) -> Answer<Json<MaintenanceReport>> {
    let dry_run = wanted.dry_run.unwrap_or(true);
    Ok(Json(MaintenanceReport::of(dry_run, ops::maintenance::collect(&berth, &caller, dry_run).await?)))
}

/// Drain the deployment
///
/// For operators. While it is enabled, acquire and other new work are refused with `draining`; renew, release and DELETE go on.
#[utoipa::path(post, path = "/v1/maintenance/drain", operation_id = "maintenance_drain", tag = "maintenance",
    request_body = MaintenanceDrain, responses((status = 200, description = "Whether new work is refused.", body = Draining)))]
async fn drain(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Body(wanted): Body<MaintenanceDrain>,
) -> Answer<Json<Draining>> {
    Ok(Json(ops::draining::set(&berth, &caller, wanted.enabled, &wanted.reason).await?.into()))
}
