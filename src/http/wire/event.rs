//! Events on the wire.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::words;
use crate::clock::Time;
use crate::model::event;
use crate::ops::events::Found;

/// Who caused something.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventActor {
    /// `api_key`, `lease_token` or `system`.
    #[schema(value_type = words::ActorKind)]
    pub kind: String,
    /// The key's or the lease's id.
    pub id: Option<Uuid>,
    /// The key's name, or the task of the system.
    pub name: Option<String>,
}

/// Something that happened, told in the transaction in which it happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct Event {
    /// Its place: per organization, ascending in the order of commits. Numbers may be skipped for a reader who sees some only.
    pub seq: i64,
    /// The event's id.
    pub id: Uuid,
    /// Such as `lease.acquired`, `instance.lost`, `checkpoint.attached`.
    #[serde(rename = "type")]
    pub type_: String,
    /// When.
    #[schema(value_type = words::Timestamp)]
    pub time: Time,
    /// What it happened to: `lease`, `sandbox`, `instance`, `checkpoint`, …
    pub subject_kind: String,
    /// The subject's id.
    pub subject_id: Uuid,
    /// The incarnation it is about.
    pub generation: Option<i64>,
    /// Who caused it.
    pub actor: EventActor,
    /// Identifiers and words; what is in it depends on the type.
    #[schema(value_type = words::EventData)]
    pub data: Value,
}

impl From<event::Event> for Event {
    fn from(event: event::Event) -> Self {
        Self {
            seq: event.seq,
            id: event.id,
            type_: event.type_,
            time: event.time,
            subject_kind: event.subject_kind,
            subject_id: event.subject_id,
            generation: event.generation,
            actor: EventActor { kind: event.actor_kind, id: event.actor_id, name: event.actor_name },
            data: event.data.0,
        }
    }
}

/// Events, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventPage {
    /// At most `limit` of them.
    pub items: Vec<Event>,
    /// Pass it as `after` for the next page; null when there is none now.
    pub next_cursor: Option<String>,
    /// Everything up to here was looked at: pass it as `after` to go on later, also when nothing was found.
    pub next_after: i64,
}

impl From<Found> for EventPage {
    fn from(found: Found) -> Self {
        Self {
            next_cursor: found.more.then(|| found.after.to_string()),
            next_after: found.after,
            items: found.items.into_iter().map(Event::from).collect(),
        }
    }
}
