//! The same world over HTTP: requests through the whole router, answers with their headers.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use serde_json::Value;
use tower::ServiceExt;

use super::World;

/// The key that every world's first start made: admin and operator of organization `default`.
pub const BOOTSTRAP: &str = "a-bootstrap-key-of-the-tests-0123456789";

/// An answer.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Said {
    /// The answer's body; the test ends here unless the status is this.
    #[track_caller]
    pub fn ok(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// The problem; the test ends here unless it is this one.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        self.body
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl World {
    /// Asks as the bootstrap key.
    pub async fn ask(&self, method: &str, path: &str, body: Value) -> Said {
        self.ask_as(BOOTSTRAP, method, path, body).await
    }

    pub async fn ask_as(&self, key: &str, method: &str, path: &str, body: Value) -> Said {
        self.ask_with(key, method, path, &[], body).await
    }

    /// Asks with further headers; a null body is none.
    pub async fn ask_with(&self, key: &str, method: &str, path: &str, headers: &[(&str, &str)], body: Value) -> Said {
        let mut request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
        if !body.is_null() && headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let response = self.routes().oneshot(request.body(body).unwrap()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Said { status, headers, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
    }

    fn routes(&self) -> axum::Router {
        berth::http::router(self.berth.clone())
    }
}
