//! Idempotency keys: a request that is sent again under its key is answered with what its first call made, and never done twice.
//!
//! Before a verb runs, one transaction writes the key, the hash of the request, a claim, and the id the verb will make its first
//! resource under. That resource is the verb's own durable effect: when a call died, what exists under the id says how far it came.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, Caller};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Status as CheckpointStatus};
use crate::model::key::Scope;
use crate::model::lease::Status as LeaseStatus;
use crate::model::operation::{Kind as OperationKind, Operation, Status};
use crate::model::resource::{Kind, Resource};
pub use crate::store::idempotency::KeyOf;
use crate::store::{ClaimKind, Claimed};

/// How long a finished request can be replayed.
pub const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long a call waits for another one with its key before it is told to come again.
const PATIENCE: Duration = Duration::from_secs(2);
/// When a request must be over: longer than the longest command with its waits.
const DEADLINE: Duration = Duration::from_secs(2 * 3600);

/// What a request under a key is to do.
pub enum Turn {
    /// Run, and make the first resource under this id.
    Run(Claimed, Uuid),
    /// A call before it died after it had made this.
    CarryOn(Claimed, Resource),
    /// It was answered before.
    Replay(Kept),
}

/// How a finished request was answered.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The status.
    pub status: u16,
    /// What it was about; read again for every replay.
    pub resource: Option<Resource>,
    /// For a lease its epoch; where there is no resource, the whole answer.
    pub answer: Option<Value>,
}

/// What became of something whose call died.
pub enum Outcome {
    /// It is done, or goes on by itself: answer it as this status.
    Stands(u16),
    /// It surely failed: the caller is told so, or where nothing is known to tell, the request is made again from the start.
    Failed(Option<Error>),
}

/// Begins a request under a key, or says what it is to do instead. Waits briefly for a call with the same key.
pub async fn begin(berth: &Berth, of: &KeyOf<'_>, request_sha256: &str) -> Result<Turn> {
    let patience = Instant::now() + PATIENCE;
    loop {
        let mut tx = berth.store.begin().await?;
        let now = tx.now().await?;
        let (claim, id) = (crate::id::new(), crate::id::new());
        if tx.insert_idempotency(of, request_sha256, claim, id, now).await? {
            let claimed = tx.claim(claim, ClaimKind::Idempotency, berth.work.owner, "request", now, DEADLINE).await?;
            tx.commit().await?;
            return Ok(Turn::Run(claimed.ok_or(crate::store::error::StoreError::ClaimLost)?, id));
        }
        let Some(row) = tx.lock_idempotency(of).await? else { continue };
        let now = tx.now().await?;
        let running = tx.is_claimed(row.claim_id, ClaimKind::Idempotency, now).await?;
        if row.created_at < now.before(KEPT) && !running {
            tx.forget_idempotency(row.claim_id).await?;
            tx.commit().await?;
            continue;
        }
        if row.request_sha256 != request_sha256 {
            return Err(Error::new(Code::IdempotencyKeyMismatch, "This Idempotency-Key was used with another body. Use a new key."));
        }
        if let Some(status) = row.http_status {
            let resource = row.resource_kind.map(|kind| Resource { kind, id: row.resource_id });
            let status = u16::try_from(status).unwrap_or(200);
            return Ok(Turn::Replay(Kept { status, resource, answer: row.answer.map(|a| a.0) }));
        }
        if let Some(claimed) = tx.claim(row.claim_id, ClaimKind::Idempotency, berth.work.owner, "request", now, DEADLINE).await? {
            let left = tx.resource_named(row.resource_id).await?;
            tx.commit().await?;
            return Ok(match left {
                Some(kind) => Turn::CarryOn(claimed, Resource { kind, id: row.resource_id }),
                None => Turn::Run(claimed, row.resource_id),
            });
        }
        drop(tx);
        berth.give_back_claims().await?;
        if !berth.work.line(row.claim_id).until_changed(patience).await {
            return Err(in_use());
        }
    }
}

fn in_use() -> Error {
    Error::new(Code::IdempotencyKeyInUse, "A request with this Idempotency-Key is still running.").retry_after(Duration::from_secs(1))
}

/// Keeps how a request was answered, with no secret in it.
pub async fn finish(berth: &Berth, claimed: &Claimed, kept: Kept) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_idempotency_of(claimed).await?;
    tx.settle(claimed).await?;
    let now = tx.now().await?;
    tx.finish_idempotency(claimed, kept.resource, kept.answer.map(without_secrets), kept.status, now).await?;
    tx.commit().await?;
    berth.work.ring(claimed.subject);
    Ok(())
}

fn without_secrets(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                let secret = matches!(name.as_str(), "secret" | "token");
                *value = if secret { Value::Null } else { without_secrets(value.take()) };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_secrets(item.take())),
        _ => {}
    }
    answer
}

