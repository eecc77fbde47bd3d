//! Which web pages may call the API: none unless the operator names their origins.

use std::time::Duration;

use axum::Router;
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, LOCATION, RANGE, RETRY_AFTER,
};
use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::answer::{BERTH_GENERATION, BERTH_LEASE_EPOCH};
use super::idempotency::{IDEMPOTENCY_KEY, IDEMPOTENCY_REPLAYED};
use super::layers::{BERTH_VERSION, X_REQUEST_ID};

/// How long a browser need not ask again.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Lets pages of these origins call. No cookie and no other credential of the browser's own is ever used.
pub fn allow(routes: Router, origins: &[String]) -> Router {
    if origins.is_empty() {
        return routes;
    }
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    routes.layer(
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
            .allow_headers([
                ACCEPT,
                AUTHORIZATION,
                CONTENT_TYPE,
                IF_MATCH,
                RANGE,
                IDEMPOTENCY_KEY,
                BERTH_GENERATION,
                BERTH_LEASE_EPOCH,
                X_REQUEST_ID,
                HeaderName::from_static("content-digest"),
                HeaderName::from_static("last-event-id"),
                HeaderName::from_static("prefer"),
                HeaderName::from_static("traceparent"),
            ])
            .expose_headers([
                BERTH_GENERATION,
                BERTH_LEASE_EPOCH,
                BERTH_VERSION,
                CONTENT_DISPOSITION,
                CONTENT_RANGE,
                ETAG,
                IDEMPOTENCY_REPLAYED,
                LOCATION,
                RETRY_AFTER,
                X_REQUEST_ID,
            ])
            .max_age(REMEMBERED),
    )
}
