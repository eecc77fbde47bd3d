//! Changing a resource: a JSON merge patch (RFC 7396), and the version it was made for.

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::IntoParams;

use super::body::{LARGEST, check_headers, is_media_type, parse, unreadable};
use super::problem::Problem;
use crate::error::{Code, Error};

/// What is to change: members replace, null removes, objects are merged.
#[derive(Debug)]
pub struct Patch(pub Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Patch {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers)?;
        let media_type = parts.headers.get(CONTENT_TYPE);
        if !is_media_type(media_type, "application/merge-patch+json") && !is_media_type(media_type, "application/json") {
            let advice = "Send the body as `Content-Type: application/merge-patch+json` or `application/json`.";
            return Err(Problem::new(Code::UnsupportedMediaType, advice));
        }
        let bytes = to_bytes(body, LARGEST).await.map_err(|error| unreadable(&error))?;
        match parse(&bytes)? {
            Value::Object(members) => Ok(Self(members)),
            _ => Err(Error::invalid("", "must be an object").into()),
        }
    }
}

impl Patch {
    /// What the resource is to be.
    pub fn onto(self, mut target: Value) -> Value {
        merge(&mut target, Value::Object(self.0));
        target
    }
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(members) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in members {
        if value.is_null() {
            object.remove(&name);
        } else {
            merge(object.entry(name).or_insert(Value::Null), value);
        }
    }
}

/// Which versions the change was made for; `None` when the caller does not mind.
#[derive(Clone, Debug, Default, IntoParams, Deserialize)]
#[into_params(parameter_in = Header)]
pub struct IfMatch {
    /// The `ETag` of the version this change is meant for; another present version is refused with 412.
    #[serde(rename = "If-Match")]
    #[param(example = "\"3\"")]
    pub if_match: Option<String>,
}

impl IfMatch {
    /// The versions that will do. `*` is any, so nothing has to match; a tag that is not ours matches nothing.
    pub fn versions(&self) -> Option<Vec<i64>> {
        let sent = self.if_match.as_deref()?;
        if sent.trim() == "*" {
            return None;
        }
        let tags = sent.split(',').map(str::trim);
        Some(tags.filter_map(|tag| tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()).collect())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let lines: Vec<&str> = parts.headers.get_all(IF_MATCH).iter().map(|line| line.to_str().unwrap_or("unreadable")).collect();
        Ok(Self { if_match: (!lines.is_empty()).then(|| lines.join(",")) })
    }
}

/// Marks an answer with its version.
pub fn tagged<B>(mut response: Response<B>, version: i64) -> Response<B> {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_replaces_removes_and_merges() {
        let patch = json!({ "a": null, "b": { "c": 2, "d": null }, "e": [1], "f": { "g": null } });
        let Value::Object(members) = patch else { unreachable!() };
        let merged = Patch(members).onto(json!({ "a": 1, "b": { "c": 1, "d": 1, "x": 1 }, "e": { "y": 1 } }));
        assert_eq!(merged, json!({ "b": { "c": 2, "x": 1 }, "e": [1], "f": {} }));
    }

    #[test]
    fn only_strong_tags_of_ours_match() {
        let versions = |sent: &str| IfMatch { if_match: Some(sent.to_owned()) }.versions();
        assert_eq!(versions("\"3\""), Some(vec![3]));
        assert_eq!(versions("\"3\", \"5\""), Some(vec![3, 5]));
        assert_eq!(versions("W/\"3\""), Some(Vec::new()));
        assert_eq!(versions("3"), Some(Vec::new()));
        assert_eq!(versions("*"), None);
        assert_eq!(IfMatch::default().versions(), None);
    }
}
