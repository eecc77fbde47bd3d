//! Plugins: registered, listed, let go.

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
use super::wire::plugin::{Plugin, PluginPage, PluginRegister};
use crate::model::resource::Kind;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(register, list)).routes(routes!(get, delete))
}

/// Register a plugin
///
/// A plugin makes sandboxes for environments of the provider `plugin`, in any language, behind a URL that speaks JSON-RPC. Its worker
/// must answer a whole handshake now. The URL is https, or on the server's own machine; private networks only where the operator
/// allows the host.
#[utoipa::path(post, path = "/v1/plugins", operation_id = "plugin_register", tag = "plugins", request_body = PluginRegister,
    responses((status = 201, description = "The plugin is registered.", body = Plugin)),
    extensions(("x-error-codes" = json!(["name_taken", "config_invalid", "destination_not_allowed", "secret_missing"]))))]
async fn register(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Body(wanted): Body<PluginRegister>) -> Answer {
    let plugin = ops::plugins::register(&berth, &caller, wanted.input()).await?;
    let id = plugin.id;
    Ok(about(made(Answered::Created, &format!("/v1/plugins/{id}"), Plugin::of(&plugin)), Kind::Plugin, id))
}

/// List plugins
///
/// Newest first.
#[utoipa::path(get, path = "/v1/plugins", operation_id = "plugin_list", tag = "plugins", params(Paging),
    responses((status = 200, description = "A page of plugins.", body = PluginPage)))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(paging): Query<Paging>,
) -> Answer<Json<PluginPage>> {
    Ok(Json(ops::plugins::list(&berth, &caller, paging.list()).await?.into()))
}

/// Get a plugin
///
/// As its worker said last of itself.
#[utoipa::path(get, path = "/v1/plugins/{id}", operation_id = "plugin_get", tag = "plugins",
    params(("id" = uuid::Uuid, Path, description = "The plugin.")),
    responses((status = 200, description = "The plugin.", body = Plugin)))]
async fn get(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<Json<Plugin>> {
    Ok(Json(Plugin::of(&ops::plugins::get(&berth, &caller, id).await?)))
}

/// Delete a plugin
///
/// Refused while instances that are not over were made with it.
#[utoipa::path(delete, path = "/v1/plugins/{id}", operation_id = "plugin_delete", tag = "plugins",
    params(("id" = uuid::Uuid, Path, description = "The plugin.")),
    responses((status = 204, description = "The plugin is gone.")),
    extensions(("x-error-codes" = json!(["in_use"]))))]
async fn delete(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated, Id(id): Id) -> Answer<StatusCode> {
    ops::plugins::delete(&berth, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
