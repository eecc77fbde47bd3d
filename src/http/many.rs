//! Many at once: each item is answered on its own, and one failure stops nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::body::Body;
use super::extract::{Asked, Authenticated};
use super::wire::many::{LeasesRelease, LeasesReleased, LeasesRenew, LeasesRenewed, SandboxesDestroy, SandboxesDestroyed};
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(release)).routes(routes!(renew)).routes(routes!(destroy))
}

/// Release a holder's leases
///
/// Every live one, each as if it were released alone.
#[utoipa::path(post, path = "/v1/leases/release", operation_id = "lease_release_all", tag = "leases", request_body = LeasesRelease,
    responses((status = 200, description = "What became of each.", body = LeasesReleased)),
    extensions(("x-error-codes" = json!(["idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn release(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    asked: Asked,
    Body(wanted): Body<LeasesRelease>,
) -> Answer<Json<LeasesReleased>> {
    let items = ops::many::release(&berth, &caller, &wanted.holder, &wanted.input()).await?;
    Ok(Json(LeasesReleased::of(items, &asked)))
}

/// Renew several leases
///
/// Each by the time to live it remembers.
#[utoipa::path(post, path = "/v1/leases/renew", operation_id = "lease_renew_many", tag = "leases", request_body = LeasesRenew,
    responses((status = 200, description = "What became of each.", body = LeasesRenewed)),
    extensions(("x-error-codes" = json!(["idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn renew(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    asked: Asked,
    Body(wanted): Body<LeasesRenew>,
) -> Answer<Json<LeasesRenewed>> {
    let items = ops::many::renew(&berth, &caller, wanted.lease_ids).await?;
    Ok(Json(LeasesRenewed::of(items, &asked)))
}

/// Destroy the instances of several sandboxes
///
/// Saves what is unsaved, then ends each instance that no live lease holds. The sandboxes and their checkpoints stay.
#[utoipa::path(post, path = "/v1/sandboxes/destroy", operation_id = "sandbox_destroy", tag = "sandboxes", request_body = SandboxesDestroy,
    responses((status = 200, description = "What became of each.", body = SandboxesDestroyed)),
    extensions(("x-error-codes" = json!(["not_found", "idempotency_key_in_use", "idempotency_key_mismatch"]))))]
async fn destroy(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    asked: Asked,
    Body(wanted): Body<SandboxesDestroy>,
) -> Answer<Json<SandboxesDestroyed>> {
    let items = ops::destroy::destroy(&berth, &caller, &wanted.selection()).await?;
    Ok(Json(SandboxesDestroyed::of(items, &asked)))
}
