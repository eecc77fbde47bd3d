//! How verbs' answers become responses: statuses, `Location`, `Retry-After` and the fence headers.

use axum::Json;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use uuid::Uuid;

use super::problem::Problem;
use super::wire::lease::Lease;
use crate::model::resource::{Kind, Resource};
use crate::ops::view::{Answered, LeaseView};

/// What a handler gives back.
pub type Answer<T = Response> = Result<T, Problem>;

/// The incarnation an answer belongs to.
pub const BERTH_GENERATION: HeaderName = HeaderName::from_static("berth-generation");
/// The grant an answer belongs to.
pub const BERTH_LEASE_EPOCH: HeaderName = HeaderName::from_static("berth-lease-epoch");

/// 201, 200 or 202, with where to look again; a 202 also says when.
pub fn made<T: Serialize>(answered: Answered, location: &str, body: T) -> Response {
    let status = match answered {
        Answered::Created => StatusCode::CREATED,
        Answered::Existing => StatusCode::OK,
        Answered::Pending => StatusCode::ACCEPTED,
    };
    let mut response = (status, Json(body)).into_response();
    let headers = response.headers_mut();
    if answered == Answered::Pending {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if let (false, Ok(location)) = (answered == Answered::Existing, HeaderValue::from_str(location)) {
        headers.insert(LOCATION, location);
    }
    response
}

/// Adds the fence that the answer belongs to, as far as it is known.
pub fn fenced(mut response: Response, generation: Option<i64>, epoch: Option<i64>) -> Response {
    for (name, value) in [(BERTH_GENERATION, generation), (BERTH_LEASE_EPOCH, epoch)] {
        if let Some(value) = value {
            response.headers_mut().insert(name, HeaderValue::from(value));
        }
    }
    response
}

/// Says which resource an answer is about, for whoever has to give it again.
pub fn about(mut response: Response, kind: Kind, id: Uuid) -> Response {
    response.extensions_mut().insert(Resource { kind, id });
    response
}

/// A lease, as every verb on a lease answers it.
pub fn lease(view: &LeaseView, answered: Answered) -> Response {
    let location = format!("/v1/leases/{}", view.lease.id);
    let response = fenced(made(answered, &location, Lease::of(view)), Some(view.lease.generation), Some(view.lease.epoch));
    about(response, Kind::Lease, view.lease.id)
}
