//! The fence headers on every answer under a lease, refusals and plain reads too: a caller sees the present generation and epoch
//! wherever it looks.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use super::answer::{BERTH_GENERATION, BERTH_LEASE_EPOCH, fenced};
use super::extract::bearer;
use super::problem::Problem;
use crate::error::Code;
use crate::ops::caller::identify;
use crate::ops::{Berth, lease};

/// Where the routes under one lease begin.
const UNDER: &str = "/v1/leases/{id}";

/// Adds what the handler did not say itself. Costs a look only where something is missing and the caller may know it.
pub async fn layer(State(berth): State<Arc<Berth>>, request: Request, next: Next) -> Response {
    let Some(id) = lease_of(&request) else { return next.run(request).await };
    let bearer = bearer(request.headers()).map(str::to_owned);
    let response = next.run(request).await;
    let said = response.headers().contains_key(BERTH_GENERATION) && response.headers().contains_key(BERTH_LEASE_EPOCH);
    // A database that does not answer would only keep the caller waiting once more.
    let away = response.extensions().get::<Problem>().is_some_and(|problem| problem.0.code == Code::StorageUnavailable);
    let worth_it = !said && response.status() != StatusCode::NO_CONTENT && !away;
    let Some(bearer) = bearer.filter(|_| worth_it) else { return response };
    let Ok(caller) = identify(&berth, &bearer).await else { return response };
    match lease::fence(&berth, &caller, id).await {
        Ok((generation, epoch)) => fenced(response, Some(generation), Some(epoch)),
        Err(_) => response,
    }
}

fn lease_of(request: &Request) -> Option<Uuid> {
    request.extensions().get::<MatchedPath>().filter(|route| route.as_str().starts_with(UNDER))?;
    Uuid::try_parse(request.uri().path().split('/').nth(3)?).ok()
}
