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

/// Which events a reader wants and may see.
#[derive(Clone, Debug)]
pub struct Which<'a> {
    /// The tenant.
    pub organization: Uuid,
    /// Of this type only.
    pub type_: Option<&'a str>,
    /// About this subject only.
    pub subject: Option<Uuid>,
    /// Of this lease, and of this sandbox with its instances and checkpoints, only.
    pub only: Option<(Uuid, Uuid)>,
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

    /// Whether anything was committed that is not numbered yet.
    pub async fn has_unpublished_events(&mut self, organization: Uuid) -> Result<bool> {
        let found: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT 1 AS one FROM event WHERE organization_id = $1 AND seq IS NULL LIMIT 1) AS e")
            .bind(organization).fetch_one(c).await)?;
        Ok(found > 0)
    }

    /// The last number that was given.
    pub async fn newest_event(&mut self, organization: Uuid) -> Result<i64> {
        Ok(on!(self, c => sqlx::query_scalar("SELECT event_seq FROM organization WHERE id = $1").bind(organization).fetch_one(c).await)?)
    }

    /// The number of the oldest kept event; the next number to be given when none is kept.
    pub async fn oldest_event(&mut self, organization: Uuid) -> Result<i64> {
        let oldest: Option<i64> = on!(self, c => sqlx::query_scalar(
            "SELECT seq FROM event WHERE organization_id = $1 AND seq IS NOT NULL ORDER BY seq LIMIT 1")
            .bind(organization).fetch_optional(c).await)?;
        match oldest {
            Some(oldest) => Ok(oldest),
            None => Ok(self.newest_event(organization).await? + 1),
        }
    }

    /// Numbered events after `after` up to `newest`, ascending.
    pub async fn events(&mut self, which: &Which<'_>, after: i64, newest: i64, limit: i64) -> Result<Vec<Event>> {
        let (lease, sandbox) = which.only.unzip();
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM event WHERE organization_id = $1 AND seq > $2 AND seq <= $3 AND ($4 IS NULL OR type = $4)
                 AND ($5 IS NULL OR subject_id = $5)
                 AND ($6 IS NULL OR subject_id = $6 OR subject_id = $7
                     OR EXISTS (SELECT 1 FROM instance i WHERE i.id = event.subject_id AND i.sandbox_id = $7)
                     OR EXISTS (SELECT 1 FROM checkpoint k WHERE k.id = event.subject_id AND k.sandbox_id = $7))
             ORDER BY seq LIMIT $8")
            .bind(which.organization).bind(after).bind(newest).bind(which.type_).bind(which.subject).bind(lease).bind(sandbox).bind(limit)
            .fetch_all(c).await)?)
    }

    /// The organizations that have events from before this moment.
    pub async fn organizations_with_events_before(&mut self, before: Time) -> Result<Vec<Uuid>> {
        Ok(
            on!(self, c => sqlx::query_scalar("SELECT DISTINCT organization_id FROM event WHERE time < $1").bind(before).fetch_all(c).await)?,
        )
    }

    /// Forgets the oldest events up to the first one from this moment or later, so that what is kept has no gap. The events were
    /// numbered before: who has not read them is told.
    pub async fn forget_events(&mut self, organization: Uuid, before: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query(
            "DELETE FROM event WHERE organization_id = $1 AND time < $2 AND seq IS NOT NULL
                 AND seq < coalesce((SELECT min(seq) FROM event WHERE organization_id = $1 AND time >= $2), 9223372036854775807)")
            .bind(organization).bind(before).execute(c).await.map(|d| d.rows_affected()))?)
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
