//! Sandboxes: the lock of everything below them.

use sqlx::types::Json;
use uuid::Uuid;

use super::error::StoreError;
use super::{Cursor, Filters, Result, Tx, page};
use crate::clock::Time;
use crate::model::sandbox::Sandbox;
use crate::model::scope::{self, Scope};

impl Tx {
    /// Finds or makes the sandbox of a scope and locks it; an anonymous one is always new. The boolean says whether it is new.
    pub async fn ensure_sandbox(
        &mut self,
        organization: Uuid,
        environment: Uuid,
        scope: Option<&Scope>,
        now: Time,
    ) -> Result<(Sandbox, bool)> {
        let key = scope.map(scope::key);
        let made: Option<Sandbox> = on!(self, c => sqlx::query_as(
            "INSERT INTO sandbox (id, organization_id, environment_id, scope, scope_key, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $6)
             ON CONFLICT (organization_id, environment_id, scope_key) DO NOTHING RETURNING *")
            .bind(crate::id::new()).bind(organization).bind(environment).bind(scope.map(Json)).bind(&key).bind(now)
            .fetch_optional(c).await)?;
        if let Some(sandbox) = made {
            return Ok((sandbox, true));
        }
        let sql = if self.is_sqlite() {
            "SELECT * FROM sandbox WHERE organization_id = $1 AND environment_id = $2 AND scope_key = $3"
        } else {
            "UPDATE sandbox SET lock_seq = lock_seq + 1 WHERE organization_id = $1 AND environment_id = $2 AND scope_key = $3 RETURNING *"
        };
        let found: Option<Sandbox> =
            on!(self, c => sqlx::query_as(sql).bind(organization).bind(environment).bind(&key).fetch_optional(c).await)?;
        found.map(|sandbox| (sandbox, false)).ok_or(StoreError::Moved)
    }

    /// Takes the sandbox's lock and reads it as it is now. On SQLite whoever writes has every lock.
    pub async fn lock_sandbox(&mut self, id: Uuid) -> Result<Option<Sandbox>> {
        let sql = if self.is_sqlite() {
            "SELECT * FROM sandbox WHERE id = $1"
        } else {
            "UPDATE sandbox SET lock_seq = lock_seq + 1 WHERE id = $1 RETURNING *"
        };
        Ok(on!(self, c => sqlx::query_as(sql).bind(id).fetch_optional(c).await)?)
    }

    /// By id.
    pub async fn sandbox(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Sandbox>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM sandbox WHERE organization_id = $1 AND id = $2")
            .bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// By id, unless it was deleted.
    pub async fn living_sandbox(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Sandbox>> {
        Ok(self.sandbox(organization, id).await?.filter(|s| s.deleted_at.is_none()))
    }

    /// Makes a sandbox its own tombstone: its scope is free, and only the ledger and the history still name it.
    pub async fn bury_sandbox(&mut self, id: Uuid, now: Time) -> Result<()> {
        let buried = on!(self, c => sqlx::query(
            "UPDATE sandbox SET deleted_at = $2, updated_at = $2, scope_key = CASE WHEN scope_key IS NULL THEN NULL ELSE 'deleted:' || $3 END
             WHERE id = $1 AND deleted_at IS NULL AND instance_id IS NULL")
            .bind(id).bind(now).bind(id.to_string()).execute(c).await.map(|d| d.rows_affected()))?;
        if buried == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// Writes a locked sandbox back. Generations, sequence numbers and grants only grow; a write that would lower one fails.
    pub async fn save_sandbox(&mut self, s: &Sandbox, now: Time) -> Result<()> {
        let saved = on!(self, c => sqlx::query(
            "UPDATE sandbox SET generation = $2, workspace_seq = $3, synced_seq = $4, grant_seq = $5, pointer_seq = $6, instance_id = $7,
                 current_checkpoint_id = $8, diverged = $9, unsaved_loss = $10, process_open = $11, updated_at = $12, given_up_seq = $13
             WHERE id = $1 AND generation <= $2 AND workspace_seq <= $3 AND grant_seq <= $5 AND pointer_seq <= $6")
            .bind(s.id).bind(s.generation).bind(s.workspace_seq).bind(s.synced_seq).bind(s.grant_seq).bind(s.pointer_seq).bind(s.instance_id)
            .bind(s.current_checkpoint_id).bind(s.diverged).bind(s.unsaved_loss).bind(s.process_open).bind(now).bind(s.given_up_seq)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if saved == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// A page; `status` is the current instance's.
    pub async fn sandboxes(&mut self, organization: Uuid, filters: &Filters, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Sandbox>> {
        let (time, id) = page::start(cursor);
        let sql = if self.is_sqlite() {
            "SELECT s.* FROM sandbox s LEFT JOIN instance i ON i.id = s.instance_id
             WHERE s.organization_id = $1 AND s.deleted_at IS NULL AND (s.created_at, s.id) < ($2, $3) AND ($4 IS NULL OR s.environment_id = $4)
               AND ($5 IS NULL OR $5 LIKE '%,' || i.status || ',%')
               AND NOT EXISTS (SELECT 1 FROM json_each($6) f WHERE NOT EXISTS
                   (SELECT 1 FROM json_each(s.scope) p WHERE p.key = f.key AND p.value = f.value))
             ORDER BY s.created_at DESC, s.id DESC LIMIT $7"
        } else {
            "SELECT s.* FROM sandbox s LEFT JOIN instance i ON i.id = s.instance_id
             WHERE s.organization_id = $1 AND s.deleted_at IS NULL AND (s.created_at, s.id) < ($2, $3) AND ($4 IS NULL OR s.environment_id = $4)
               AND ($5 IS NULL OR $5 LIKE '%,' || i.status || ',%') AND ($6 IS NULL OR s.scope @> $6)
             ORDER BY s.created_at DESC, s.id DESC LIMIT $7"
        };
        Ok(on!(self, c => sqlx::query_as(sql).bind(organization).bind(time).bind(id).bind(filters.environment).bind(filters.status_list())
            .bind(Filters::pairs(&filters.scope)).bind(limit).fetch_all(c).await)?)
    }
}