/// A request was refused or failed. Its key may be used again, unless what it made stands, or may have happened.
pub async fn fail(berth: &Berth, claimed: &Claimed, caller: &Caller, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_idempotency_of(claimed).await?;
    tx.settle(claimed).await?;
    let stands = match tx.resource_named(id).await? {
        None => false,
        Some(Kind::Lease) => tx.lease_by_id(id).await?.is_some_and(|lease| lease.failure_code.is_none()),
        Some(Kind::Checkpoint) => tx.checkpoint(caller.organization, id).await?.is_some_and(|row| row.status != CheckpointStatus::Failed),
        Some(Kind::Exec | Kind::File) => tx.operation_by_id(id).await?.is_some_and(|operation| !is_undone(&operation)),
        Some(_) => true,
    };
    if !stands {
        tx.forget_idempotency(claimed.subject).await?;
    }
    tx.commit().await?;
    berth.work.ring(claimed.subject);
    Ok(())
}

/// A request failed, and this operation of it surely changed nothing: it never started, or the change was refused.
fn is_undone(operation: &Operation) -> bool {
    match operation.status {
        // One that was stopped while it ran had its process tree killed.
        Status::Cancelled => !operation.process_tree_killed,
        Status::Exited => operation.kind != OperationKind::Exec && operation.exit_code != Some(0),
        _ => false,
    }
}

/// Forgets the key of a request that is to be made again from the start.
pub async fn forget(berth: &Berth, claimed: &Claimed) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_idempotency_of(claimed).await?;
    tx.settle(claimed).await?;
    tx.forget_idempotency(claimed.subject).await?;
    Ok(tx.commit().await?)
}

/// Waits, bounded, for what a call that died had begun. Nothing is done a second time.
pub async fn carry_on(berth: &Arc<Berth>, caller: &Caller, left: Resource) -> Result<Outcome> {
    let wait = berth.settings.provision_wait;
    match left.kind {
        Kind::Lease => {
            let view = super::lease::await_ready(berth, caller.organization, left.id, wait).await?;
            match view.lease.status {
                LeaseStatus::Pending => Ok(Outcome::Stands(202)),
                _ if view.lease.failure_code.is_some() => Ok(Outcome::Failed(Some(super::lease::failure(&view.lease)))),
                _ => Ok(Outcome::Stands(201)),
            }
        }
        Kind::Exec | Kind::File => {
            let mut tx = berth.store.read().await?;
            let now = tx.now().await?;
            let operation = tx.operation_by_id(left.id).await?.ok_or_else(|| Error::not_found("operation"))?;
            match operation.status {
                Status::Running if tx.is_claimed(left.id, ClaimKind::Operation, now).await? => Err(in_use()),
                Status::Exited if left.kind == Kind::File && operation.exit_code != Some(0) => Ok(Outcome::Failed(None)),
                Status::Exited | Status::TimedOut | Status::Cancelled => Ok(Outcome::Stands(200)),
                Status::Running | Status::Unknown | Status::Lost => Err(Error::new(
                    Code::OperationUnknown,
                    "The call that made this operation died, and its end is not known. It is not done again under this key.",
                )
                .fact("operation_id", left.id.to_string())),
            }
        }
        Kind::Checkpoint => await_capture(berth, caller.organization, left.id, Instant::now() + wait).await,
        Kind::Sandbox | Kind::Environment | Kind::Organization | Kind::ApiKey | Kind::Plugin => Ok(Outcome::Stands(201)),
    }
}

async fn await_capture(berth: &Berth, organization: Uuid, id: Uuid, patience: Instant) -> Result<Outcome> {
    loop {
        let mut tx = berth.store.read().await?;
        let row = tx.checkpoint(organization, id).await?.ok_or_else(|| Error::not_found("checkpoint"))?;
        let now = tx.now().await?;
        let goes_on = tx.is_claimed(row.sandbox_id, ClaimKind::Gate, now).await?;
        drop(tx);
        match row.status {
            CheckpointStatus::Failed => return Ok(Outcome::Failed(None)),
            CheckpointStatus::Capturing if !goes_on => return Ok(Outcome::Failed(None)),
            CheckpointStatus::Capturing => {}
            _ => return Ok(Outcome::Stands(201)),
        }
        if !berth.work.line(row.sandbox_id).until_changed(patience).await {
            return Ok(Outcome::Stands(202));
        }
    }
}

/// The checkpoint that a request was about.
pub async fn checkpoint(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Checkpoint> {
    let row = berth.store.read().await?.checkpoint(caller.organization, id).await?.ok_or_else(|| Error::not_found("checkpoint"))?;
    caller.require_on_sandbox(berth, Scope::Read, row.sandbox_id).await?;
    Ok(row)
}

/// The sequence number of the change that a request made.
pub async fn workspace_seq(berth: &Berth, caller: &Caller, id: Uuid) -> Result<i64> {
    let row = berth.store.read().await?.operation_by_id(id).await?.filter(|o| o.organization_id == caller.organization);
    let row = row.ok_or_else(|| Error::not_found("operation"))?;
    caller.require_on_lease(Scope::Read, row.lease_id)?;
    Ok(row.workspace_seq)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_secret_is_kept() {
        let answer = json!({ "id": 1, "secret": "s", "items": [{ "token": "t", "name": "n" }] });
        assert_eq!(without_secrets(answer), json!({ "id": 1, "secret": null, "items": [{ "token": null, "name": "n" }] }));
    }
}
