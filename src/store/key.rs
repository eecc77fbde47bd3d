//! API keys; only a hash of the secret is stored.

use uuid::Uuid;

use super::{Result, Tx};
use crate::clock::Time;
use crate::model::key::{ApiKey, Scope};

#[derive(sqlx::FromRow)]
struct Row {
    id: Uuid,
    organization_id: Uuid,
    name: String,
    scopes: String,
    expires_at: Option<Time>,
    created_at: Time,
}

/// A key with what only the store knows of it.
#[derive(Clone, Debug)]
pub struct StoredKey {
    /// The key.
    pub key: ApiKey,
    /// What is stored of its secret.
    pub secret_hash: String,
    /// From when it was revoked.
    pub revoked_at: Option<Time>,
}

#[derive(sqlx::FromRow)]
struct Whole {
    #[sqlx(flatten)]
    row: Row,
    secret_hash: String,
    revoked_at: Option<Time>,
}

impl StoredKey {
    /// Whether it works at this moment.
    pub fn works(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.key.expires_at.is_none_or(|at| at > now)
    }
}

impl From<Row> for ApiKey {
    fn from(row: Row) -> Self {
        let scopes = row.scopes.split(',').filter_map(Scope::parse).collect();
        Self {
            id: row.id,
            organization_id: row.organization_id,
            name: row.name,
            scopes,
            expires_at: row.expires_at,
            created_at: row.created_at,
        }
    }
}

impl Tx {
    /// Stores a key under the hash of its secret.
    pub async fn insert_key(&mut self, key: &ApiKey, secret_hash: &str) -> Result<()> {
        let scopes = key.scopes.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(",");
        on!(self, c => sqlx::query(
            "INSERT INTO api_key (id, organization_id, name, scopes, secret_hash, expires_at, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)")
            .bind(key.id).bind(key.organization_id).bind(&key.name).bind(scopes).bind(secret_hash).bind(key.expires_at).bind(key.created_at)
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// The key with this hash, unless it is revoked or over.
    pub async fn key_by_hash(&mut self, secret_hash: &str) -> Result<Option<ApiKey>> {
        let now = self.now().await?;
        let row: Option<Row> = on!(self, c => sqlx::query_as(
            "SELECT id, organization_id, name, scopes, expires_at, created_at FROM api_key
             WHERE secret_hash = $1 AND (revoked_at IS NULL OR revoked_at > $2) AND (expires_at IS NULL OR expires_at > $2)")
            .bind(secret_hash).bind(now).fetch_optional(c).await)?;
        Ok(row.map(Into::into))
    }

    /// The key with this id, unless it is revoked.
    pub async fn key(&mut self, id: Uuid) -> Result<Option<ApiKey>> {
        let row: Option<Row> = on!(self, c => sqlx::query_as(
            "SELECT id, organization_id, name, scopes, expires_at, created_at FROM api_key WHERE id = $1 AND revoked_at IS NULL")
            .bind(id).fetch_optional(c).await)?;
        Ok(row.map(Into::into))
    }

    /// Whether any key exists.
    pub async fn has_keys(&mut self) -> Result<bool> {
        let count: i64 =
            on!(self, c => sqlx::query_scalar("SELECT count(*) FROM (SELECT 1 AS one FROM api_key LIMIT 1) AS k").fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// A page of an organization's working keys.
    pub async fn keys(&mut self, organization: Uuid, cursor: Option<super::Cursor>, limit: i64) -> Result<Vec<ApiKey>> {
        let (time, id) = super::page::start(cursor);
        let now = self.now().await?;
        let rows: Vec<Row> = on!(self, c => sqlx::query_as(
            "SELECT id, organization_id, name, scopes, expires_at, created_at FROM api_key
             WHERE organization_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $5) AND (created_at, id) < ($2, $3)
             ORDER BY created_at DESC, id DESC LIMIT $4")
            .bind(organization).bind(time).bind(id).bind(limit).bind(now).fetch_all(c).await)?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// By id, whoever's it is and whether it works or not.
    pub async fn stored_key(&mut self, id: Uuid) -> Result<Option<StoredKey>> {
        let found: Option<Whole> = on!(self, c => sqlx::query_as("SELECT * FROM api_key WHERE id = $1").bind(id).fetch_optional(c).await)?;
        Ok(found.map(|w| StoredKey { key: w.row.into(), secret_hash: w.secret_hash, revoked_at: w.revoked_at }))
    }

    /// Lets a key end at this moment, unless it ends earlier.
    pub async fn expire_key(&mut self, id: Uuid, at: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE api_key SET expires_at = $2 WHERE id = $1 AND (expires_at IS NULL OR expires_at > $2)")
            .bind(id).bind(at).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Revokes a key; false when it was revoked already.
    pub async fn revoke_key(&mut self, id: Uuid, now: Time) -> Result<bool> {
        let revoked = on!(self, c => sqlx::query("UPDATE api_key SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
            .bind(id).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(revoked == 1)
    }

    /// Revokes every key of an organization and returns the hashes of their secrets.
    pub async fn revoke_keys_of(&mut self, organization: Uuid, now: Time) -> Result<Vec<String>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "UPDATE api_key SET revoked_at = $2 WHERE organization_id = $1 AND revoked_at IS NULL RETURNING secret_hash")
            .bind(organization).bind(now).fetch_all(c).await)?)
    }

    /// Whether the key's organization has another working admin key that lasts at least as long.
    pub async fn has_other_admin_key(&mut self, key: &ApiKey, now: Time) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM api_key WHERE organization_id = $1 AND id <> $2 AND ',' || scopes || ',' LIKE '%,admin,%'
               AND revoked_at IS NULL AND (expires_at IS NULL OR (expires_at > $3 AND expires_at >= $4))")
            .bind(key.organization_id).bind(key.id).bind(now).bind(key.expires_at).fetch_one(c).await)?;
        Ok(count > 0)
    }
}
