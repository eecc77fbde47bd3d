//! Checkpoints and the artifacts behind them.

use sqlx::types::Json;
use uuid::Uuid;

use super::error::StoreError;
use super::{Cursor, Filters, Result, Tx, page};
use crate::clock::Time;
use crate::model::checkpoint::{Checkpoint, Kind, Status, Tree};

/// Bytes, or a provider's object, that must one day be deleted.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct NewArtifact<'a> {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub sandbox_id: Uuid,
    pub kind: Kind,
    pub object_key: &'a str,
    pub archive_sha256: &'a str,
    pub size_bytes: i64,
    pub tree: &'a Tree,
}

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
    /// Registers an artifact, before anything that names it is published.
    pub async fn insert_artifact(&mut self, a: &NewArtifact<'_>, now: Time) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO artifact (id, organization_id, sandbox_id, kind, object_key, archive_sha256, size_bytes, tree, status, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'stored', $9, $9)")
            .bind(a.id).bind(a.organization_id).bind(a.sandbox_id).bind(a.kind).bind(a.object_key).bind(a.archive_sha256).bind(a.size_bytes)
            .bind(Json(a.tree)).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

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
                 attached_at = $9, detached_at = $10, superseded_by = $11, updated_at = $12
             WHERE id = $1 AND status = $2")
            .bind(k.id).bind(was).bind(k.status).bind(k.artifact_id).bind(&k.workspace_revision).bind(k.consistency).bind(&k.warnings)
            .bind(&k.failure_code).bind(k.attached_at).bind(k.detached_at).bind(k.superseded_by).bind(now)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if saved == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// By id, of this organization.
    pub async fn checkpoint(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.organization_id = $1 AND c.id = $2")).bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// By revision, of this sandbox.
    pub async fn checkpoint_by_revision(&mut self, sandbox: Uuid, revision: &str) -> Result<Option<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.workspace_revision = $2"))
            .bind(sandbox).bind(revision).fetch_optional(c).await)?)
    }

    /// The row the pointer names.
    pub async fn current_checkpoint(&mut self, sandbox: Uuid) -> Result<Option<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.id = s.current_checkpoint_id")).bind(sandbox).fetch_optional(c).await)?)
    }

    /// Attached rows of a sandbox, newest first by attachment, then by creation.
    pub async fn attached_checkpoints(&mut self, sandbox: Uuid) -> Result<Vec<Checkpoint>> {
        Ok(on!(self, c => sqlx::query_as(select_checkpoint!("WHERE c.sandbox_id = $1 AND c.status = 'attached' ORDER BY c.attached_at DESC, c.created_at DESC, c.id DESC"))
            .bind(sandbox).fetch_all(c).await)?)
    }

    /// Rows left `capturing` by a capturer that is gone; the gate's holder marks them failed.
    pub async fn fail_abandoned_captures(&mut self, sandbox: Uuid, except: Option<Uuid>, now: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query(
            "UPDATE checkpoint SET status = 'failed', failure_code = 'capturer_lost', updated_at = $3
             WHERE sandbox_id = $1 AND status = 'capturing' AND ($2 IS NULL OR id <> $2)")
            .bind(sandbox).bind(except).bind(now).execute(c).await.map(|d| d.rows_affected()))?)
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

    /// Object keys that have a row, among those with this prefix, for the sweep of unpublished objects.
    pub async fn object_keys(&mut self, prefix: &str) -> Result<Vec<String>> {
        Ok(on!(self, c => sqlx::query_scalar("SELECT object_key FROM artifact WHERE object_key LIKE $1 || '%' AND status <> 'deleted'")
            .bind(prefix).fetch_all(c).await)?)
    }
}
