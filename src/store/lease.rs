//! Leases.

use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use super::backend::Inner;
use super::batch::begun;
use super::error::StoreError;
use super::event::NewEvent;
use super::{Cursor, Filters, Result, Store, Tx, due, page};
use crate::clock::Time;
use crate::model::instance::{self, Glance};
use crate::model::lease::Disposition;
use crate::model::lease::{Lease, Status};
use crate::model::sandbox::Sandbox;
use crate::model::scope::Scope;

/// A lease with what its reader is told of its environment and its sandbox, and the database's time.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the tables")]
pub struct JoinedLease {
    #[sqlx(flatten)]
    pub lease: Lease,
    pub environment_name: String,
    pub provider: String,
    pub retain_ms: i64,
    pub scope: Option<Json<Scope>>,
    pub server_time: Time,
    #[sqlx(flatten)]
    pub instance: JoinedInstance,
}

/// The instance of a joined lease; every column is null while it has none.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct JoinedInstance {
    pub instance_status: Option<instance::Status>,
    pub instance_used_at: Option<Time>,
    pub disposition: Option<Disposition>,
    pub cleanup_attempts: Option<i64>,
    pub cleanup_next_at: Option<Time>,
    pub cleanup_error_kind: Option<String>,
    pub quarantine_reason: Option<String>,
    pub provider_expires_at: Option<Time>,
    pub workspace_path: Option<String>,
}

impl JoinedInstance {
    /// The instance, if the lease has one.
    pub fn glance(self) -> Option<Glance> {
        Some(Glance {
            status: self.instance_status?,
            used_at: self.instance_used_at?,
            disposition: self.disposition,
            cleanup_attempts: self.cleanup_attempts?,
            cleanup_next_at: self.cleanup_next_at,
            cleanup_error_kind: self.cleanup_error_kind,
            quarantine_reason: self.quarantine_reason,
            provider_expires_at: self.provider_expires_at,
            workspace_path: self.workspace_path,
        })
    }
}

/// Joined leases that fulfil a condition, as each database says it.
macro_rules! joined_leases {
    ($database:ident, $where:expr) => {
        concat!(
            "SELECT l.*, e.name AS environment_name, e.provider, e.retain_ms, s.scope, i.status AS instance_status,
                 i.used_at AS instance_used_at, i.disposition, i.cleanup_attempts, i.cleanup_next_at, i.cleanup_error_kind, i.quarantine_reason,
                 i.provider_expires_at, i.workspace_path, ",
            time_of!($database),
            " AS server_time FROM lease l JOIN environment e ON e.id = l.environment_id JOIN sandbox s ON s.id = l.sandbox_id
                 LEFT JOIN instance i ON i.id = l.instance_id
             WHERE l.organization_id = $1 AND ",
            $where
        )
    };
}

/// Extends an active lease.
macro_rules! extended {
    () => {
        "UPDATE lease SET ttl_ms = $4, expires_at = $5, renewed_at = $6, updated_at = $6
         WHERE id = $1 AND epoch = $2 AND generation = $3 AND status = 'active' AND release IS NULL"
    };
}

/// The event of an extension, wherever there was one.
macro_rules! told_of {
    () => {
        " INSERT INTO event (id, organization_id, type, time, subject_kind, subject_id, generation, actor_kind, actor_id, actor_name, data)
          SELECT $7, $8, $9, $6, $10, $11, $3, $12, $13, $14, $15 "
    };
}

impl Store {
    /// Begins a transaction, locks a lease's sandbox and reads the lease with what its reader is told, as they are now.
    pub async fn begin_on_lease(&self, organization: Uuid, id: Uuid) -> Result<(Tx, Option<JoinedLease>)> {
        let Some((mut seat, beginning)) = self.stand().await? else {
            let mut tx = self.begin().await?;
            let Some(lease) = tx.lease(organization, id).await? else { return Ok((tx, None)) };
            tx.lock_sandbox(lease.sandbox_id).await?;
            let row = tx.joined_lease(organization, id).await?;
            return Ok((tx, row));
        };
        let asked = sqlx::query_as(begun!(beginning, joined_leases!(sqlite, "l.id = $2"))).bind(organization).bind(id);
        let row: Option<JoinedLease> = asked.fetch_optional(seat.conn()).await?;
        seat.begun();
        let tx = self.seated(seat);
        let row = row.map(|row| tx.told(row));
        Ok((tx, row))
    }
}

