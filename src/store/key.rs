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
        let rows: Vec<Row> = on!(self, c => sqlx::query_as(
            "SELECT id, organization_id, name, scopes, expires_at, created_at FROM api_key
             WHERE organization_id = $1 AND revoked_at IS NULL AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4")
            .bind(organization).bind(time).bind(id).bind(limit).fetch_all(c).await)?;
        Ok(rows.into_iter().map(Into::into).collect())
    }
}
