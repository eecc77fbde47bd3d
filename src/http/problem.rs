//! A problem is an error on the wire: `application/problem+json` (RFC 9457), rendered once, at the edge.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::catalogue::{Entry, entry};
use super::layers::RequestId;
use crate::error::{Code, Error};

/// The media type of every error.
pub const MEDIA_TYPE: &str = "application/problem+json";
/// How long a caller waits who was not told otherwise.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// An error on its way out. Its body is written by [`render`], which knows the request's path and id.
#[derive(Clone, Debug)]
pub struct Problem(pub Error);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl Problem {
    /// A problem of this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Error::new(code, detail))
    }

    /// The one status of its code.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(entry(self.0.code).status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn wait(&self, entry: &Entry) -> Option<Duration> {
        self.0.retry_after.or(entry.retryable.then_some(DEFAULT_RETRY))
    }

    /// Every member of the problem; an error's own facts never replace a member of the standard.
    pub fn body(&self, path: &str, request_id: &str) -> Value {
        let error = &self.0;
        let entry = entry(error.code);
        let mut members = Map::new();
        let mut set = |name: &str, value: Value| members.insert(name.to_owned(), value);
        for (name, value) in &error.facts {
            set(name, value.clone());
        }
        let code = error.code.as_str();
        set("type", json!(format!("/problems/{code}")));
        set("title", json!(entry.title));
        set("status", json!(entry.status));
        set("detail", json!(error.detail));
        set("instance", json!(path));
        set("code", json!(code));
        set("request_id", json!(request_id));
        set("retryable", json!(entry.retryable));
        if !error.errors.is_empty() {
            set("errors", json!(error.errors));
        }
        if let Some(wait) = self.wait(&entry) {
            set("retry_after_seconds", json!(whole_seconds(wait)));
        }
        if !error.allowed_actions.is_empty() {
            set("allowed_actions", json!(error.allowed_actions));
        }
        Value::Object(members)
    }
}

/// Seconds for `Retry-After`: never zero, never too early.
pub fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body and headers of every problem that passes, where the request's path and id are known; leaves its code for the log.
pub async fn render(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let mut response = next.run(request).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let entry = entry(problem.0.code);
    *response.body_mut() = Body::from(problem.body(&path, &id).to_string());
    let headers = response.headers_mut();
    // The length was set for the empty body that stood in for this one.
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    if entry.status == 401 {
        headers.insert(WWW_AUTHENTICATE, challenge(problem.0.code));
    }
    if let Some(wait) = problem.wait(&entry) {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    response.extensions_mut().insert(problem.0.code);
    response
}

fn challenge(code: Code) -> HeaderValue {
    HeaderValue::from_static(match code {
        Code::InvalidToken => r#"Bearer realm="berth", error="invalid_token""#,
        _ => r#"Bearer realm="berth""#,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_flattened_and_cannot_replace_a_member() {
        let error = Error::new(Code::StaleGeneration, "Moved on.").fact("current", 2).fact("code", "forged");
        let body = Problem(error).body("/v1/leases", "r");
        assert_eq!(body["current"], 2);
        assert_eq!(body["code"], "stale_generation");
        assert_eq!(body["retryable"], false);
        assert!(body.get("retry_after_seconds").is_none());
    }

    #[test]
    fn what_may_be_repeated_says_when() {
        let body = Problem::new(Code::LeaseConflict, "Taken.").body("/", "r");
        assert_eq!(body["retry_after_seconds"], 1);
        let later = Problem(Error::new(Code::RateLimited, "Slow.").retry_after(Duration::from_millis(2_300)));
        assert_eq!(later.body("/", "r")["retry_after_seconds"], 3);
    }
}
