//! The ledger of instances: everything we ever asked a provider to make is in it, written before the provider was asked.

use sqlx::QueryBuilder;
use uuid::Uuid;

use super::error::StoreError;
use super::{Cursor, Filters, Result, Tx, due, page};
use crate::clock::Time;
use crate::model::instance::{Instance, QUARANTINE_ATTEMPTS, Status};

impl Tx {
    /// Stores a new row. A unique violation: another live row has this role, generation or ref.
    pub async fn insert_instance(&mut self, i: &Instance) -> Result<()> {
        on!(self, c => sqlx::query(
            "INSERT INTO instance (id, organization_id, environment_id, sandbox_id, generation, role, provider, binding, provider_ref, config,
                 configured_path, fingerprint, status, quiet, retire_reason, provision_deadline, cleanup_next_at, used_at, created_at, retired_at,
                 updated_at, idle_check_at, plugin_id, provider_metadata)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $19, $19, $21, $22)")
            .bind(i.id).bind(i.organization_id).bind(i.environment_id).bind(i.sandbox_id).bind(i.generation).bind(i.role).bind(&i.provider)
            .bind(&i.binding).bind(&i.provider_ref).bind(&i.config).bind(&i.configured_path).bind(&i.fingerprint).bind(i.status).bind(i.quiet)
            .bind(&i.retire_reason).bind(i.provision_deadline).bind(i.cleanup_next_at).bind(i.used_at).bind(i.created_at).bind(i.retired_at)
            .bind(i.plugin_id).bind(&i.provider_metadata).execute(c).await.map(|_| ()))?;
        self.name_secrets(i.id, i.organization_id, &crate::model::secret::names(&i.config)).await
    }

    /// Writes a row back under its sandbox's lock, if it still has the status the change was decided on. The ref and binding are
    /// not written here: refs are added by [`Tx::write_ref`] alone, never replaced.
    pub async fn save_instance(&mut self, i: &Instance, was: Status, now: Time) -> Result<()> {
        let saved = on!(self, c => sqlx::query(
            "UPDATE instance SET role = $3, status = $4, quiet = $5, hold_reason = $6, retire_reason = $7, disposition = $8, workspace_path = $9,
                 provider_expires_at = $10, observed_at = $11, provision_deadline = $12, cleanup_attempts = $13, cleanup_next_at = $14,
                 cleanup_error_kind = $15, quarantine_reason = $16, used_at = $17, running_at = $18, stopped_at = $19, retired_at = $20,
                 destroyed_at = $21, updated_at = $22, owed_fence = $23, idle_check_at = $22
             WHERE id = $1 AND status = $2")
            .bind(i.id).bind(was).bind(i.role).bind(i.status).bind(i.quiet).bind(i.hold_reason).bind(&i.retire_reason).bind(i.disposition)
            .bind(&i.workspace_path).bind(i.provider_expires_at).bind(i.observed_at).bind(i.provision_deadline).bind(i.cleanup_attempts)
            .bind(i.cleanup_next_at).bind(&i.cleanup_error_kind).bind(&i.quarantine_reason).bind(i.used_at).bind(i.running_at)
            .bind(i.stopped_at).bind(i.retired_at).bind(i.destroyed_at).bind(now).bind(i.owed_fence)
            .execute(c).await.map(|d| d.rows_affected()))?;
        if saved == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// Records the account and the moment before the provider is asked to make the object.
    pub async fn note_create_call(&mut self, id: Uuid, binding: &str, now: Time) -> Result<()> {
        let noted = on!(self, c => sqlx::query(
            "UPDATE instance SET binding = COALESCE(binding, $2), create_called_at = $3, updated_at = $3 WHERE id = $1 AND status = 'creating'
               AND (binding IS NULL OR binding = $2)")
            .bind(id).bind(binding).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        if noted == 1 { Ok(()) } else { Err(StoreError::Moved) }
    }

    /// Writes the provider's ref onto a row that has none, whatever the row's status is by now. False: it has another already.
    pub async fn write_ref(
        &mut self,
        id: Uuid,
        binding: &str,
        provider_ref: &str,
        provider_expires_at: Option<Time>,
        metadata: Option<&serde_json::Value>,
        now: Time,
    ) -> Result<bool> {
        let written = on!(self, c => sqlx::query(
            "UPDATE instance SET binding = $2, provider_ref = $3, provider_expires_at = $4, updated_at = $5,
                 provider_metadata = COALESCE($6, provider_metadata)
             WHERE id = $1 AND (provider_ref IS NULL OR provider_ref = $3)")
            .bind(id).bind(binding).bind(provider_ref).bind(provider_expires_at).bind(now).bind(metadata.map(sqlx::types::Json))
            .execute(c).await.map(|d| d.rows_affected()))?;
        Ok(written == 1)
    }

    /// By id, of this organization.
    pub async fn instance(&mut self, organization: Uuid, id: Uuid) -> Result<Option<Instance>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM instance WHERE organization_id = $1 AND id = $2")
            .bind(organization).bind(id).fetch_optional(c).await)?)
    }

    /// By id, for Berth's own work.
    pub async fn instance_by_id(&mut self, id: Uuid) -> Result<Option<Instance>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM instance WHERE id = $1").bind(id).fetch_optional(c).await)?)
    }

    /// The live row with this role, if there is one.
    pub async fn live_instance(&mut self, sandbox: Uuid, role: crate::model::instance::Role) -> Result<Option<Instance>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM instance WHERE sandbox_id = $1 AND role = $2 AND role <> 'retired'")
            .bind(sandbox).bind(role).fetch_optional(c).await)?)
    }

    /// The highest generation of the sandbox's rows; 0 when it never had one.
    pub async fn highest_generation(&mut self, sandbox: Uuid) -> Result<i64> {
        Ok(
            on!(self, c => sqlx::query_scalar("SELECT COALESCE(max(generation), 0) FROM instance WHERE sandbox_id = $1").bind(sandbox).fetch_one(c).await)?,
        )
    }

    /// Whether another row that is live, or whose end is not confirmed, names this ref.
    pub async fn ref_is_held_elsewhere(&mut self, i: &Instance) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM instance WHERE provider = $1 AND binding = $2 AND provider_ref = $3 AND id <> $4 AND role <> 'retired'")
            .bind(&i.provider).bind(&i.binding).bind(&i.provider_ref).bind(i.id).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Whether any row that is not confirmed gone or lost names this object, by its ref or as its tag does.
    pub async fn names_object(&mut self, provider: &str, provider_ref: &str, tag: Uuid) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM instance WHERE status NOT IN ('destroyed', 'lost') AND ((provider = $1 AND provider_ref = $2) OR id = $3)")
            .bind(provider).bind(provider_ref).bind(tag).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Rows whose teardown is due and that nobody is settling.
    pub async fn cleanup_due(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::CLEANUPS)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Rows with an intent that nobody is carrying out: stops, and starts, creates and drains that no pending lease will finish.
    pub async fn unclaimed_intents(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::INTENTS)
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Running and stopped rows that their provider ends until this moment; the earliest end first.
    pub async fn ending_instances(&mut self, until: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::ENDING)
            .bind(until).bind(limit).fetch_all(c).await)?)
    }

    /// Keeps an instance out of [`Tx::ending_instances`] until that is asked for a time this late.
    pub async fn pause_rotation(&mut self, id: Uuid, after: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE instance SET rotate_after = $2 WHERE id = $1").bind(id).bind(after).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Running instances that nobody uses, for longer than their environment's time-out.
    pub async fn idle_instances(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::IDLE).bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Stopped instances that nobody came back for.
    pub async fn forgotten_instances(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(due::FORGOTTEN).bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// Puts the look at instances that are in use off to when they may be idle at the earliest; how many of at most `limit` there were.
    pub async fn put_off_idle_checks(&mut self, now: Time, limit: i64) -> Result<u64> {
        let sql = if self.is_sqlite() { due::PUT_OFF_SQLITE } else { due::PUT_OFF_POSTGRES };
        Ok(on!(self, c => sqlx::query(sql).bind(now).bind(limit).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// The next pass looks whether this instance is idle.
    pub(super) async fn check_idle_soon(&mut self, id: Uuid, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("UPDATE instance SET idle_check_at = $2 WHERE id = $1").bind(id).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Rows of a provider that ran or stood still when they were last looked at, which was before this; the longest ago first.
    pub async fn unobserved(&mut self, provider: &str, before: Time, limit: i64) -> Result<Vec<Instance>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM instance WHERE provider = $1 AND COALESCE(observed_at, 0) <= $2 AND status IN ('running', 'stopped')
             ORDER BY COALESCE(observed_at, 0) LIMIT $3")
            .bind(provider).bind(before).bind(limit).fetch_all(c).await)?)
    }

    /// The same of a plugin, whose only look is one that starts what it looks at: instances that run.
    pub async fn unobserved_of_plugin(&mut self, plugin: Uuid, before: Time, limit: i64) -> Result<Vec<Instance>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM instance WHERE plugin_id = $1 AND COALESCE(observed_at, 0) <= $2 AND status = 'running'
             ORDER BY COALESCE(observed_at, 0) LIMIT $3")
            .bind(plugin).bind(before).bind(limit).fetch_all(c).await)?)
    }

    /// Notes that these rows are still as this says. Nobody decides anything by it, so their sandboxes' locks are not needed.
    pub async fn note_observed(&mut self, ids: &[Uuid], status: Status, now: Time) -> Result<()> {
        on!(self, c => {
            let mut update = QueryBuilder::new("UPDATE instance SET observed_at = ");
            update.push_bind(now).push(" WHERE status = ").push_bind(status).push(" AND id IN (");
            let mut listed = update.separated(", ");
            for id in ids {
                listed.push_bind(*id);
            }
            listed.push_unseparated(")");
            update.build().persistent(false).execute(c).await.map(|_| ())
        })?;
        Ok(())
    }

    /// A page of the ledger.
    pub async fn instances(&mut self, organization: Uuid, filters: &Filters, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Instance>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM instance WHERE organization_id = $1 AND (created_at, id) < ($2, $3) AND ($4 IS NULL OR $4 LIKE '%,' || status || ',%')
               AND ($5 IS NULL OR $5 = (status = 'pending_cleanup' AND (cleanup_attempts >= $6 OR quarantine_reason IS NOT NULL)))
               AND ($7 IS NULL OR sandbox_id = $7)
             ORDER BY created_at DESC, id DESC LIMIT $8")
            .bind(organization).bind(time).bind(id).bind(filters.status_list()).bind(filters.quarantined).bind(QUARANTINE_ATTEMPTS)
            .bind(filters.sandbox).bind(limit).fetch_all(c).await)?)
    }
}