impl Tx {
    /// Stores a new lease. A unique violation: another live writer, or another live lease of this holder.
    pub async fn insert_lease(&mut self, l: &Lease) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO lease (id, organization_id, sandbox_id, environment_id, instance_id, generation, epoch, grant_seq, status, policy,
                 access, holder, harness, ttl_ms, expires_at, max_expires_at, requested_expires_at, require_provider_expiry, plan,
                 acquisition, metadata, acquired_at, renewed_at, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $24)")
            .bind(l.id).bind(l.organization_id).bind(l.sandbox_id).bind(l.environment_id).bind(l.instance_id).bind(l.generation)
            .bind(l.epoch).bind(l.grant_seq).bind(l.status).bind(l.policy).bind(l.access).bind(&l.holder).bind(&l.harness).bind(l.ttl_ms)
            .bind(l.expires_at).bind(l.max_expires_at).bind(l.requested_expires_at).bind(l.require_provider_expiry).bind(&l.plan)
            .bind(&l.acquisition).bind(&l.metadata).bind(l.acquired_at).bind(l.renewed_at).bind(l.created_at)
            .execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Writes a lease back under its sandbox's lock, if it still has the status and epoch the change was decided on.
    pub async fn save_lease(&mut self, l: &Lease, was: Status, was_epoch: i64, now: Time) -> Result<()> {
        let saved = on!(self, c => sqlx::query(
            "UPDATE lease SET instance_id = $4, generation = $5, epoch = $6, grant_seq = $7, status = $8, ends_as = $9, ttl_ms = $10,
                 expires_at = $11, retain_until = $12, evidence = $13, plan = $14, acquisition = $15, release = $16, failure_code = $17,
                 failure_reason = $18, acquired_at = $19, renewed_at = $20, released_at = $21, updated_at = $22, failure_facts = $23
             WHERE id = $1 AND status = $2 AND epoch = $3 AND generation <= $5")
            .bind(l.id).bind(was).bind(was_epoch).bind(l.instance_id).bind(l.generation).bind(l.epoch).bind(l.grant_seq).bind(l.status)
            .bind(l.ends_as).bind(l.ttl_ms).bind(l.expires_at).bind(l.retain_until).bind(l.evidence).bind(&l.plan).bind(&l.acquisition)
            .bind(&l.release).bind(&l.failure_code).bind(&l.failure_reason).bind(l.acquired_at).bind(l.renewed_at).bind(l.released_at).bind(now).bind(&l.failure_facts)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if saved != 1 {
            return Err(StoreError::Moved);
        }
        match l.instance_id {
            Some(instance) if !l.status.is_live() => self.check_idle_soon(instance, now).await,
            _ => Ok(()),
        }
    }

    /// By id, of this organization.
    pub async fn lease(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Lease>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM lease WHERE organization_id = $1 AND id = $2")
            .bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// A lease and its sandbox in one question to SQLite, where each costs a turn of its thread.
    pub(super) async fn lease_and_sandbox(&mut self, organization: Uuid, id: Uuid) -> Result<Option<(Lease, Sandbox)>> {
        let Inner::Sqlite(tx) = &mut self.inner else { return Ok(None) };
        let rows = sqlx::query(
            "SELECT * FROM lease WHERE organization_id = $1 AND id = $2;
             SELECT * FROM sandbox WHERE id = (SELECT sandbox_id FROM lease WHERE organization_id = $1 AND id = $2)",
        );
        let rows = rows.bind(organization).bind(id).fetch_all(tx.conn()).await?;
        let [lease, sandbox] = rows.as_slice() else { return Ok(None) };
        Ok(Some((Lease::from_row(lease)?, Sandbox::from_row(sandbox)?)))
    }

    /// Writes down until when an active lease is extended, and its event, if it still has the epoch and generation that was decided
    /// on. One question: this is what is written most.
    pub async fn extend_lease(&mut self, l: &Lease, event: NewEvent<'_>, now: Time) -> Result<()> {
        let sql = if self.is_sqlite() {
            concat!(extended!(), ";", told_of!(), "WHERE changes() = 1")
        } else {
            concat!("WITH extended AS (", extended!(), " RETURNING id)", told_of!(), "FROM extended")
        };
        let written = on!(self, c => sqlx::query(sql)
            .bind(l.id).bind(l.epoch).bind(l.generation).bind(l.ttl_ms).bind(l.expires_at).bind(now)
            .bind(crate::id::new()).bind(event.organization).bind(event.type_).bind(event.subject_kind).bind(event.subject)
            .bind(event.actor.kind()).bind(event.actor.id()).bind(event.actor.name()).bind(Json(event.data))
            .execute(c).await.map(|d| d.rows_affected()))?;
        if written >= 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// By id, of this organization, with what its reader is told besides: one statement, because this is what is asked most.
    pub async fn joined_lease(&mut self, organization: Uuid, id: Uuid) -> Result<Option<JoinedLease>> {
        let sql = if self.is_sqlite() { joined_leases!(sqlite, "l.id = $2") } else { joined_leases!(postgres, "l.id = $2") };
        let found: Option<JoinedLease> = on!(self, c => sqlx::query_as(sql).bind(organization).bind(id).fetch_optional(c).await)?;
        Ok(found.map(|row| self.told(row)))
    }

    /// By id, for Berth's own work.
    pub async fn lease_by_id(&mut self, id: Uuid) -> Result<Option<Lease>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM lease WHERE id = $1").bind(id).fetch_optional(c).await)?)
    }

    /// Whose lease this is, for its token; `None` when there is no such lease, or its organization is gone.
    pub async fn organization_of_lease(&mut self, id: Uuid) -> Result<Option<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT l.organization_id FROM lease l JOIN organization o ON o.id = l.organization_id WHERE l.id = $1 AND o.deleted_at IS NULL")
            .bind(id).fetch_optional(c).await)?)
    }

