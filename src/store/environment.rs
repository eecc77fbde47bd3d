//! Environments.

use uuid::Uuid;

use super::{Cursor, Result, Tx, page};
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
