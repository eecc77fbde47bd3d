//! Secrets, sealed; which rows of the ledger name them; and the check value of the key.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{Cursor, Result, Tx, page};
use crate::clock::Time;
use crate::model::secret::{Reference, Secret};

/// One version, still sealed.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the tables")]
pub struct Sealed {
    pub secret_id: Uuid,
    pub version: i64,
    pub sealed: Vec<u8>,
}

impl Tx {
    /// Counts a secret up to its next version, made if there is none of this name; the boolean says whether it is new.
    pub async fn next_secret_version(&mut self, id: Uuid, organization: Uuid, name: &str, now: Time) -> Result<(Secret, bool)> {
        let made = on!(self, c => sqlx::query(
            "INSERT INTO secret (id, organization_id, name, version, created_at, updated_at) VALUES ($1, $2, $3, 0, $4, $4)
             ON CONFLICT (organization_id, name) DO NOTHING")
            .bind(id).bind(organization).bind(name).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        let row = on!(self, c => sqlx::query_as(
            "UPDATE secret SET version = version + 1, updated_at = $3 WHERE organization_id = $1 AND name = $2
             RETURNING id, organization_id, name, version, created_at, updated_at")
            .bind(organization).bind(name).bind(now).fetch_one(c).await)?;
        Ok((row, made == 1))
    }

    /// Stores a version's sealed value.
    pub async fn insert_secret_version(&mut self, secret: &Secret, sealed: &[u8], now: Time) -> Result<()> {
        on!(self, c => sqlx::query("INSERT INTO secret_version (secret_id, version, sealed, created_at) VALUES ($1, $2, $3, $4)")
            .bind(secret.id).bind(secret.version).bind(sealed).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// A page of an organization's secrets.
    pub async fn secrets(&mut self, organization: Uuid, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Secret>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM secret WHERE organization_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4")
            .bind(organization).bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }

    /// How many secrets an organization has.
    pub async fn count_secrets(&mut self, organization: Uuid) -> Result<i64> {
        Ok(on!(self, c => sqlx::query_scalar("SELECT count(*) FROM secret WHERE organization_id = $1")
            .bind(organization).fetch_one(c).await)?)
    }

    /// Locks a secret against its next version, its deletion, and every row that is to name it.
    pub async fn lock_secret(&mut self, organization: Uuid, name: &str) -> Result<Option<Secret>> {
        Ok(on!(self, c => sqlx::query_as(
            "UPDATE secret SET version = version WHERE organization_id = $1 AND name = $2
             RETURNING id, organization_id, name, version, created_at, updated_at")
            .bind(organization).bind(name).fetch_optional(c).await)?)
    }

    /// How many rows of the ledger that are not over name a secret.
    pub async fn unfinished_naming_secret(&mut self, organization: Uuid, name: &str) -> Result<i64> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM instance_secret s JOIN instance i ON i.id = s.instance_id
             WHERE s.organization_id = $1 AND s.name = $2 AND i.status NOT IN ('destroyed', 'lost')")
            .bind(organization).bind(name).fetch_one(c).await)?)
    }

    /// Deletes a locked secret with all its versions.
    pub async fn delete_secret(&mut self, id: Uuid) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM secret_version WHERE secret_id = $1").bind(id).execute(c).await.map(|_| ()))?;
        on!(self, c => sqlx::query("DELETE FROM secret WHERE id = $1").bind(id).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Deletes every secret of an organization.
    pub async fn delete_secrets_of(&mut self, organization: Uuid) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM secret_version WHERE secret_id IN (SELECT id FROM secret WHERE organization_id = $1)")
            .bind(organization).execute(c).await.map(|_| ()))?;
        on!(self, c => sqlx::query("DELETE FROM secret WHERE organization_id = $1").bind(organization).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// The secret and version that a reference means now, if there is one. It is not deleted before this transaction is over.
    pub async fn pinned_secret(&mut self, organization: Uuid, reference: &Reference) -> Result<Option<(Uuid, i64)>> {
        // One statement would judge a version that was counted up meanwhile by the row of the former one.
        let sql = if self.is_sqlite() { STANDING } else { STANDING_LOCKED };
        let found: Option<(Uuid, i64)> =
            on!(self, c => sqlx::query_as(sql).bind(organization).bind(&reference.name).fetch_optional(c).await)?;
        let (Some((id, _)), Some(version)) = (found, reference.version) else { return Ok(found) };
        let exists: bool = on!(self, c => sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM secret_version WHERE secret_id = $1 AND version = $2)")
            .bind(id).bind(version).fetch_one(c).await)?;
        Ok(exists.then_some((id, version)))
    }

    /// The sealed value that a reference means now.
    pub async fn sealed_secret(&mut self, organization: Uuid, reference: &Reference) -> Result<Option<Sealed>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT v.secret_id, v.version, v.sealed FROM secret s JOIN secret_version v ON v.secret_id = s.id
             WHERE s.organization_id = $1 AND s.name = $2 AND v.version = COALESCE($3, s.version)")
            .bind(organization).bind(&reference.name).bind(reference.version).fetch_optional(c).await)?)
    }

    /// Records which secrets a row of the ledger names.
    pub async fn name_secrets(&mut self, instance: Uuid, organization: Uuid, names: &BTreeSet<String>) -> Result<()> {
        for name in names {
            on!(self, c => sqlx::query("INSERT INTO instance_secret (instance_id, organization_id, name) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
                .bind(instance).bind(organization).bind(name).execute(c).await.map(|_| ()))?;
        }
        Ok(())
    }

    /// The check value of the key that the stored secrets are sealed with; none before the first one.
    pub async fn secret_check(&mut self) -> Result<Option<Vec<u8>>> {
        let check: Option<Option<Vec<u8>>> = on!(self, c => sqlx::query_scalar(
            "SELECT secret_check FROM deployment WHERE one = 1 AND EXISTS (SELECT 1 FROM secret_version)").fetch_optional(c).await)?;
        Ok(check.flatten())
    }

    /// Makes this the key's check value; false while secrets are sealed with another key. Holds the deployment's row.
    pub async fn settle_secret_check(&mut self, check: &[u8]) -> Result<bool> {
        // The lock first: what a statement that waits for it looks up elsewhere is from before it waited.
        self.touch().await?;
        let settled = on!(self, c => sqlx::query(
            "UPDATE deployment SET secret_check = $1
             WHERE one = 1 AND (secret_check IS NULL OR secret_check = $1 OR NOT EXISTS (SELECT 1 FROM secret_version))")
            .bind(check).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(settled == 1)
    }
}

const STANDING: &str = "SELECT id, version FROM secret WHERE organization_id = $1 AND name = $2";
const STANDING_LOCKED: &str = "SELECT id, version FROM secret WHERE organization_id = $1 AND name = $2 FOR SHARE";
