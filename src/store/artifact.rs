//! Artifacts: bytes that must one day be deleted. Each is registered as due for deletion before a byte of it exists, and only
//! publication reprieves it: whoever dies when, no object is without a row that will act on it.

use sqlx::types::Json;
use uuid::Uuid;

use super::error::StoreError;
use super::{Result, Tx};
use crate::clock::Time;
use crate::model::checkpoint::{Kind, Tree};

/// What is known before the bytes are.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct NewArtifact<'a> {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub sandbox_id: Uuid,
    pub kind: Kind,
    pub object_key: &'a str,
}

/// What is known once the bytes are stored and verified.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct StoredArtifact<'a> {
    pub archive_sha256: &'a str,
    pub size_bytes: i64,
    pub tree: Option<&'a Tree>,
    /// The provider whose receipt it is.
    pub provider: Option<&'a str>,
}

impl Tx {
    /// Registers an artifact before its bytes are stored. Unless it is published, they are deleted from `doomed_at` on.
    pub async fn register_artifact(&mut self, a: &NewArtifact<'_>, doomed_at: Time, now: Time) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO artifact (id, organization_id, sandbox_id, kind, object_key, status, next_attempt_at, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, 'deleting', $6, $7, $7)")
            .bind(a.id).bind(a.organization_id).bind(a.sandbox_id).bind(a.kind).bind(a.object_key).bind(doomed_at).bind(now)
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Reprieves an artifact whose bytes are stored and verified. `Moved` once a deletion was begun: then the bytes may be gone.
    pub async fn publish_artifact(&mut self, id: Uuid, stored: &StoredArtifact<'_>, now: Time) -> Result<()> {
        let published = on!(self, c => sqlx::query(
            "UPDATE artifact SET status = 'stored', next_attempt_at = NULL, archive_sha256 = $2, size_bytes = $3, tree = $4, provider = $5, updated_at = $6
             WHERE id = $1 AND status = 'deleting' AND attempts = 0")
            .bind(id).bind(stored.archive_sha256).bind(stored.size_bytes).bind(stored.tree.map(Json)).bind(stored.provider).bind(now)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if published == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// An artifact of this kind stored under this sandbox, by its SHA-256, with its key.
    pub async fn stored_artifact(&mut self, sandbox: Uuid, kind: Kind, archive_sha256: &str) -> Result<Option<(Uuid, String)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT id, object_key FROM artifact WHERE sandbox_id = $1 AND archive_sha256 = $2 AND kind = $3 AND status = 'stored'
             ORDER BY created_at DESC, id DESC LIMIT 1")
            .bind(sandbox).bind(archive_sha256).bind(kind).fetch_optional(c).await)?)
    }

    /// Keeps an artifact from deletion until this transaction has committed the row that needs it; false when it is doomed already.
    pub async fn hold_artifact(&mut self, id: Uuid) -> Result<bool> {
        let held = on!(self, c => sqlx::query("UPDATE artifact SET status = status WHERE id = $1 AND status = 'stored'")
            .bind(id).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(held == 1)
    }

    /// Lets an artifact enter the deletion ledger once its last row is gone. It is locked first, so that the question whether a row
    /// needs it is asked after every transaction that held it.
    pub async fn doom_artifact_without_rows(&mut self, id: Uuid, now: Time) -> Result<bool> {
        if !self.hold_artifact(id).await? {
            return Ok(false);
        }
        let doomed = on!(self, c => sqlx::query(
            "UPDATE artifact SET status = 'deleting', next_attempt_at = $2, updated_at = $2
             WHERE id = $1 AND status = 'stored' AND NOT EXISTS (SELECT 1 FROM checkpoint k WHERE k.artifact_id = artifact.id)")
            .bind(id).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(doomed == 1)
    }

    /// Uploads that nobody recorded, published before this moment.
    pub async fn unrecorded_artifacts(&mut self, before: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT id FROM artifact WHERE status = 'stored' AND updated_at < $1 AND NOT EXISTS (SELECT 1 FROM checkpoint k WHERE k.artifact_id = artifact.id)
             ORDER BY updated_at LIMIT $2")
            .bind(before).bind(limit).fetch_all(c).await)?)
    }

    /// Makes a deletion that was not begun due now: nobody will publish the artifact any more.
    pub async fn hasten_deletion(&mut self, id: Uuid, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE artifact SET next_attempt_at = $2, updated_at = $2 WHERE id = $1 AND status = 'deleting' AND attempts = 0")
            .bind(id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Artifacts whose deletion is due: id, object key, attempts so far.
    pub async fn artifacts_to_delete(&mut self, now: Time, limit: i64) -> Result<Vec<(Uuid, String, i64)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT id, object_key, attempts FROM artifact WHERE status = 'deleting' AND next_attempt_at <= $1 ORDER BY next_attempt_at LIMIT $2")
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Begins a deletion that is still due: from here on nothing can publish the artifact. If this deleter dies, it is due again later.
    pub async fn begin_deletion(&mut self, id: Uuid, again_at: Time, now: Time) -> Result<bool> {
        let begun = on!(self, c => sqlx::query(
            "UPDATE artifact SET attempts = attempts + 1, next_attempt_at = $2, updated_at = $3 WHERE id = $1 AND status = 'deleting' AND next_attempt_at <= $3")
            .bind(id).bind(again_at).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(begun == 1)
    }

    /// Writes a confirmed deletion down.
    pub async fn settle_deletion(&mut self, id: Uuid, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE artifact SET status = 'deleted', next_attempt_at = NULL, updated_at = $2 WHERE id = $1 AND status = 'deleting'")
            .bind(id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Forgets deletions that were confirmed before this moment.
    pub async fn forget_deleted_artifacts(&mut self, before: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query(
            "DELETE FROM artifact WHERE status = 'deleted' AND updated_at < $1 AND NOT EXISTS (SELECT 1 FROM checkpoint k WHERE k.artifact_id = artifact.id)")
            .bind(before).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// Whether a row that is not a tombstone names this object.
    pub async fn is_ledgered(&mut self, object_key: &str) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar("SELECT count(*) FROM artifact WHERE kind IN ('portable_workspace', 'provider_native') AND object_key = $1 AND status <> 'deleted'")
            .bind(object_key).fetch_one(c).await)?;
        Ok(count > 0)
    }
}
