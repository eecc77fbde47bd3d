//! Organizations, and the one row that is the deployment itself.

use uuid::Uuid;

use super::{Result, Tx};
use crate::clock::Time;

/// The deployment: who we are to providers, and what lease tokens are signed with.
#[derive(Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Deployment {
    pub id: Uuid,
    pub signing_key: Vec<u8>,
}

/// A tenant.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Organization {
    pub id: Uuid,
    pub name: String,
    pub created_at: Time,
}

impl Tx {
    /// The deployment's row.
    pub async fn deployment(&mut self) -> Result<Deployment> {
        Ok(on!(self, c => sqlx::query_as("SELECT id, signing_key FROM deployment").fetch_one(c).await)?)
    }

    /// The organization of this name, made if there is none; the boolean says whether it is new.
    pub async fn ensure_organization(&mut self, name: &str, now: Time) -> Result<(Organization, bool)> {
        self.ensure_organization_as(crate::id::new(), name, now).await
    }

    /// The same, with the id that a new one gets.
    pub async fn ensure_organization_as(&mut self, id: Uuid, name: &str, now: Time) -> Result<(Organization, bool)> {
        let made = on!(self, c => sqlx::query("INSERT INTO organization (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING")
            .bind(id).bind(name).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        let row =
            on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE name = $1").bind(name).fetch_one(c).await)?;
        Ok((row, made == 1))
    }

    /// The organization with this id.
    pub async fn organization(&mut self, id: Uuid) -> Result<Option<Organization>> {
        Ok(on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE id = $1").bind(id).fetch_optional(c).await)?)
    }

    /// The organization with this name.
    pub async fn organization_named(&mut self, name: &str) -> Result<Option<Organization>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT id, name, created_at FROM organization WHERE name = $1").bind(name).fetch_optional(c).await)?,
        )
    }

    /// A page of organizations.
    pub async fn organizations(&mut self, cursor: Option<super::Cursor>, limit: i64) -> Result<Vec<Organization>> {
        let (time, id) = super::page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT id, name, created_at FROM organization WHERE (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3")
            .bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }
}

impl Tx {
    /// A real write that changes nothing.
    pub async fn touch(&mut self) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE deployment SET created_at = created_at WHERE one = 1").execute(c).await.map(|_| ()))?;
        Ok(())
    }
}