    /// A sandbox's live leases, oldest first.
    pub async fn live_leases(&mut self, sandbox: Uuid) -> Result<Vec<Lease>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT * FROM lease WHERE sandbox_id = $1 AND status IN ('pending', 'active') ORDER BY created_at, id")
            .bind(sandbox).fetch_all(c).await)?,
        )
    }

    /// Leases that are over for their holder but not ended, and belong to this instance.
    pub async fn unended_leases_of_instance(&mut self, instance: Uuid) -> Result<Vec<Lease>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT * FROM lease WHERE instance_id = $1 AND status IN ('retained', 'pending_cleanup') ORDER BY created_at, id")
            .bind(instance).fetch_all(c).await)?,
        )
    }

    /// The last lease that used this instance, ended or not.
    pub async fn last_lease_of_instance(&mut self, instance: Uuid) -> Result<Option<Lease>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT * FROM lease WHERE instance_id = $1 AND access = 'read_write' ORDER BY created_at DESC, id DESC LIMIT 1")
            .bind(instance).fetch_optional(c).await)?,
        )
    }

    /// Active leases whose time has passed, oldest first.
    pub async fn expired_leases(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::EXPIRED)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Retained leases whose time has passed.
    pub async fn retained_leases_due(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::RETAINED)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Pending leases that nobody is making ready.
    pub async fn unclaimed_pending_leases(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::PENDING)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Leases with a stored release that nobody is carrying out.
    pub async fn unclaimed_releases(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::RELEASES)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// A page.
    pub async fn leases(&mut self, organization: Uuid, filters: &Filters, cursor: Option<Cursor>, limit: i64) -> Result<Vec<JoinedLease>> {
        let (time, id) = page::start(cursor);
        let sql = if self.is_sqlite() {
            joined_leases!(
                sqlite,
                "(l.created_at, l.id) < ($2, $3) AND ($4 IS NULL OR l.environment_id = $4)
                   AND ($5 IS NULL OR $5 LIKE '%,' || l.status || ',%') AND ($6 IS NULL OR l.holder = $6) AND ($7 IS NULL OR l.sandbox_id = $7)
                   AND NOT EXISTS (SELECT 1 FROM json_each($8) f WHERE NOT EXISTS
                       (SELECT 1 FROM json_each(s.scope) p WHERE p.key = f.key AND p.value = f.value))
                   AND NOT EXISTS (SELECT 1 FROM json_each($9) f WHERE NOT EXISTS
                       (SELECT 1 FROM json_each(l.metadata) p WHERE p.key = f.key AND p.value = f.value))
                 ORDER BY l.created_at DESC, l.id DESC LIMIT $10"
            )
        } else {
            joined_leases!(
                postgres,
                "(l.created_at, l.id) < ($2, $3) AND ($4 IS NULL OR l.environment_id = $4)
                   AND ($5 IS NULL OR $5 LIKE '%,' || l.status || ',%') AND ($6 IS NULL OR l.holder = $6) AND ($7 IS NULL OR l.sandbox_id = $7)
                   AND ($8 IS NULL OR s.scope @> $8) AND ($9 IS NULL OR l.metadata @> $9)
                 ORDER BY l.created_at DESC, l.id DESC LIMIT $10"
            )
        };
        let rows: Vec<JoinedLease> = on!(self, c => sqlx::query_as(sql).bind(organization).bind(time).bind(id).bind(filters.environment)
            .bind(filters.status_list()).bind(&filters.holder).bind(filters.sandbox).bind(Filters::pairs(&filters.scope))
            .bind(Filters::pairs(&filters.metadata)).bind(limit).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|row| self.told(row)).collect())
    }

    fn told(&self, row: JoinedLease) -> JoinedLease {
        JoinedLease { server_time: self.moved(row.server_time), ..row }
    }
}
