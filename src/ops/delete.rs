//! Deleting a sandbox: its instance is ended, its checkpoints' bytes enter the deletion ledger, its scope is free. The row stays as
//! a tombstone, since the ledger and the history name it.

use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, Caller, destroy};
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::store::event::NewEvent;
use crate::store::fence::transition;

/// Deletes a sandbox and with it all its work; asking for that is the consent. Live leases refuse it.
pub async fn delete(berth: &Arc<Berth>, caller: &Caller, id: Uuid) -> Result<()> {
    caller.require(Scope::Write)?;
    let patience = Instant::now() + berth.settings.provision_wait;
    loop {
        let Some(instance) = attempt(berth, caller, id).await? else { return Ok(()) };
        destroy::spawn_drain(berth, instance, true, "sandbox_deleted").await?;
        if !berth.work.line(id).until_changed(patience).await {
            return Err(transition("The sandbox's instance is still being ended; delete it again when it has."));
        }
    }
}

/// One transaction under the sandbox's lock. `Some`: this instance is to be ended first.
async fn attempt(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Option<crate::model::instance::Instance>> {
    let unknown = || Error::not_found("sandbox");
    let mut tx = berth.store.begin().await?;
    tx.living_sandbox(caller.organization, id).await?.ok_or_else(unknown)?;
    let mut sandbox = tx.lock_sandbox(id).await?.filter(|s| s.deleted_at.is_none()).ok_or_else(unknown)?;
    let live = tx.live_leases(id).await?;
    if !live.is_empty() {
        let ids: Vec<_> = live.iter().map(|l| l.id.to_string()).collect();
        return Err(Error::new(Code::SandboxInUse, "The sandbox has live leases. Release them first.").fact("lease_ids", ids));
    }
    if let Some(instance) = sandbox.instance_id {
        return Ok(tx.instance_by_id(instance).await?);
    }
    let now = tx.now().await?;
    let checkpoints = tx.checkpoint_artifacts(id).await?;
    for (checkpoint, _) in &checkpoints {
        if tx.is_being_restored(*checkpoint, now).await? {
            return Err(Error::new(Code::SandboxInUse, "Another sandbox is being filled from one of its checkpoints."));
        }
    }
    if sandbox.current_checkpoint_id.take().is_some() {
        sandbox.pointer_seq += 1;
    }
    sandbox.synced_seq = None;
    tx.save_sandbox(&sandbox, now).await?;
    for (checkpoint, artifact) in checkpoints {
        tx.delete_checkpoint(checkpoint).await?;
        if let Some(artifact) = artifact {
            tx.doom_artifact_without_rows(artifact, now).await?;
        }
    }
    tx.bury_sandbox(id, now).await?;
    let event = NewEvent {
        organization: sandbox.organization_id,
        type_: "sandbox.deleted",
        subject_kind: "sandbox",
        subject: id,
        generation: Some(sandbox.generation),
        actor: &caller.actor(),
        data: json!({ "environment_id": sandbox.environment_id }),
    };
    tx.tell(event, now).await?;
    tx.commit().await?;
    berth.work.ring(id);
    Ok(None)
}
