//! Plugins.

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::{Cursor, Result, Tx, page};
use crate::clock::Time;
use crate::model::plugin::Plugin;

impl Tx {
    /// Plugins with something that runs.
    pub async fn running_plugins(&mut self) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT id FROM plugin p WHERE deleted_at IS NULL AND EXISTS (SELECT 1 FROM instance i WHERE i.plugin_id = p.id AND i.status = 'running')")
            .fetch_all(c).await)?)
    }

    /// Stores a new plugin; a taken name is a unique violation.
    pub async fn insert_plugin(&mut self, p: &Plugin) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO plugin (id, organization_id, name, url, token_secret, token_version, handshake, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)")
            .bind(p.id).bind(p.organization_id).bind(&p.name).bind(&p.url).bind(&p.token_secret).bind(p.token_version).bind(&p.handshake)
            .bind(p.created_at).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// By id, of this organization; one that is deleted is unknown.
    pub async fn plugin(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Plugin>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM plugin WHERE organization_id = $1 AND id = $2 AND deleted_at IS NULL")
            .bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// By name. It is not deleted before this transaction is over.
    pub async fn plugin_named(&mut self, organization: Uuid, name: &str) -> Result<Option<Plugin>> {
        let sql = if self.is_sqlite() { NAMED } else { NAMED_LOCKED };
        Ok(on!(self, c => sqlx::query_as(sql).bind(organization).bind(name).fetch_optional(c).await)?)
    }

    /// A page of an organization's plugins.
    pub async fn plugins(&mut self, organization: Uuid, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Plugin>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM plugin WHERE organization_id = $1 AND deleted_at IS NULL AND (created_at, id) < ($2, $3)
             ORDER BY created_at DESC, id DESC LIMIT $4")
            .bind(organization).bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }

    /// Writes down what a new life of a plugin's worker said of itself.
    pub async fn save_handshake(&mut self, id: Uuid, handshake: &Value, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE plugin SET handshake = $2, updated_at = $3 WHERE id = $1 AND deleted_at IS NULL")
            .bind(id).bind(Json(handshake)).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Locks a plugin against every row that is to be made with it.
    pub async fn lock_plugin(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Plugin>> {
        on!(self, c => sqlx::query("UPDATE plugin SET updated_at = updated_at WHERE organization_id = $1 AND id = $2")
            .bind(organization).bind(id).execute(c).await.map(|_| ()))?;
        self.plugin(organization, id).await
    }

    /// How many rows of the ledger that are not over were made with a plugin.
    pub async fn unfinished_of_plugin(&mut self, id: Uuid) -> Result<i64> {
        Ok(on!(self, c => sqlx::query_scalar("SELECT count(*) FROM instance WHERE plugin_id = $1 AND status NOT IN ('destroyed', 'lost')")
            .bind(id).fetch_one(c).await)?)
    }

    /// Lets a locked plugin go; its name is free, and rows that are over still name it.
    pub async fn delete_plugin(&mut self, id: Uuid, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE plugin SET deleted_at = $2 WHERE id = $1 AND deleted_at IS NULL")
            .bind(id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }
}

const NAMED: &str = "SELECT * FROM plugin WHERE organization_id = $1 AND name = $2 AND deleted_at IS NULL";
const NAMED_LOCKED: &str = "SELECT * FROM plugin WHERE organization_id = $1 AND name = $2 AND deleted_at IS NULL FOR SHARE";
