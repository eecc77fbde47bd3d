//! What a handler is given besides body and query: who asks, which ids, which fence, how long to wait.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, MatchedPath, RawPathParams};
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;
use uuid::Uuid;

use super::layers::RequestId;
use super::problem::Problem;
use crate::error::{Code, Error, FieldError};
use crate::ops::Berth;
use crate::ops::caller::{Caller, identify};
use crate::ops::input::Carried;

/// Longest bearer worth looking up; longer ones are refused unread.
const LONGEST_BEARER: usize = 1024;

/// The caller, identified by `Authorization: Bearer`.
#[derive(Debug)]
pub struct Authenticated(pub Caller);

impl<S> FromRequestParts<S> for Authenticated
where
    Arc<Berth>: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if let Some(known) = parts.extensions.get::<Caller>() {
            return Ok(Self(known.clone()));
        }
        let bearer = bearer(&parts.headers)
            .ok_or_else(|| Problem::new(Code::Unauthorized, "Send `Authorization: Bearer` with an API key or a lease token."))?;
        let berth = <Arc<Berth>>::from_ref(state);
        let caller = identify(&berth, bearer).await?;
        if !lets_go(parts) {
            berth.rate.admit(caller.credential.id(), Instant::now())?;
        }
        Ok(Self(caller))
    }
}

/// Whether a request keeps or gives up what its caller has; such a one is never refused for being one too many.
fn lets_go(parts: &Parts) -> bool {
    let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    parts.method == Method::DELETE || (parts.method == Method::POST && (route.ends_with("/renew") || route.ends_with("/release")))
}

/// The credential of `Authorization: Bearer …`, if there is exactly that.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, credential) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let credential = credential.trim();
    (scheme.eq_ignore_ascii_case("bearer") && (1..=LONGEST_BEARER).contains(&credential.len())).then_some(credential)
}

/// The one id of a path. One that is no UUID names nothing, so it is 404 like any unknown id.
#[derive(Clone, Copy, Debug)]
pub struct Id(pub Uuid);

/// The two ids of a path, outer first.
#[derive(Clone, Copy, Debug)]
pub struct Ids(pub Uuid, pub Uuid);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self(path_ids::<S, 1>(parts, state).await?[0]))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Ids {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let [outer, inner] = path_ids::<S, 2>(parts, state).await?;
        Ok(Self(outer, inner))
    }
}

async fn path_ids<S: Send + Sync, const N: usize>(parts: &mut Parts, state: &S) -> Result<[Uuid; N], Problem> {
    let unknown = || Problem::new(Code::NotFound, "No such id; ids are UUIDs.");
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown())?;
    let ids: Vec<Uuid> = params.iter().filter_map(|(_, value)| Uuid::try_parse(value).ok()).collect();
    ids.try_into().map_err(|_| unknown())
}

/// The one name or id of a path, as sent.
#[derive(Clone, Debug)]
pub struct Named(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await.ok();
        let name = params.and_then(|params| params.iter().next().map(|(_, value)| value.to_owned()));
        name.map(Self).ok_or_else(|| Problem::new(Code::NotFound, "No such thing."))
    }
}

/// The fence that a write carries in its headers.
#[derive(Clone, Copy, Debug, Default, IntoParams, Deserialize)]
#[into_params(parameter_in = Header)]
pub struct Fence {
    /// The lease's generation that this is meant for. A write with an API key needs it; a lease token carries its own.
    #[serde(rename = "Berth-Generation")]
    #[param(minimum = 1)]
    pub generation: Option<i64>,
    /// The lease's epoch that this is meant for. Optional; a lease token carries its own.
    #[serde(rename = "Berth-Lease-Epoch")]
    #[param(minimum = 1)]
    pub epoch: Option<i64>,
}

impl Fence {
    /// What the verbs are handed.
    pub fn carried(self) -> Carried {
        Carried { generation: self.generation, epoch: self.epoch }
    }

    /// Refuses a body that names another generation than the header.
    pub fn agree(self, body: i64) -> Result<(), Error> {
        match self.generation {
            Some(header) if header != body => {
                Err(Error::invalid("/generation", format!("is {body}, but the header Berth-Generation says {header}")))
            }
            _ => Ok(()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Fence {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut errors = Vec::new();
        let mut number = |name: &str| {
            let sent = parts.headers.get(name)?;
            let number = sent.to_str().ok().and_then(|text| text.parse().ok()).filter(|n: &i64| *n > 0);
            if number.is_none() {
                errors.push(FieldError { pointer: name.to_owned(), message: "must be a positive whole number".to_owned() });
            }
            number
        };
        let fence = Self { generation: number("Berth-Generation"), epoch: number("Berth-Lease-Epoch") };
        if errors.is_empty() { Ok(fence) } else { Err(Error::invalid_fields(errors).into()) }
    }
}

/// How the caller wants to be answered.
#[derive(Clone, Debug, Default, IntoParams, Deserialize)]
#[into_params(parameter_in = Header)]
pub struct Prefer {
    /// `respond-async` asks for 202 at once instead of waiting for the provider.
    #[serde(rename = "Prefer")]
    #[param(example = "respond-async")]
    pub prefer: Option<String>,
}

impl Prefer {
    /// Whether `respond-async` is among the preferences.
    pub fn respond_async(&self) -> bool {
        self.prefer.iter().flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case("respond-async"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Prefer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let lines: Vec<&str> = parts.headers.get_all("prefer").iter().filter_map(|line| line.to_str().ok()).collect();
        Ok(Self { prefer: (!lines.is_empty()).then(|| lines.join(",")) })
    }
}

/// What a problem inside an answer says of its request.
#[derive(Clone, Debug)]
pub struct Asked {
    path: String,
    request_id: String,
}

impl Asked {
    /// A problem as it would be answered, for one item of an answer that goes on.
    pub fn problem(&self, error: Error) -> serde_json::Value {
        Problem(error).body(&self.path, &self.request_id)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
        Ok(Self { path: parts.uri.path().to_owned(), request_id })
    }
}

/// Refuses a body that is compressed; Berth reads bodies as they are.
pub fn refuse_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(CONTENT_ENCODING) {
        None => Ok(()),
        Some(encoding) if encoding.as_bytes().eq_ignore_ascii_case(b"identity") => Ok(()),
        Some(_) => Err(Problem::new(Code::UnsupportedMediaType, "Send the body without Content-Encoding.")),
    }
}
