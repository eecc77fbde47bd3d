//! What every request passes: an id, a span, a count, and the headers that every answer carries.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use super::problem::Problem;
use crate::error::Code;
use crate::ops::{Berth, health};
use crate::trace::Traceparent;
use crate::{id, telemetry, trace};

/// Names a request in answers and logs.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The trace a request belongs to; logged by its id and passed on to providers.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Which version answered.
pub const BERTH_VERSION: HeaderName = HeaderName::from_static("berth-version");
const LONGEST_ID: usize = 128;

/// The request's id: the caller's if it is well formed, else a new one.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
        let well_formed = |id: &&str| {
            (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        Self(sent.filter(well_formed).map_or_else(|| id::new().to_string(), str::to_owned))
    }
}

/// The outermost layer. Logs the route's template and never a path, a query, a header or a body.
pub async fn observe(mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = RequestId::of(request.headers());
    let method = method_word(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    request.extensions_mut().insert(id.clone());

    let sent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let trace = sent.and_then(Traceparent::parse);
    let span = tracing::info_span!("request", method, route, request_id = id.0, trace_id = trace.as_ref().map(Traceparent::trace_id));
    let mut response = trace::within(trace, next.run(request)).instrument(span.clone()).await;

    let (status, took) = (response.status().as_u16(), started.elapsed());
    let code = response.extensions().get::<Code>().map(|code| code.as_str());
    span.in_scope(|| {
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match (route.as_str(), status) {
            ("/healthz" | "/readyz" | "/metrics", ..500) => tracing::debug!(status, code, duration_ms, "answered"),
            (_, 500) => tracing::error!(status, code, duration_ms, "answered"),
            _ => tracing::info!(status, code, duration_ms, "answered"),
        }
    });
    telemetry::count_request(method, &route, status, took);
    mark(response.headers_mut(), &id);
    response
}

fn mark(headers: &mut HeaderMap, id: &RequestId) {
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        headers.insert(X_REQUEST_ID, value);
    }
    headers.insert(BERTH_VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Methods as a bounded set of words, so that no caller can invent labels.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// No answer leaves before what it was decided on is durable: a refusal may rest on what a neighbour has written and nobody has
/// committed yet.
pub async fn settle(State(berth): State<Arc<Berth>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    match health::settled(&berth).await {
        Ok(()) => response,
        Err(error) => Problem(error).into_response(),
    }
}

/// What a panic in a handler becomes. Its text may hold anything, so it is neither shown nor logged.
pub fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::new(Code::Internal, "Something failed in Berth. It was logged under this request id.").into_response()
}

/// Any path the API does not have.
pub async fn route_not_found() -> Problem {
    Problem::new(Code::RouteNotFound, "No operation has this path; see /docs.")
}

/// A path the API has, with a method it does not have.
pub async fn method_not_allowed() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path does not have this method; the Allow header lists those it has.")
}
