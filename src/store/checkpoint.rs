//! Checkpoints: the rows, the pointer's row, and which of them may leave.

use uuid::Uuid;

use super::error::StoreError;
use super::{Cursor, Filters, Result, Tx, page};
use crate::clock::Time;
use crate::model::checkpoint::{Checkpoint, Status};

/// The columns of a checkpoint joined with its artifact and its sandbox's pointer.
macro_rules! select_checkpoint {
    ($rest:literal) => {
        concat!(
            "SELECT c.*, a.size_bytes, a.archive_sha256, a.tree, a.object_key, (s.current_checkpoint_id IS NOT NULL AND s.current_checkpoint_id = c.id) AS current ",
            "FROM checkpoint c JOIN sandbox s ON s.id = c.sandbox_id LEFT JOIN artifact a ON a.id = c.artifact_id ",
            $rest
        )
    };
}

impl Tx {
    /// Stores a new checkpoint row.
    pub async fn insert_checkpoint(&mut self, k: &Checkpoint) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO checkpoint (id, organization_id, sandbox_id, instance_id, generation, workspace_seq, kind, status, artifact_id, parent_id,
                 provider_ref, workspace_revision, consistency, warnings, source_turn_id, source_tool_call_id, attached_at, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $18)")
            .bind(k.id).bind(k.organization_id).bind(k.sandbox_id).bind(k.instance_id).bind(k.generation).bind(k.workspace_seq).bind(k.kind)
            .bind(k.status).bind(k.artifact_id).bind(k.parent_id).bind(&k.provider_ref).bind(&k.workspace_revision).bind(k.consistency)
            .bind(&k.warnings).bind(&k.source_turn_id).bind(&k.source_tool_call_id).bind(k.attached_at).bind(k.created_at)
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Writes a row back under its sandbox's lock, if it still has the status the change was decided on.
    pub async fn save_checkpoint(&mut self, k: &Checkpoint, was: Status, now: Time) -> Result<()> {
        let saved = on!(self, c => sqlx::query(
            "UPDATE checkpoint SET status = $3, artifact_id = $4, workspace_revision = $5, consistency = $6, warnings = $7, failure_code = $8,
                 attached_at = $9, detached_at = $10, superseded_by = $11, updated_at = $12,
                 provider_ref = $13, expires_at = $14
             WHERE id = $1 AND status = $2")
            .bind(k.id).bind(was).bind(k.status).bind(k.artifact_id).bind(&k.workspace_revision).bind(k.consistency).bind(&k.warnings)
            .bind(&k.failure_code).bind(k.attached_at).bind(k.detached_at).bind(k.superseded_by).bind(now)
            .bind(&k.provider_ref).bind(k.expires_at)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if saved == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// By id, of this organization.
    pub async fn checkpoint(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Checkpoint>> {
        Ok(
            on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.organization_id = $1 AND c.id = $2")).bind(organization).bind(id).fetch_optional(c).await)?,
        )
    }

    /// By revision, of this sandbox.
    pub async fn checkpoint_by_revision(&mut self, sandbox: Uuid, revision: &str) -> Result<Option<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.workspace_revision = $2"))
            .bind(sandbox).bind(revision).fetch_optional(c).await)?)
    }

    /// The row the pointer names.
    pub async fn current_checkpoint(&mut self, sandbox: Uuid) -> Result<Option<Checkpoint>> {
        Ok(
            on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.id = s.current_checkpoint_id")).bind(sandbox).fetch_optional(c).await)?,
        )
    }

    /// Attached rows of a sandbox, newest first by attachment, then by creation.
    pub async fn attached_checkpoints(&mut self, sandbox: Uuid) -> Result<Vec<Checkpoint>> {
        Ok(
            on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.status = 'attached' ORDER BY c.attached_at DESC, c.created_at DESC, c.id DESC"))
            .bind(sandbox).fetch_all(c).await)?,
        )
    }

