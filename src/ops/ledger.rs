//! A person's word on a row of the ledger: try again, it is lost, forget it. Each is an event with its reason.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::{Berth, Caller, loss, succeed, terminate};
use crate::error::{Code, Error, Result};
use crate::model::instance::{Instance, Status};
use crate::model::key::Scope;
use crate::store::fence::transition;

/// Tries a teardown again now, whatever its back-off or quarantine says. A row that is over answers as it is.
pub async fn retry_cleanup(berth: &Arc<Berth>, caller: &Caller, id: Uuid, reason: &str) -> Result<Instance> {
    let row = read(berth, caller, id).await?;
    if row.status.is_live() {
        return Err(alive());
    }
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(row.sandbox_id).await?;
    let now = tx.now().await?;
    if let Some(mut row) = tx.instance_by_id(id).await?.filter(|i| i.status == Status::PendingCleanup) {
        row.cleanup_next_at = Some(now);
        row.quarantine_reason = None;
        tx.save_instance(&row, Status::PendingCleanup, now).await?;
        succeed::tell(&mut tx, &row, "cleanup.retried", json!({ "reason": reason }), &caller.actor(), now).await?;
        tx.commit().await?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = Arc::clone(berth);
        berth.work.spawn(async move {
            sender.send(terminate::terminate(&task, id).await.map(drop)).ok();
        });
        if let Ok(done) = receiver.await {
            done?;
        }
    }
    read(berth, caller, id).await
}

/// Declares a live instance lost, for a provider that cannot tell stopped from gone. Should it exist after all, it is an orphan.
pub async fn mark_lost(berth: &Arc<Berth>, caller: &Caller, id: Uuid, reason: &str) -> Result<Instance> {
    let row = read(berth, caller, id).await?;
    match row.status {
        Status::Lost | Status::Destroyed => return Ok(row),
        Status::PendingCleanup => {
            return Err(Error::new(Code::InUse, "Its end is decided and being carried out; forget it if it can never be confirmed."));
        }
        _ => {}
    }
    let said = loss::Word { actor: caller.actor(), reason: reason.to_owned() };
    if !loss::settle(berth, id, "marked_lost", Some(&said)).await? {
        return Err(transition("The instance is being made or ended; look again."));
    }
    read(berth, caller, id).await
}

/// Strikes a row whose teardown cannot be confirmed off the list of what is to be cleaned up; what waited for it ends.
pub async fn forget(berth: &Arc<Berth>, caller: &Caller, id: Uuid, reason: &str) -> Result<Instance> {
    let row = read(berth, caller, id).await?;
    if row.status.is_live() {
        return Err(alive());
    }
    terminate::forget(berth, &row, &caller.actor(), reason).await?;
    read(berth, caller, id).await
}

async fn read(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Instance> {
    caller.require(Scope::Admin)?;
    super::instance::get(berth, caller, id, Duration::ZERO).await
}

fn alive() -> Error {
    Error::new(Code::InUse, "The instance lives; release or delete what uses it.")
}
