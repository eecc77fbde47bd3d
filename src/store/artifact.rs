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
    /// Provider and binding of a snapshot; bytes in the archive store have none.
    pub home: Option<(&'a str, &'a str)>,
}

/// A deletion that is due.
#[derive(Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct DueDeletion {
    pub id: Uuid,
    pub object_key: String,
    pub attempts: i64,
    pub provider: Option<String>,
    pub binding: Option<String>,
}

/// What is known once the bytes are stored and verified.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct StoredArtifact<'a> {
    pub archive_sha256: &'a str,
    pub size_bytes: Option<i64>,
    pub tree: Option<&'a Tree>,
    /// The provider whose receipt it is.
    pub provider: Option<&'a str>,
    /// What the provider calls it, if it was not foretold.
    pub named: Option<&'a str>,
}

impl Tx {
    /// Registers an artifact before its bytes are stored. Unless it is published, they are deleted from `doomed_at` on.
    pub async fn register_artifact(&mut self, a: &NewArtifact<'_>, doomed_at: Time, now: Time) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO artifact (id, organization_id, sandbox_id, kind, object_key, provider, binding, status, next_attempt_at, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $8, $9, 'deleting', $6, $7, $7)")
            .bind(a.id).bind(a.organization_id).bind(a.sandbox_id).bind(a.kind).bind(a.object_key).bind(doomed_at).bind(now)
            .bind(a.home.map(|home| home.0)).bind(a.home.map(|home| home.1))
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Reprieves an artifact whose bytes are stored and verified. `Moved` once a deletion was begun: then the bytes may be gone.
    pub async fn publish_artifact(&mut self, id: Uuid, stored: &StoredArtifact<'_>, now: Time) -> Result<()> {
        let published = on!(self, c => sqlx::query(
            "UPDATE artifact SET status = 'stored', next_attempt_at = NULL, archive_sha256 = $2, size_bytes = $3, tree = $4,
                 provider = COALESCE($5, provider), object_key = COALESCE($7, object_key), updated_at = $6
             WHERE id = $1 AND status = 'deleting' AND attempts = 0")
            .bind(id).bind(stored.archive_sha256).bind(stored.size_bytes).bind(stored.tree.map(Json)).bind(stored.provider).bind(now).bind(stored.named)
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

    /// The binding of a snapshot of this organization that is not to be deleted.
    pub async fn kept_snapshot(&mut self, organization: Uuid, provider: &str, snapshot_ref: &str) -> Result<Option<String>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT binding FROM artifact WHERE kind = 'provider_native' AND object_key = $3 AND organization_id = $1 AND provider = $2
               AND binding IS NOT NULL AND status = 'stored'")
            .bind(organization).bind(provider).bind(snapshot_ref).fetch_optional(c).await)?)
    }

    /// Artifacts whose deletion is due.
    pub async fn artifacts_to_delete(&mut self, now: Time, limit: i64) -> Result<Vec<DueDeletion>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT id, object_key, attempts, provider, binding FROM artifact WHERE status = 'deleting' AND next_attempt_at <= $1 ORDER BY next_attempt_at LIMIT $2")
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
