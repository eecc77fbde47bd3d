//! Events are written in the transaction they describe and numbered when they are first read, under the organization's row: a
//! number is given only to what is committed, so a reader that goes on from its last one never misses an event.

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::{Result, Tx};
use crate::clock::Time;
use crate::model::event::{Actor, Event};

/// An event about to be written.
#[derive(Debug)]
pub struct NewEvent<'a> {
    /// The tenant.
    pub organization: Uuid,
    /// Such as `lease.acquired`.
    pub type_: &'static str,
    /// `lease`, `sandbox`, `instance`, `checkpoint`, …
    pub subject_kind: &'static str,
    /// The subject's id.
    pub subject: Uuid,
    /// The generation it is about, where there is one.
    pub generation: Option<i64>,
    /// Who caused it.
    pub actor: &'a Actor,
    /// Identifiers and words only.
    pub data: Value,
}

impl Tx {
    /// Writes an event.
    pub async fn tell(&mut self, event: NewEvent<'_>, now: Time) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO event (id, organization_id, type, time, subject_kind, subject_id, generation, actor_kind, actor_id, actor_name, data)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
            .bind(crate::id::new()).bind(event.organization).bind(event.type_).bind(now).bind(event.subject_kind).bind(event.subject)
            .bind(event.generation).bind(event.actor.kind()).bind(event.actor.id()).bind(event.actor.name()).bind(Json(event.data))
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Numbers what was committed and is not numbered yet.
    pub async fn publish_events(&mut self, organization: Uuid) -> Result<()> {
        let base: i64 = on!(self, c => sqlx::query_scalar("UPDATE organization SET event_seq = event_seq WHERE id = $1 RETURNING event_seq")
            .bind(organization).fetch_one(c).await)?;
        let numbered = on!(self, c => sqlx::query(
            "UPDATE event SET seq = n.seq FROM (
                 SELECT id, $2 + row_number() OVER (ORDER BY id) AS seq FROM event WHERE organization_id = $1 AND seq IS NULL
             ) AS n WHERE event.id = n.id")
            .bind(organization).bind(base).execute(c).await.map(|d| d.rows_affected()))?;
        on!(self, c => sqlx::query("UPDATE organization SET event_seq = event_seq + $2 WHERE id = $1")
            .bind(organization).bind(i64::try_from(numbered).unwrap_or(i64::MAX)).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Numbered events after `after`, ascending.
    pub async fn events_after(
        &mut self,
        organization: Uuid,
        after: i64,
        type_: Option<&str>,
        subject: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Event>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM event WHERE organization_id = $1 AND seq > $2 AND ($3 IS NULL OR type = $3) AND ($4 IS NULL OR subject_id = $4)
             ORDER BY seq LIMIT $5")
            .bind(organization).bind(after).bind(type_).bind(subject).bind(limit).fetch_all(c).await)?)
    }

    /// The last events of one subject, oldest first.
    pub async fn history(&mut self, organization: Uuid, subject: Uuid, limit: i64) -> Result<Vec<(String, Time, Option<String>)>> {
        let mut rows: Vec<(String, Time, Option<String>)> = on!(self, c => sqlx::query_as(
            "SELECT type, time, actor_name FROM event WHERE organization_id = $1 AND subject_id = $2 ORDER BY id DESC LIMIT $3")
            .bind(organization).bind(subject).bind(limit).fetch_all(c).await)?;
        rows.reverse();
        Ok(rows)
    }
}