    /// A sandbox's rows that are still `capturing`.
    pub async fn captures_under_way(&mut self, sandbox: Uuid) -> Result<Vec<Checkpoint>> {
        Ok(
            on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.status = 'capturing' ORDER BY c.created_at, c.id"))
            .bind(sandbox).fetch_all(c).await)?,
        )
    }

    /// Every row that is not being captured, newest first by the clock it is kept by.
    pub async fn settled_checkpoints(&mut self, sandbox: Uuid) -> Result<Vec<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!(
            "WHERE c.sandbox_id = $1 AND c.status <> 'capturing' ORDER BY COALESCE(c.attached_at, c.created_at) DESC, c.created_at DESC, c.id DESC"))
            .bind(sandbox).fetch_all(c).await)?)
    }

    /// Sandboxes with a row left `capturing` by a capturer that is gone: nobody holds the gate it was taken behind.
    pub async fn abandoned_captures(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT DISTINCT c.sandbox_id FROM checkpoint c LEFT JOIN claim k ON k.subject_id = c.sandbox_id AND k.kind = 'gate'
             WHERE c.status = 'capturing' AND (k.claimed_until IS NULL OR k.claimed_until <= $1) LIMIT $2")
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// A page of a sandbox's checkpoints.
    pub async fn checkpoints(&mut self, sandbox: Uuid, filters: &Filters, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Checkpoint>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!(
            "WHERE c.sandbox_id = $1 AND (c.created_at, c.id) < ($2, $3) AND ($4 IS NULL OR $4 LIKE '%,' || c.status || ',%')
               AND ($5 IS NULL OR c.source_turn_id = $5) AND ($6 IS NULL OR c.source_tool_call_id = $6)
             ORDER BY c.created_at DESC, c.id DESC LIMIT $7"))
            .bind(sandbox).bind(time).bind(id).bind(filters.status_list()).bind(&filters.source_turn).bind(&filters.source_tool_call)
            .bind(limit).fetch_all(c).await)?)
    }
}

impl Tx {
    /// Never-attached and detached rows whose clock is before the cutoff, oldest first.
    pub async fn collectable_checkpoints(&mut self, sandbox: Uuid, before: Time, limit: i64) -> Result<Vec<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!(
            "WHERE c.sandbox_id = $1 AND c.status IN ('recorded', 'superseded', 'detached') AND (s.current_checkpoint_id IS NULL OR s.current_checkpoint_id <> c.id)
               AND COALESCE(c.detached_at, c.created_at) < $2 ORDER BY COALESCE(c.detached_at, c.created_at), c.id LIMIT $3"))
            .bind(sandbox).bind(before).bind(limit).fetch_all(c).await)?)
    }

    /// Whether a pending lease, a restore or a recovery is being filled from this checkpoint.
    pub async fn is_being_restored(&mut self, checkpoint: Uuid, now: Time) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM lease WHERE status = 'pending' AND plan ->> 'restore' = $1)
                  + (SELECT count(*) FROM claim WHERE kind IN ('gate', 'recover') AND detail IN ('restore ' || $1, 'recover ' || $1) AND claimed_until > $2)")
            .bind(checkpoint.to_string()).bind(now).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Every checkpoint of a sandbox with its artifact.
    pub async fn checkpoint_artifacts(&mut self, sandbox: Uuid) -> Result<Vec<(Uuid, Option<Uuid>)>> {
        Ok(on!(self, c => sqlx::query_as("SELECT id, artifact_id FROM checkpoint WHERE sandbox_id = $1").bind(sandbox).fetch_all(c).await)?)
    }

    /// Removes a row that the pointer does not name; the foreign key refuses any other.
    pub async fn delete_checkpoint(&mut self, id: Uuid) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM checkpoint WHERE id = $1").bind(id).execute(c).await.map(|_| ()))?;
        Ok(())
    }
}
