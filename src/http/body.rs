//! JSON bodies: read within limits, checked as a whole, told wrong in every place at once.

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::ToSchema;

use super::extract::refuse_encoding;
use super::idempotency::{IDEMPOTENCY_KEY, is_key};
use super::problem::Problem;
use super::schema::{self, UNKNOWN_FIELD};
use crate::error::{Code, Error, FieldError};

/// The most bytes of a JSON body.
pub const LARGEST: usize = 1024 * 1024;
/// The deepest nesting of a JSON body.
const DEEPEST: usize = 64;

/// A request body whose rules go beyond its schema.
pub trait Checked: DeserializeOwned + ToSchema + 'static {
    /// Adds what is wrong between fields, or beyond what a schema can say.
    fn check(&self, _errors: &mut Vec<FieldError>) {}
}

/// A checked JSON body.
#[derive(Debug)]
pub struct Body<T>(pub T);

/// A JSON body with what is wrong with it, for a handler that has more to say before it refuses.
#[derive(Debug)]
pub struct Draft<T> {
    /// The body.
    pub value: T,
    /// Everything the schema and the body's own rules say against it.
    pub errors: Vec<FieldError>,
}

impl<S: Send + Sync, T: Checked> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let draft = Draft::<T>::from_request(request, state).await?;
        if draft.errors.is_empty() { Ok(Self(draft.value)) } else { Err(Error::invalid_fields(draft.errors).into()) }
    }
}

impl<S: Send + Sync, T: Checked> FromRequest<S> for Draft<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers)?;
        let bytes = to_bytes(body, LARGEST).await.map_err(|error| unreadable(&error))?;
        match parts.headers.get(CONTENT_TYPE) {
            // `curl -X POST` without a body: nothing said is an empty object.
            None if bytes.is_empty() => read(b"{}"),
            media_type if is_media_type(media_type, "application/json") => read(&bytes),
            _ => Err(Problem::new(Code::UnsupportedMediaType, "Send the body as `Content-Type: application/json`.")),
        }
    }
}

/// Refuses what no JSON body may come with.
pub(super) fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    refuse_encoding(headers)?;
    match headers.get(IDEMPOTENCY_KEY).map(HeaderValue::as_bytes) {
        Some(key) if !is_key(key) => Err(Error::invalid("Idempotency-Key", "must have 1 to 255 visible ASCII characters").into()),
        _ => Ok(()),
    }
}

/// Whether a `Content-Type` is JSON, whatever its parameters.
pub fn is_json(media_type: Option<&HeaderValue>) -> bool {
    is_media_type(media_type, "application/json")
}

/// Whether a `Content-Type` is this one, whatever its parameters.
pub(super) fn is_media_type(media_type: Option<&HeaderValue>, wanted: &str) -> bool {
    let text = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(wanted))
}

/// Why a body could not be read.
pub fn unreadable(error: &axum::Error) -> Problem {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(one) = cause {
        if one.is::<http_body_util::LengthLimitError>() {
            return Problem::new(Code::PayloadTooLarge, format!("A JSON body has at most {LARGEST} bytes."));
        }
        cause = one.source();
    }
    Problem::new(Code::MalformedJson, "The body ended before it was complete.")
}

/// One JSON value within limits.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, Problem> {
    let malformed = |error: serde_json::Error| {
        Problem::new(Code::MalformedJson, format!("Not JSON at line {}, column {}.", error.line(), error.column()))
    };
    let value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
    if depth(&value) > DEEPEST {
        return Err(Problem::new(Code::MalformedJson, format!("JSON nested deeper than {DEEPEST} levels.")));
    }
    Ok(value)
}

fn read<T: Checked>(bytes: &[u8]) -> Result<Draft<T>, Problem> {
    Ok(draft(parse(bytes)?)?)
}

/// A value as the body it stands for, with everything that is wrong with it; an error when it cannot be that body at all.
pub(super) fn draft<T: Checked>(value: Value) -> Result<Draft<T>, Error> {
    let mut errors = schema::of_body::<T>().problems(&value);
    let mut known = value;
    // What is only unknown does not keep the rest from being checked.
    errors.iter().filter(|error| error.message == UNKNOWN_FIELD).for_each(|error| take_out(&mut known, &error.pointer));
    let read: Result<T, _> = serde_json::from_value(known);
    match read {
        Ok(value) => {
            let mut more = Vec::new();
            value.check(&mut more);
            more.retain(|new| errors.iter().all(|old| old.pointer != new.pointer));
            errors.extend(more);
            Ok(Draft { value, errors })
        }
        // The schema says it with pointers; serde's own words are for what only serde can see.
        Err(_) if !errors.is_empty() => Err(Error::invalid_fields(errors)),
        Err(error) => Err(Error::invalid("", error.to_string())),
    }
}

/// Takes one member out of a value.
fn take_out(value: &mut Value, pointer: &str) {
    let Some((at, name)) = pointer.rsplit_once('/') else { return };
    if let Some(members) = value.pointer_mut(at).and_then(Value::as_object_mut) {
        members.remove(&name.replace("~1", "/").replace("~0", "~"));
    }
}

impl<T> Draft<T> {
    /// Adds what somebody else says is wrong, unless that place was told already.
    pub fn also(&mut self, more: Vec<FieldError>) {
        let known: Vec<_> = self.errors.iter().map(|told| told.pointer.clone()).collect();
        self.errors.extend(more.into_iter().filter(|new| !known.contains(&new.pointer)));
    }
}

/// How deep a value is nested; a scalar is 0.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}
