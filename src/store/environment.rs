//! Environments.

use uuid::Uuid;

use super::{Cursor, Result, Tx, page};
use crate::clock::Time;
use crate::model::environment::Environment;

impl Tx {
    /// Stores a new environment; a taken name is a unique violation.
    pub async fn insert_environment(&mut self, e: &Environment) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO environment (id, organization_id, name, provider, config, policy, ttl_ms, max_ttl_ms, idle_timeout_ms, on_idle,
                 retain_ms, checkpoint_policy, workspace_path, max_live_instances, metadata, version, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17)")
            .bind(e.id).bind(e.organization_id).bind(&e.name).bind(&e.provider).bind(&e.config).bind(e.policy).bind(e.ttl_ms)
            .bind(e.max_ttl_ms).bind(e.idle_timeout_ms).bind(e.on_idle).bind(e.retain_ms).bind(&e.checkpoint_policy)
            .bind(&e.workspace_path).bind(e.max_live_instances).bind(&e.metadata).bind(e.version).bind(e.created_at)
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// By id.
    pub async fn environment(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Environment>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM environment WHERE organization_id = $1 AND id = $2")
            .bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// By name, among those not archived.
    pub async fn environment_named(&mut self, organization: Uuid, name: &str) -> Result<Option<Environment>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM environment WHERE organization_id = $1 AND name = $2 AND archived_at IS NULL")
            .bind(organization).bind(name).fetch_optional(c).await)?)
    }

    /// A page of those not archived.
    pub async fn environments(&mut self, organization: Uuid, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Environment>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM environment WHERE organization_id = $1 AND archived_at IS NULL AND (created_at, id) < ($2, $3)
             ORDER BY created_at DESC, id DESC LIMIT $4")
            .bind(organization).bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }

    /// How many live instances an environment has, with the environment's row locked so that two acquires count each other.
    pub async fn live_instances_locked(&mut self, environment: Uuid) -> Result<i64> {
        on!(self, c => sqlx::query("UPDATE environment SET version = version WHERE id = $1").bind(environment).execute(c).await.map(|_| ()))?;
        Ok(on!(self, c => sqlx::query_scalar("SELECT count(*) FROM instance WHERE environment_id = $1 AND role <> 'retired'")
            .bind(environment).fetch_one(c).await)?)
    }
}

impl Tx {
    /// Locks an environment against every transaction that makes an instance in it: theirs hold its key until they commit, and
    /// whoever waits for this lock sees what they made.
    pub async fn lock_environment(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Environment>> {
        if !self.is_sqlite() {
            on!(self, c => sqlx::query("SELECT id FROM environment WHERE organization_id = $1 AND id = $2 FOR UPDATE")
                .bind(organization).bind(id).execute(c).await.map(|_| ()))?;
        }
        self.environment(organization, id).await
    }

    /// Writes a locked environment back with its next version; false when it was changed or archived meanwhile.
    pub async fn save_environment(&mut self, e: &Environment, was_version: i64, now: Time) -> Result<bool> {
        let saved = on!(self, c => sqlx::query(
            "UPDATE environment SET name = $3, provider = $4, config = $5, policy = $6, ttl_ms = $7, max_ttl_ms = $8, idle_timeout_ms = $9,
                 on_idle = $10, retain_ms = $11, checkpoint_policy = $12, workspace_path = $13, max_live_instances = $14, metadata = $15,
                 version = $16, updated_at = $17
             WHERE id = $1 AND version = $2 AND archived_at IS NULL")
            .bind(e.id).bind(was_version).bind(&e.name).bind(&e.provider).bind(&e.config).bind(e.policy).bind(e.ttl_ms).bind(e.max_ttl_ms)
            .bind(e.idle_timeout_ms).bind(e.on_idle).bind(e.retain_ms).bind(&e.checkpoint_policy).bind(&e.workspace_path)
            .bind(e.max_live_instances).bind(&e.metadata).bind(e.version).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        // Its time-outs may be shorter now.
        on!(self, c => sqlx::query("UPDATE instance SET idle_check_at = $2 WHERE environment_id = $1 AND status IN ('running', 'stopped')")
            .bind(e.id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(saved == 1)
    }

    /// Archives a locked environment if nothing of it lives; false when something does.
    pub async fn archive_environment(&mut self, id: Uuid, now: Time) -> Result<bool> {
        let archived = on!(self, c => sqlx::query(
            "UPDATE environment SET archived_at = $2, version = version + 1, updated_at = $2 WHERE id = $1 AND archived_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.environment_id = $1 AND i.role <> 'retired')
               AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.environment_id = $1 AND l.status IN ('pending', 'active'))")
            .bind(id).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(archived == 1)
    }

    /// The live instances of an environment, and its live leases.
    pub async fn life_of_environment(&mut self, id: Uuid) -> Result<(Vec<Uuid>, Vec<Uuid>)> {
        let instances = on!(self, c => sqlx::query_scalar("SELECT id FROM instance WHERE environment_id = $1 AND role <> 'retired' ORDER BY id")
            .bind(id).fetch_all(c).await)?;
        let leases = on!(self, c => sqlx::query_scalar(
            "SELECT id FROM lease WHERE environment_id = $1 AND status IN ('pending', 'active') ORDER BY id").bind(id).fetch_all(c).await)?;
        Ok((instances, leases))
    }

    /// Whether an environment is archived by now; asked after an instance's row holds its key.
    pub async fn is_archived(&mut self, id: Uuid) -> Result<bool> {
        Ok(on!(self, c => sqlx::query_scalar("SELECT archived_at IS NOT NULL FROM environment WHERE id = $1").bind(id).fetch_one(c).await)?)
    }

    /// Archives every environment of an organization.
    pub async fn archive_environments_of(&mut self, organization: Uuid, now: Time) -> Result<()> {
        if !self.is_sqlite() {
            on!(self, c => sqlx::query("SELECT id FROM environment WHERE organization_id = $1 ORDER BY id FOR UPDATE")
                .bind(organization).execute(c).await.map(|_| ()))?;
        }
        on!(self, c => sqlx::query("UPDATE environment SET archived_at = $2, updated_at = $2 WHERE organization_id = $1 AND archived_at IS NULL")
            .bind(organization).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }
}
