//! The wire: routes and layers. A handler extracts, asks one verb and answers; statuses of failures live in `catalogue` alone.

pub mod answer;
mod archives;
pub mod body;
pub mod catalogue;
mod checkpoints;
pub mod cors;
mod docs;
mod environments;
mod events;
mod exec;
mod exec_stream;
pub mod extract;
mod fence;
mod files;
mod html;
mod idempotency;
mod instances;
mod keys;
pub mod layers;
mod leases;
mod listing;
mod maintenance;
mod many;
pub mod openapi;
mod organizations;
mod patch;
mod plugins;
mod pointer;
pub mod problem;
mod problems;
pub mod query;
mod range;
mod replay;
mod sandboxes;
pub mod schema;
mod secrets;
mod service;
mod sse;
mod sync;
pub mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::ops::Berth;
pub(crate) use wire::words;

/// What handlers share.
#[derive(Clone, FromRef)]
pub struct Http {
    berth: Arc<Berth>,
    last_look: service::LastLook,
}

/// Every route that is in the API description.
fn described() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .merge(leases::routes())
        .merge(many::routes())
        .merge(exec::routes())
        .merge(exec_stream::routes())
        .merge(files::routes())
        .merge(listing::routes())
        .merge(sync::routes())
        .merge(checkpoints::routes())
        .merge(pointer::routes())
        .merge(archives::routes())
        .merge(sandboxes::routes())
        .merge(environments::routes())
        .merge(instances::routes())
        .merge(events::routes())
        .merge(secrets::routes())
        .merge(plugins::routes())
        .merge(keys::routes())
        .merge(organizations::routes())
        .merge(service::routes())
        .merge(maintenance::routes())
        .merge(docs::routes())
        .merge(problems::routes())
}

/// The whole service over HTTP.
pub fn router(berth: Arc<Berth>) -> Router {
    let (routes, _) = described().split_for_parts();
    let routes = routes.layer(from_fn_with_state(Arc::clone(&berth), idempotency::layer));
    let routes = routes.layer(from_fn_with_state(Arc::clone(&berth), fence::layer));
    let routes = routes.layer(from_fn_with_state(Arc::clone(&berth), layers::settle));
    let routes = routes.fallback(layers::route_not_found).method_not_allowed_fallback(layers::method_not_allowed);
    with_layers(routes).with_state(Http { berth, last_look: service::LastLook::default() })
}

/// What every request passes, innermost first: panics become problems, problems get their bodies, everything is observed.
fn with_layers(routes: Router<Http>) -> Router<Http> {
    routes.layer(CatchPanicLayer::custom(layers::panicked)).layer(from_fn(problem::render)).layer(from_fn(layers::observe))
}

/// The metrics listener's one route; it asks for no key because it listens on a private address.
pub fn metrics_router(berth: Arc<Berth>) -> Router {
    Router::new().route("/metrics", get(service::metrics_text)).with_state(berth)
}

#[cfg(test)]
mod tests;
