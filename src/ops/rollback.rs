//! Rollback: the checkpoint named is the one rejected. The pointer falls back to the newest attached other, then the rejected one
//! is detached; the live workspace has diverged, so the rejected work never comes back by itself.

use tokio::time::Instant;
use uuid::Uuid;

use super::attach::{lock, only_the_writer};
use super::input::Rollback;
use super::{Berth, Caller};
use crate::error::{Error, Result};
use crate::model::checkpoint::{Checkpoint, Event};
use crate::model::key::Scope;
use crate::store::fence::stale_generation;

/// Moves the pointer away from a rejected checkpoint; the boolean says whether it moved. If the pointer names another one by now,
/// nothing happens and the actual current one is the answer.
pub async fn rollback(berth: &Berth, caller: &Caller, id: Uuid, input: Rollback) -> Result<(Option<Checkpoint>, bool)> {
    caller.require_on_sandbox(berth, Scope::Write, id).await?;
    let patience = Instant::now() + berth.settings.gate_wait;
    loop {
        let mut tx = berth.store.begin().await?;
        let (mut sandbox, now) = lock(&mut tx, caller, id).await?;
        let unknown = || Error::not_found("checkpoint");
        let mut rejected =
            tx.checkpoint(caller.organization, input.checkpoint_id).await?.filter(|c| c.sandbox_id == id).ok_or_else(unknown)?;
        only_the_writer(&mut tx, caller, &sandbox, input.lease_id, now).await?;
        if sandbox.generation != input.generation {
            return Err(stale_generation(sandbox.generation, input.generation));
        }
        if !rejected.current {
            return Ok((tx.current_checkpoint(id).await?, false));
        }
        if let Err(closed) = tx.pass_gate(id, now).await {
            drop(tx);
            if !berth.work.line(id).until_changed(patience).await {
                return Err(closed);
            }
            continue;
        }
        let fallback = tx.attached_checkpoints(id).await?.into_iter().find(|c| c.id != rejected.id);
        sandbox.current_checkpoint_id = fallback.as_ref().map(|c| c.id);
        if fallback.is_none() {
            // Whoever goes back to nothing gives up what was written until now (domain §4).
            sandbox.given_up_seq = sandbox.workspace_seq;
        }
        sandbox.pointer_seq += 1;
        sandbox.synced_seq = sandbox.instance_id.is_none().then_some(sandbox.workspace_seq);
        sandbox.diverged = sandbox.instance_id.is_some();
        tx.save_sandbox(&sandbox, now).await?;
        let was = rejected.status;
        rejected.status = super::step(was.on(Event::Detach))?;
        rejected.detached_at = Some(now);
        tx.save_checkpoint(&rejected, was, now).await?;
        super::capture::tell(&mut tx, &rejected, "checkpoint.rolled_back", &caller.actor(), now).await?;
        tx.commit().await?;
        berth.work.ring(id);
        return Ok((berth.store.read().await?.current_checkpoint(id).await?, true));
    }
}
