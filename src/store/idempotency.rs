//! Rows of idempotency keys: whose request it is, what it was, the id it names its first resource by, and how it was answered.

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::{Claimed, Result, Tx};
use crate::clock::Time;
use crate::model::resource::{Kind, Resource};

/// What a key belongs to.
#[derive(Clone, Debug)]
pub struct KeyOf<'a> {
    /// The tenant.
    pub organization: Uuid,
    /// The API key's id, or the lease of a token.
    pub credential: Uuid,
    /// `POST`.
    pub method: &'a str,
    /// The request's path.
    pub path: &'a str,
    /// What the caller sent.
    pub key: &'a str,
}

/// A key as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct KeyRow {
    pub request_sha256: String,
    pub claim_id: Uuid,
    pub resource_kind: Option<Kind>,
    pub resource_id: Uuid,
    pub http_status: Option<i64>,
    pub answer: Option<Json<Value>>,
    pub created_at: Time,
}

impl Tx {
    /// Writes a key with the id its request will name its first resource by; false if the key exists.
    pub async fn insert_idempotency(&mut self, of: &KeyOf<'_>, request_sha256: &str, claim: Uuid, id: Uuid, now: Time) -> Result<bool> {
        let made = on!(self, c => sqlx::query(
            "INSERT INTO idempotency (organization_id, credential, method, path, key, request_sha256, claim_id, resource_id, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (organization_id, credential, method, path, key) DO NOTHING")
            .bind(of.organization).bind(of.credential).bind(of.method).bind(of.path).bind(of.key).bind(request_sha256).bind(claim).bind(id)
            .bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(made == 1)
    }

    /// The key's row, locked.
    pub async fn lock_idempotency(&mut self, of: &KeyOf<'_>) -> Result<Option<KeyRow>> {
        Ok(on!(self, c => sqlx::query_as(
            "UPDATE idempotency SET key = key WHERE organization_id = $1 AND credential = $2 AND method = $3 AND path = $4 AND key = $5
             RETURNING request_sha256, claim_id, resource_kind, resource_id, http_status, answer, created_at")
            .bind(of.organization).bind(of.credential).bind(of.method).bind(of.path).bind(of.key).fetch_optional(c).await)?)
    }

    /// Locks the row of a claim: always the row first and then the claim, here as where a request begins.
    pub async fn lock_idempotency_of(&mut self, claimed: &Claimed) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE idempotency SET key = key WHERE claim_id = $1").bind(claimed.subject).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Writes down how the request was answered. The claim on it was proven in this transaction.
    pub async fn finish_idempotency(
        &mut self,
        claimed: &Claimed,
        resource: Option<Resource>,
        answer: Option<Value>,
        http_status: u16,
        now: Time,
    ) -> Result<()> {
        on!(self, c => sqlx::query(
            "UPDATE idempotency SET resource_kind = $2, resource_id = coalesce($3, resource_id), http_status = $4, answer = $5, finished_at = $6
             WHERE claim_id = $1 AND finished_at IS NULL")
            .bind(claimed.subject).bind(resource.map(|r| r.kind)).bind(resource.map(|r| r.id)).bind(i64::from(http_status))
            .bind(answer.map(Json)).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Forgets one key.
    pub async fn forget_idempotency(&mut self, claim: Uuid) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM idempotency WHERE claim_id = $1").bind(claim).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Forgets keys from before this moment whose requests are over.
    pub async fn forget_idempotency_before(&mut self, before: Time, now: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query(
            "DELETE FROM idempotency WHERE created_at < $1 AND NOT EXISTS (
                 SELECT 1 FROM claim k WHERE k.subject_id = idempotency.claim_id AND k.kind = 'idempotency' AND k.claimed_until > $2)")
            .bind(before).bind(now).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// What exists under an id that was chosen before it was made.
    pub async fn resource_named(&mut self, id: Uuid) -> Result<Option<Kind>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT 'lease' FROM lease WHERE id = $1
             UNION ALL SELECT CASE kind WHEN 'exec' THEN 'exec' ELSE 'file' END FROM operation WHERE id = $1
             UNION ALL SELECT 'checkpoint' FROM checkpoint WHERE id = $1
             UNION ALL SELECT 'environment' FROM environment WHERE id = $1
             UNION ALL SELECT 'organization' FROM organization WHERE id = $1
             UNION ALL SELECT 'api_key' FROM api_key WHERE id = $1
             UNION ALL SELECT 'plugin' FROM plugin WHERE id = $1 AND deleted_at IS NULL")
            .bind(id).fetch_optional(c).await)?)
    }
}
