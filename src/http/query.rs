//! Query parameters: the same checks as bodies, against the same description; an unknown parameter is an error.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::IntoParams;

use super::problem::Problem;
use super::schema;
use crate::error::{Error, FieldError};
use crate::ops::input::ListQuery;

/// Checked query parameters.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + IntoParams + 'static> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(read(parts.uri.query().unwrap_or_default())?))
    }
}

/// How long to look.
#[derive(Debug, serde::Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LongPoll {
    /// Wait up to this many seconds while what is looked at is being worked on; 0 when absent.
    #[param(minimum = 0, maximum = 300)]
    wait_seconds: Option<u64>,
}

impl LongPoll {
    /// How long.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds.unwrap_or(0))
    }
}

fn read<T: DeserializeOwned + IntoParams + 'static>(query: &str) -> Result<T, Error> {
    let described = schema::compiled::<Query<T>>(described::<T>);
    let (sent, mut errors) = pairs(query);
    let mut object = Map::new();
    for (name, mut values) in sent {
        let schema = &described.schema["properties"][&name];
        if schema_is(schema, "array") {
            object.insert(name, values.into());
        } else if values.len() > 1 {
            errors.push(FieldError { pointer: format!("?{name}"), message: "must be given once".to_owned() });
        } else if let Some(text) = values.pop() {
            object.insert(name, typed(schema, text));
        }
    }
    let value = Value::Object(object);
    for found in described.problems(&value) {
        let pointer = found.pointer.replacen('/', "?", 1);
        if errors.iter().all(|told| told.pointer != pointer) {
            errors.push(FieldError { pointer, message: found.message });
        }
    }
    if !errors.is_empty() {
        return Err(Error::invalid_fields(errors));
    }
    serde_json::from_value(value).map_err(|error| Error::invalid("?", error.to_string()))
}

/// Decoded parameters by name. Unlike forms on the web, bytes that are no UTF-8 are an error and not replaced.
fn pairs(query: &str) -> (BTreeMap<String, Vec<String>>, Vec<FieldError>) {
    let (mut pairs, mut errors) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match (decoded(name), decoded(value)) {
            (Some(name), Some(value)) => pairs.entry(name).or_default().push(value),
            (name, _) => {
                let pointer = format!("?{}", name.unwrap_or_default());
                errors.push(FieldError { pointer, message: "must be percent-encoded UTF-8 without NUL".to_owned() });
            }
        }
    }
    (pairs, errors)
}

fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    (!decoded.contains('\0')).then(|| decoded.into_owned())
}

/// The parameters as the schema of one object: each as the API description shows it, and no other.
fn described<T: IntoParams>() -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for parameter in T::into_params(|| None) {
        let parameter = json!(parameter);
        let name = parameter["name"].as_str().unwrap_or_default();
        properties.insert(name.to_owned(), parameter["schema"].clone());
        if parameter["required"] == true {
            required.push(name.to_owned());
        }
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schema_is(schema: &Value, wanted: &str) -> bool {
    match &schema["type"] {
        Value::String(one) => one == wanted,
        Value::Array(several) => several.iter().any(|one| one == wanted),
        _ => false,
    }
}

/// The text as the schema's type; text that is not of that type stays text, and the schema says what is wrong.
fn typed(schema: &Value, text: String) -> Value {
    let number = || text.parse::<i64>().ok().map(Value::from);
    let boolean = || text.parse::<bool>().ok().map(Value::from);
    match () {
        () if schema_is(schema, "integer") => number().unwrap_or(Value::String(text)),
        () if schema_is(schema, "boolean") => boolean().unwrap_or(Value::String(text)),
        () => Value::String(text),
    }
}

/// A list without filters.
#[derive(Debug, Default, serde::Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 2000)]
    pub cursor: Option<String>,
}

impl Paging {
    /// The list query.
    pub fn list(self) -> ListQuery {
        ListQuery { limit: self.limit.unwrap_or(20), cursor: self.cursor, ..ListQuery::default() }
    }
}

/// What the filters of a list have in common.
#[derive(Debug, Default)]
pub struct Filters {
    /// `limit`.
    pub limit: Option<i64>,
    /// `cursor`.
    pub cursor: Option<String>,
    /// `status`, comma-separated.
    pub status: Option<String>,
    /// `scope=key:value`, each.
    pub scope: Option<Vec<String>>,
    /// `metadata=key:value`, each.
    pub metadata: Option<Vec<String>>,
}

impl Filters {
    /// The list query, checked; `statuses` are the words that `status` may have.
    pub fn list(self, statuses: &[&str]) -> Result<ListQuery, Error> {
        let mut errors = Vec::new();
        let status: Vec<String> = self.status.iter().flat_map(|list| list.split(',')).map(|word| word.trim().to_owned()).collect();
        if status.iter().any(|word| !statuses.contains(&word.as_str())) {
            errors.push(FieldError { pointer: "?status".to_owned(), message: format!("must be some of {}", statuses.join(",")) });
        }
        let scope = labels("?scope", self.scope, &mut errors);
        let metadata = labels("?metadata", self.metadata, &mut errors);
        if !errors.is_empty() {
            return Err(Error::invalid_fields(errors));
        }
        Ok(ListQuery { limit: self.limit.unwrap_or(20), cursor: self.cursor, status, scope, metadata, ..ListQuery::default() })
    }
}

fn labels(pointer: &str, given: Option<Vec<String>>, errors: &mut Vec<FieldError>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for label in given.unwrap_or_default() {
        match label.split_once(':') {
            Some((key, value)) if !key.is_empty() => {
                labels.insert(key.to_owned(), value.to_owned());
            }
            _ => errors.push(FieldError { pointer: pointer.to_owned(), message: "must be `key:value`".to_owned() }),
        }
    }
    labels
}
