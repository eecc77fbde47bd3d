//! Organizations, and the one row that is the deployment itself.

use uuid::Uuid;

use super::{Result, Tx};
use crate::clock::Time;

/// The deployment: who we are to providers, and what lease tokens are signed with.
#[derive(Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Deployment {
    pub id: Uuid,
    pub signing_key: Vec<u8>,
}

/// A tenant.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Organization {
    pub id: Uuid,
    pub name: String,
    pub created_at: Time,
}

impl Tx {
    /// The deployment's row.
    pub async fn deployment(&mut self) -> Result<Deployment> {
        Ok(on!(self, c => sqlx::query_as("SELECT id, signing_key FROM deployment").fetch_one(c).await)?)
    }

    /// The organization of this name, made if there is none; the boolean says whether it is new.
    pub async fn ensure_organization(&mut self, name: &str, now: Time) -> Result<(Organization, bool)> {
        self.ensure_organization_as(crate::id::new(), name, now).await
    }

    /// The same, with the id that a new one gets.
    pub async fn ensure_organization_as(&mut self, id: Uuid, name: &str, now: Time) -> Result<(Organization, bool)> {
        let made = on!(self, c => sqlx::query("INSERT INTO organization (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING")
            .bind(id).bind(name).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        let row =
            on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE name = $1").bind(name).fetch_one(c).await)?;
        Ok((row, made == 1))
    }

    /// The organization with this id.
    pub async fn organization(&mut self, id: Uuid) -> Result<Option<Organization>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE id = $1 AND deleted_at IS NULL").bind(id).fetch_optional(c).await)?,
        )
    }

    /// The organization with this name.
    pub async fn organization_named(&mut self, name: &str) -> Result<Option<Organization>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE name = $1").bind(name).fetch_optional(c).await)?,
        )
    }

    /// A page of organizations.
    pub async fn organizations(&mut self, cursor: Option<super::Cursor>, limit: i64) -> Result<Vec<Organization>> {
        let (time, id) = super::page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT id, name, created_at FROM organization WHERE deleted_at IS NULL AND (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3")
            .bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }
}

impl Tx {
    /// Locks an organization, so that what is counted below it stays counted; false when there is none. Whoever also locks its
    /// environments locks those first.
    pub async fn lock_organization(&mut self, id: Uuid) -> Result<bool> {
        let locked = on!(self, c => sqlx::query("UPDATE organization SET event_seq = event_seq WHERE id = $1 AND deleted_at IS NULL")
            .bind(id).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(locked == 1)
    }

    /// Live leases of an organization, and instances whose end is not confirmed.
    pub async fn unfinished_of_organization(&mut self, id: Uuid) -> Result<(i64, i64)> {
        let leases: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM lease WHERE organization_id = $1 AND status IN ('pending', 'active')").bind(id).fetch_one(c).await)?;
        let instances: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM instance WHERE organization_id = $1 AND status NOT IN ('destroyed', 'lost')").bind(id).fetch_one(c).await)?;
        Ok((leases, instances))
    }

    /// Lets an organization go: its name is free, its environments are archived, its secrets and checkpoints are gone and the latter's
    /// bytes are in the deletion ledger. The rows of its ledger and its events stay.
    pub async fn delete_organization(&mut self, id: Uuid, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE organization SET deleted_at = $2, name = name || '~' || $3 WHERE id = $1 AND deleted_at IS NULL")
            .bind(id).bind(now).bind(id.to_string()).execute(c).await.map(|_| ()))?;
        on!(self, c => sqlx::query("UPDATE sandbox SET current_checkpoint_id = NULL, synced_seq = NULL WHERE organization_id = $1")
            .bind(id).execute(c).await.map(|_| ()))?;
        self.delete_secrets_of(id).await?;
        on!(self, c => sqlx::query("DELETE FROM checkpoint WHERE organization_id = $1").bind(id).execute(c).await.map(|_| ()))?;
        on!(self, c => sqlx::query(
            "UPDATE artifact SET status = 'deleting', next_attempt_at = $2, updated_at = $2 WHERE organization_id = $1 AND status = 'stored'")
            .bind(id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// How many instances of an organization live, and how many leases.
    pub async fn usage_of_organization(&mut self, id: Uuid) -> Result<(i64, i64)> {
        let instances = on!(self, c => sqlx::query_scalar("SELECT count(*) FROM instance WHERE organization_id = $1 AND role <> 'retired'")
            .bind(id).fetch_one(c).await)?;
        let leases = on!(self, c => sqlx::query_scalar("SELECT count(*) FROM lease WHERE organization_id = $1 AND status IN ('pending', 'active')")
            .bind(id).fetch_one(c).await)?;
        Ok((instances, leases))
    }

    /// The environments with a quota: name, how many instances may live, how many do.
    pub async fn quotas_of_organization(&mut self, id: Uuid) -> Result<Vec<(String, i64, i64)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT e.name, e.max_live_instances, (SELECT count(*) FROM instance i WHERE i.environment_id = e.id AND i.role <> 'retired')
             FROM environment e WHERE e.organization_id = $1 AND e.archived_at IS NULL AND e.max_live_instances IS NOT NULL ORDER BY e.name")
            .bind(id).fetch_all(c).await)?)
    }

    /// Since when the deployment refuses new work, and why.
    pub async fn draining(&mut self) -> Result<Option<(Time, String)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT draining_since, COALESCE(draining_reason, '') FROM deployment WHERE one = 1 AND draining_since IS NOT NULL")
            .fetch_optional(c).await)?)
    }

    /// Stops new work, if it is not stopped already, or takes it again.
    pub async fn set_draining(&mut self, draining: Option<(Time, &str)>) -> Result<()> {
        let (since, reason) = draining.unzip();
        on!(self, c => sqlx::query(
            "UPDATE deployment SET draining_since = CASE WHEN $1 IS NULL THEN NULL ELSE COALESCE(draining_since, $1) END, draining_reason = $2
             WHERE one = 1")
            .bind(since).bind(reason).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Notes that some server can write now.
    pub async fn note_alive(&mut self, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE deployment SET alive_at = $1 WHERE one = 1").bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// A real write that changes nothing.
    pub async fn touch(&mut self) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE deployment SET created_at = created_at WHERE one = 1").execute(c).await.map(|_| ()))?;
        Ok(())
    }
}
