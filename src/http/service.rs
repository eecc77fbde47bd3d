//! The service itself: health, readiness, metrics, who asks, providers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use tokio::sync::Mutex;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::extract::{Authenticated, bearer};
use super::wire::service::{Health, Provider, ProviderPage, Readiness, WhoAmI};
use crate::error::{Code, Error};
use crate::model::key::Scope;
use crate::ops::caller::{Credential, identify};
use crate::ops::{self, Berth};
use crate::telemetry;

/// How long one look at the database answers for all who ask.
const READINESS_LASTS: Duration = Duration::from_secs(1);

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
        .routes(routes!(whoami))
        .routes(routes!(providers))
}

/// Is the process alive?
///
/// 200 while it lives; asks nothing else.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "service", security(()),
    responses((status = 200, description = "The process lives.", body = Health)))]
async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// When was looked, and what was seen.
type Look = (Instant, Vec<ops::health::Failing>);

/// The last look at the database, shared by all who ask within a second.
#[derive(Clone, Debug, Default)]
pub struct LastLook(Arc<Mutex<Option<Look>>>);

impl LastLook {
    /// What fails, as of at most a second ago; one look at a time.
    async fn look(&self, berth: &Berth) -> Vec<ops::health::Failing> {
        let mut last = self.0.lock().await;
        if let Some((at, result)) = last.as_ref()
            && at.elapsed() < READINESS_LASTS
        {
            return result.clone();
        }
        let result = ops::health::failing(berth).await;
        *last = Some((Instant::now(), result.clone()));
        result
    }
}

/// Is the service ready?
///
/// 200 only if a database write works and the migrations match. With an operator's key a refusal names the checks that fail.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "service", security(()),
    responses((status = 200, description = "The service can do its work.", body = Readiness)))]
async fn readyz(State(berth): State<Arc<Berth>>, State(last): State<LastLook>, headers: HeaderMap) -> Answer<Json<Readiness>> {
    let failing = last.look(&berth).await;
    if failing.is_empty() {
        return Ok(Json(Readiness { status: "ready" }));
    }
    let mut error = Error::new(Code::StorageUnavailable, "The service cannot do its work now.");
    if operates(&berth, &headers).await {
        error = error.fact("failing", failing);
    }
    Err(error.into())
}

/// Whether an operator asks; nobody has to say who they are here.
async fn operates(berth: &Berth, headers: &HeaderMap) -> bool {
    let Some(bearer) = bearer(headers) else { return false };
    identify(berth, bearer).await.is_ok_and(|caller| caller.require(Scope::Operator).is_ok())
}

/// Metrics
///
/// Prometheus text, for operators. Also served without a key on `BERTH_METRICS_LISTEN`.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "service",
    responses((status = 200, description = "Prometheus text.", body = String, content_type = "text/plain",
        example = "# TYPE berth_http_requests_total counter\nberth_http_requests_total{method=\"GET\",route=\"/healthz\",status=\"200\"} 1\n")))]
async fn metrics(state: State<Arc<Berth>>, Authenticated(caller): Authenticated) -> Answer {
    caller.require(Scope::Operator)?;
    Ok(metrics_text(state).await.into_response())
}

/// The metrics as Prometheus reads them.
pub async fn metrics_text(State(berth): State<Arc<Berth>>) -> impl IntoResponse {
    for gauge in ops::gauges::read(&berth).await {
        telemetry::gauge(gauge.name, gauge.label, gauge.series);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], telemetry::rendered())
}

/// Who am I?
///
/// The organization, credential and scopes of this request.
#[utoipa::path(get, path = "/v1/whoami", operation_id = "whoami", tag = "service",
    responses((status = 200, description = "Who the request was made by.", body = WhoAmI)))]
async fn whoami(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated) -> Answer<Json<WhoAmI>> {
    let organization_id = caller.organization;
    let organization_name = ops::organization::name(&berth, &caller).await?;
    Ok(Json(match caller.credential {
        Credential::Key(key) => WhoAmI {
            organization_id,
            organization_name,
            credential: "api_key",
            api_key_id: Some(key.id),
            name: Some(key.name),
            scopes: key.scopes,
            expires_at: key.expires_at,
            lease_id: None,
        },
        Credential::Token(claims) => WhoAmI {
            organization_id,
            organization_name,
            credential: "lease_token",
            api_key_id: None,
            name: None,
            scopes: Vec::new(),
            expires_at: None,
            lease_id: Some(claims.lease),
        },
    }))
}

/// List providers
///
/// What each can do, how it isolates, and whether it answers now.
#[utoipa::path(get, path = "/v1/providers", operation_id = "provider_list", tag = "providers",
    responses((status = 200, description = "The providers of this deployment.", body = ProviderPage)))]
async fn providers(State(berth): State<Arc<Berth>>, Authenticated(caller): Authenticated) -> Answer<Json<ProviderPage>> {
    caller.require(Scope::Read)?;
    let items = ops::provider::list(&berth).await?.into_iter().map(Provider::from).collect();
    Ok(Json(ProviderPage { items, next_cursor: None }))
}
