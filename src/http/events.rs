//! Events: page by page, or as they happen.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Http;
use super::answer::Answer;
use super::extract::{Authenticated, bearer};
use super::query::Query;
use super::sse;
use super::wire::event::{Event, EventPage};
use crate::error::Error;
use crate::model::event;
use crate::ops::Berth;
use crate::ops::caller::{Caller, identify};
use crate::ops::events::{self, Asked};
use crate::ops::streams::Open;

/// How often a stream looks for what is new.
const LOOK: Duration = Duration::from_millis(200);
/// How often a stream asks whether its credential still works.
const IDENTIFY: Duration = Duration::from_secs(4);
/// How many events a stream reads at a time.
const BATCH: i64 = 100;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(follow))
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct EventFilters {
    /// Only events after this `seq`; from the oldest kept one when absent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Of this type only.
    #[serde(rename = "type")]
    #[param(max_length = 200, example = "lease.acquired")]
    type_: Option<String>,
    /// About this subject only.
    subject_id: Option<Uuid>,
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
}

/// List events
///
/// Oldest first. A reader that goes on from `next_after` misses none and sees none twice. A lease token sees the events of its lease
/// and of its sandbox. Kept for 30 days.
#[utoipa::path(get, path = "/v1/events", operation_id = "events_list", tag = "events", params(EventFilters),
    responses((status = 200, description = "A page of events.", body = EventPage)),
    extensions(("x-error-codes" = json!(["events_expired"]))))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(filters): Query<EventFilters>,
) -> Answer<Json<EventPage>> {
    let EventFilters { after, type_, subject_id, limit } = filters;
    let asked = Asked { after, type_, subject: subject_id, limit: limit.unwrap_or(20) };
    Ok(Json(events::page(&berth, &caller, &asked).await?.into()))
}

/// Which events are followed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Followed {
    /// Only events after this `seq`, unless there is a `Last-Event-ID`; from the oldest kept one when absent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Of this type only.
    #[serde(rename = "type")]
    #[param(max_length = 200, example = "lease.acquired")]
    type_: Option<String>,
    /// About this subject only.
    subject_id: Option<Uuid>,
}

/// Follow events
///
/// As server-sent events: `id` is the `seq`, `event` the type, `data` the event. Connect again with `Last-Event-ID` and it goes on
/// exactly there. A heartbeat every 15 s carries the `id` up to which nothing is left.
#[utoipa::path(get, path = "/v1/events/stream", operation_id = "events_stream", tag = "events",
    params(Followed, ("Last-Event-ID" = Option<i64>, Header, description = "The last `id` that was received.", minimum = 0)),
    responses((status = 200, description = "The events.", body = String, content_type = "text/event-stream",
        example = json!("id: 7\nevent: lease.acquired\ndata: {\"seq\":7,\"type\":\"lease.acquired\"}\n\n"))),
    extensions(("x-error-codes" = json!(["events_expired", "quota_exceeded"]))))]
async fn follow(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Query(which): Query<Followed>,
    headers: HeaderMap,
) -> Answer {
    let Followed { after, type_, subject_id } = which;
    let after = last_event_id(&headers)?.or(after);
    let asked = Asked { after, type_, subject: subject_id, limit: BATCH };
    let open = berth.streams.open(caller.credential.id())?;
    // Read once before anything is answered: a position that is no longer kept is a problem, and not a broken stream.
    let found = events::page(&berth, &caller, &asked).await?;
    let asked = Asked { after: Some(found.after), ..asked };
    let now = Instant::now();
    let bearer = bearer(&headers).unwrap_or_default().to_owned();
    let follower = Follower {
        berth,
        caller,
        bearer,
        asked,
        waiting: found.items.into(),
        more: found.more,
        beat: now + sse::HEARTBEAT,
        known: now,
        _open: open,
    };
    let body = Body::from_stream(stream::unfold(follower, |mut follower| async move {
        let next = follower.next().await?;
        Some((Ok::<_, std::convert::Infallible>(next), follower))
    }));
    Ok(stream_of(body))
}

fn stream_of(body: Body) -> Response {
    ([(CONTENT_TYPE, sse::MEDIA_TYPE)], body).into_response()
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Error> {
    let Some(sent) = headers.get("last-event-id").filter(|sent| !sent.is_empty()) else { return Ok(None) };
    let seq = sent.to_str().ok().and_then(|text| text.parse().ok()).filter(|seq: &i64| *seq >= 0);
    seq.map(Some).ok_or_else(|| Error::invalid("Last-Event-ID", "must be the id of an event"))
}

/// One open stream. It reads on only when its client has taken what was read before.
struct Follower {
    berth: Arc<Berth>,
    caller: Caller,
    bearer: String,
    asked: Asked,
    waiting: VecDeque<event::Event>,
    more: bool,
    beat: Instant,
    known: Instant,
    _open: Open,
}

impl Follower {
    /// What is sent next; the end when the server stops, the credential no longer works, or the database does not answer.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.beat = Instant::now() + sse::HEARTBEAT;
                return Some(sse::event(Some(event.seq), &event.type_.clone(), &Event::from(event)));
            }
            if !self.more {
                if Instant::now() >= self.beat {
                    self.beat = Instant::now() + sse::HEARTBEAT;
                    return Some(sse::heartbeat(self.asked.after));
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = self.berth.work.stopping().cancelled() => return None,
                }
            }
            if self.known.elapsed() >= IDENTIFY {
                self.caller = identify(&self.berth, &self.bearer).await.ok()?;
                self.known = Instant::now();
            }
            let found = events::page(&self.berth, &self.caller, &self.asked).await.ok()?;
            (self.asked.after, self.more, self.waiting) = (Some(found.after), found.more, found.items.into());
        }
    }
}
