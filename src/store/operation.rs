//! Operations: admitted once, settled once, never replayed.

use uuid::Uuid;

use super::error::StoreError;
use super::{Cursor, Fenced, Result, Tx, page};
use crate::clock::Time;
use crate::model::operation::{Kind, Operation, Output, Status};

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// In one word.
    pub status: Status,
    /// The exit code, if there is one.
    pub exit_code: Option<i64>,
    /// The signal that ended it, if one did.
    pub signal: Option<i64>,
    /// The whole process tree is dead.
    pub process_tree_killed: bool,
    /// What is kept of standard output.
    pub stdout: Output,
    /// What is kept of standard error.
    pub stderr: Output,
}

#[derive(sqlx::FromRow)]
struct OutputRow {
    stdout: Option<Vec<u8>>,
    stdout_bytes: i64,
    stderr: Option<Vec<u8>>,
    stderr_bytes: i64,
}

impl Tx {
    /// Admits a write that passed its fence: its number, its row, and an instance that is no longer quiet.
    pub async fn admit(&mut self, fenced: &mut Fenced, id: Uuid, kind: Kind) -> Result<Operation> {
        let now = fenced.now;
        fenced.sandbox.workspace_seq += 1;
        self.save_sandbox(&fenced.sandbox, now).await?;
        let operation = Operation {
            id,
            organization_id: fenced.lease.organization_id,
            sandbox_id: fenced.sandbox.id,
            instance_id: fenced.instance.id,
            lease_id: fenced.lease.id,
            epoch: fenced.lease.epoch,
            generation: fenced.instance.generation,
            grant_seq: fenced.lease.grant_seq,
            kind,
            status: Status::Running,
            workspace_seq: fenced.sandbox.workspace_seq,
            exit_code: None,
            signal: None,
            process_tree_killed: false,
            lease_expires_at: fenced.lease.expires_at,
            started_at: now,
            ended_at: None,
        };
        let o = &operation;
        on!(self, c => sqlx::query(
            "INSERT INTO operation (id, organization_id, sandbox_id, instance_id, lease_id, epoch, generation, grant_seq, kind, status, workspace_seq,
                 lease_expires_at, started_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)")
            .bind(o.id).bind(o.organization_id).bind(o.sandbox_id).bind(o.instance_id).bind(o.lease_id).bind(o.epoch).bind(o.generation)
            .bind(o.grant_seq).bind(o.kind).bind(o.status).bind(o.workspace_seq).bind(o.lease_expires_at).bind(o.started_at)
            .execute(c).await.map(|_| ()))?;
        let marked = on!(self, c => sqlx::query("UPDATE instance SET quiet = FALSE, used_at = $2 WHERE id = $1 AND status = 'running'")
            .bind(o.instance_id).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        if marked == 1 { Ok(operation) } else { Err(StoreError::Moved) }
    }

    /// Settles a running operation; false when it was settled already.
    pub async fn settle_operation(&mut self, id: Uuid, s: &Settlement, now: Time) -> Result<bool> {
        let settled = on!(self, c => sqlx::query(
            "UPDATE operation SET status = $2, exit_code = $3, signal = $4, process_tree_killed = $5, stdout = $6, stdout_bytes = $7, stderr = $8,
                 stderr_bytes = $9, ended_at = $10 WHERE id = $1 AND status = 'running'")
            .bind(id).bind(s.status).bind(s.exit_code).bind(s.signal).bind(s.process_tree_killed).bind(&s.stdout.kept).bind(s.stdout.total)
            .bind(&s.stderr.kept).bind(s.stderr.total).bind(now).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(settled == 1)
    }

    /// Settles every running operation of a sandbox that was admitted under a lower grant, with what is known of all of them.
    pub async fn settle_operations_below(&mut self, sandbox: Uuid, grant_seq: i64, status: Status, killed: bool, now: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query(
            "UPDATE operation SET status = $3, process_tree_killed = $4, ended_at = $5 WHERE sandbox_id = $1 AND grant_seq < $2 AND status = 'running'")
            .bind(sandbox).bind(grant_seq).bind(status).bind(killed).bind(now).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// Whether anything was admitted to this instance under this grant or a later one.
    pub async fn was_used_since(&mut self, instance: Uuid, grant_seq: i64) -> Result<bool> {
        let count: i64 = on!(self, c => sqlx::query_scalar("SELECT count(*) FROM operation WHERE instance_id = $1 AND grant_seq >= $2")
            .bind(instance).bind(grant_seq).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// Running operations of a sandbox.
    pub async fn running_operations(&mut self, sandbox: Uuid) -> Result<Vec<Uuid>> {
        Ok(
            on!(self, c => sqlx::query_scalar("SELECT id FROM operation WHERE sandbox_id = $1 AND status = 'running' ORDER BY id").bind(sandbox).fetch_all(c).await)?,
        )
    }

    /// Running operations whose server is gone: no claim of theirs is unlapsed.
    pub async fn abandoned_operations(&mut self, now: Time, limit: i64) -> Result<Vec<Uuid>> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT o.id FROM operation o LEFT JOIN claim k ON k.subject_id = o.id AND k.kind = 'operation'
             WHERE o.status = 'running' AND (k.claimed_until IS NULL OR k.claimed_until <= $1) ORDER BY o.id LIMIT $2")
            .bind(now).bind(limit).fetch_all(c).await)?)
    }

    /// By id.
    pub async fn operation(&mut self, organization: Uuid, lease: Uuid, id: Uuid) -> Result<Option<Operation>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM operation WHERE organization_id = $1 AND lease_id = $2 AND id = $3")
            .bind(organization).bind(lease).bind(id).fetch_optional(c).await)?)
    }

    /// By id alone, for what no caller named.
    pub async fn operation_by_id(&mut self, id: Uuid) -> Result<Option<Operation>> {
        Ok(on!(self, c => sqlx::query_as("SELECT * FROM operation WHERE id = $1").bind(id).fetch_optional(c).await)?)
    }

    /// What is kept of an operation's output.
    pub async fn operation_output(&mut self, id: Uuid) -> Result<(Output, Output)> {
        let row: OutputRow = on!(self, c => sqlx::query_as("SELECT stdout, stdout_bytes, stderr, stderr_bytes FROM operation WHERE id = $1").bind(id).fetch_one(c).await)?;
        Ok((
            Output { kept: row.stdout.unwrap_or_default(), total: row.stdout_bytes },
            Output { kept: row.stderr.unwrap_or_default(), total: row.stderr_bytes },
        ))
    }

    /// A page of a lease's execs.
    pub async fn execs(&mut self, organization: Uuid, lease: Uuid, cursor: Option<Cursor>, limit: i64) -> Result<Vec<Operation>> {
        let (time, id) = page::start(cursor);
        Ok(on!(self, c => sqlx::query_as(
            "SELECT * FROM operation WHERE organization_id = $1 AND lease_id = $2 AND kind = 'exec' AND (started_at, id) < ($3, $4)
             ORDER BY started_at DESC, id DESC LIMIT $5")
            .bind(organization).bind(lease).bind(time).bind(id).bind(limit).fetch_all(c).await)?)
    }

    /// Forgets what ended before this moment.
    pub async fn forget_operations(&mut self, before: Time) -> Result<u64> {
        Ok(
            on!(self, c => sqlx::query("DELETE FROM operation WHERE ended_at < $1").bind(before).execute(c).await.map(|d| d.rows_affected()))?,
        )
    }
}
