//! The shape of a problem, for the API description; `http::problem` writes it.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::words;

/// One thing wrong with one place of a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct FieldProblem {
    /// JSON pointer into the body, `?name` for a query parameter, or the name of a header.
    #[schema(examples("/holder"))]
    pub pointer: String,
    /// What is wrong there, for a person.
    pub message: String,
}

/// A refusal or failure (RFC 9457). It may have further members that depend on the code, such as `integrity_code`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "type": "/problems/lease_conflict", "title": "Another holder has the sandbox", "status": 409,
    "detail": "Held by run-1 until 2026-11-29T15:04:05.123Z.", "instance": "/v1/leases", "code": "lease_conflict",
    "request_id": "0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e0f", "retryable": true, "retry_after_seconds": 1
}))]
pub struct Problem {
    /// Where the code is explained.
    #[serde(rename = "type")]
    pub type_: String,
    /// A short headline, the same for every problem of the code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened and what to do, for a person.
    pub detail: String,
    /// The request's path.
    pub instance: String,
    /// Which problem, for a program.
    #[schema(value_type = words::ErrorCode)]
    pub code: String,
    /// Names the request in the service's logs.
    pub request_id: String,
    /// Whether the identical request may be sent again, with the same Idempotency-Key, after `retry_after_seconds`.
    pub retryable: bool,
    /// Every place of the request that is wrong.
    #[schema(nullable = false)]
    pub errors: Option<Vec<FieldProblem>>,
    /// When to send it again; also the header `Retry-After`.
    #[schema(nullable = false)]
    pub retry_after_seconds: Option<u64>,
    /// Verbs that are legal now.
    #[schema(nullable = false)]
    pub allowed_actions: Option<Vec<String>>,
    /// What is current, where the request carried something older.
    #[schema(value_type = Option<words::AnyValue>)]
    pub current: Option<Value>,
    /// What the request carried.
    #[schema(value_type = Option<words::AnyValue>)]
    pub carried: Option<Value>,
}
