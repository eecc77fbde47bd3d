//! `Idempotency-Key`: a layer around every POST with a JSON body.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::answer::BERTH_LEASE_EPOCH;
use super::body::{LARGEST, is_json, unreadable};
use super::extract::bearer;
use super::problem::Problem;
use super::replay;
use crate::model::resource::{Kind, Resource};
use crate::ops::Berth;
use crate::ops::caller::{Caller, identify};
use crate::ops::idempotency::{self, Kept, KeyOf, Outcome, Turn};

/// Under which key a request is sent.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer was given before.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Whether a key is 1 to 255 visible ASCII characters.
pub fn is_key(key: &[u8]) -> bool {
    (1..=255).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
}

/// A request as it is read again for a replay.
pub struct Asked<'a> {
    /// Who sent it.
    pub caller: &'a Caller,
    /// Its path.
    pub path: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body.
    pub body: &'a Bytes,
}

/// Runs a request under its key once, whatever becomes of its connection; requests without one pass.
pub async fn layer(State(berth): State<Arc<Berth>>, request: Request, next: Next) -> Response {
    match key_of(&request) {
        Some(key) => once(&berth, key, request, next).await.unwrap_or_else(IntoResponse::into_response),
        None => next.run(request).await,
    }
}

/// The key, where it counts; what is wrong with the request is told by its handler.
fn key_of(request: &Request) -> Option<String> {
    let headers = request.headers();
    let key = headers.get(IDEMPOTENCY_KEY).filter(|key| is_key(key.as_bytes()))?.to_str().ok()?;
    let media_type = headers.get(CONTENT_TYPE);
    // Trees and archives have no media type that needs telling: they pass as they stream.
    let takes_json = is_json(media_type) || (media_type.is_none() && request.body().is_end_stream());
    (request.method() == Method::POST && takes_json && !headers.contains_key(CONTENT_ENCODING)).then(|| key.to_owned())
}

async fn once(berth: &Arc<Berth>, key: String, request: Request, next: Next) -> Result<Response, Problem> {
    let Some(bearer) = bearer(request.headers()) else { return Ok(next.run(request).await) };
    let mut caller = identify(berth, bearer).await?;
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, LARGEST).await.map_err(|error| unreadable(&error))?;
    let hash = hex::encode(Sha256::digest(&body));
    let (path, headers) = (parts.uri.path().to_owned(), parts.headers.clone());
    let of = KeyOf { organization: caller.organization, credential: caller.credential_id(), method: "POST", path: &path, key: &key };
    let (claim, id) = loop {
        match idempotency::begin(berth, &of, &hash).await? {
            Turn::Run(claim, id) => break (claim, id),
            Turn::Replay(kept) => {
                return replayed(berth, Asked { caller: &caller, path: &path, headers: &headers, body: &body }, kept).await;
            }
            Turn::CarryOn(claim, left) => {
                let held = berth.work.hold(claim);
                match idempotency::carry_on(berth, &caller, left).await {
                    Ok(Outcome::Stands(status)) => {
                        let kept = Kept { status, resource: Some(left), answer: (left.kind == Kind::Lease).then(|| json!({ "epoch": 1 })) };
                        if idempotency::finish(berth, &claim, kept.clone()).await.is_ok() {
                            held.settled();
                        }
                        return replayed(berth, Asked { caller: &caller, path: &path, headers: &headers, body: &body }, kept).await;
                    }
                    Ok(Outcome::Failed(told)) => {
                        idempotency::forget(berth, &claim).await?;
                        if let Some(error) = told {
                            held.settled();
                            return Err(error.into());
                        }
                    }
                    Err(error) => {
                        // It stands as it is; whoever comes next looks again.
                        drop(held);
                        berth.give_back_claims().await.ok();
                        return Err(error.into());
                    }
                }
                held.settled();
            }
        }
    };
    // Dropped with this future when the client leaves or the handler panics: then the call has died, and the next one goes on.
    let held = berth.work.hold(claim);
    caller.named = Some(id);
    parts.extensions.insert(caller.clone());
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    let (response, done) = if response.status().is_success() {
        let (response, kept) = keep(response).await?;
        (response, idempotency::finish(berth, &claim, kept).await)
    } else {
        (response, idempotency::fail(berth, &claim, &caller, id).await)
    };
    match done {
        Ok(()) => held.settled(),
        Err(error) => tracing::warn!(code = %error.code.as_str(), "the end of a request under a key was not written down"),
    }
    Ok(response)
}

/// What is kept of an answer: the resource it is about, or else the answer itself.
async fn keep(response: Response) -> Result<(Response, Kept), Problem> {
    let status = response.status().as_u16();
    let resource = response.extensions().get::<Resource>().copied();
    if resource.is_some() {
        let epoch = response.headers().get(BERTH_LEASE_EPOCH).and_then(|epoch| epoch.to_str().ok()?.parse::<i64>().ok());
        return Ok((response, Kept { status, resource, answer: epoch.map(|epoch| json!({ "epoch": epoch })) }));
    }
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| unreadable(&error))?;
    let answer = serde_json::from_slice::<Value>(&bytes).ok();
    Ok((Response::from_parts(parts, Body::from(bytes)), Kept { status, resource: None, answer }))
}

async fn replayed(berth: &Arc<Berth>, asked: Asked<'_>, kept: Kept) -> Result<Response, Problem> {
    let mut response = replay::render(berth, &asked, &kept).await?;
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// The lease or sandbox that a path begins with.
pub fn outer_id(path: &str) -> Uuid {
    path.split('/').nth(3).and_then(|id| Uuid::try_parse(id).ok()).unwrap_or_default()
}
