//! Restore: a live lease goes back to a checkpoint. The successor is made and verified first; then one transaction retires the old
//! instance, moves the pointer and re-stamps the leases. Any failure leaves everything as it was.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::input::{Restore, Unsaved};
use super::make::Ready;
use super::succeed::Leaving;
use super::successor::{self, Named};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, capture, quiet, terminate};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Event as CheckpointEvent, Kind};
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::lease::Plan;
use crate::store::error::StoreError;
use crate::store::fence::gate_closed;
use crate::store::{ClaimKind, Claimed};

static NAMED: Named =
    Named { reason: "restored", event: "lease.restored", failed: "restore_failed", actor: Actor::System { task: "restorer" } };

/// What a restore was claimed for.
#[derive(Clone, Debug)]
struct Intent {
    lease: Uuid,
    checkpoint: Uuid,
    former: Instance,
    unsaved: Unsaved,
    workspace_seq: i64,
    dirty: bool,
}

/// Puts a live lease's workspace back to a checkpoint of its own sandbox: same lease, generation + 1.
pub async fn restore(berth: &Arc<Berth>, caller: &Caller, id: Uuid, input: Restore) -> Result<(LeaseView, Answered)> {
    caller.require_on_lease(Scope::Write, id)?;
    if caller.is_token() && input.unsaved_changes == Unsaved::Discard {
        return Err(Error::new(
            Code::Forbidden,
            "A lease token may not discard unsaved work; say unsaved_changes: capture, or use an API key.",
        ));
    }
    let patience = Instant::now() + input.waiting.others;
    let (intent, gate) = loop {
        let mut tx = berth.store.begin().await?;
        let fenced = tx.fence(caller.organization, id, caller.carried(input.carried)).await?;
        let sandbox = &fenced.sandbox;
        let chosen = tx.checkpoint(caller.organization, input.checkpoint_id).await?.filter(|c| c.sandbox_id == sandbox.id);
        chosen.ok_or_else(|| Error::not_found("checkpoint"))?;
        let rests = matches!(fenced.instance.status, InstanceStatus::Running | InstanceStatus::Stopped);
        let gate = if rests {
            // Its name keeps the checkpoint from being collected meanwhile.
            let detail = format!("restore {}", input.checkpoint_id);
            tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, &detail, fenced.now, berth.settings.provision_deadline).await?
        } else {
            None
        };
        if let Some(gate) = gate {
            tx.commit().await?;
            let intent = Intent {
                lease: id,
                checkpoint: input.checkpoint_id,
                dirty: fenced.sandbox.is_dirty(Some(&fenced.instance)),
                workspace_seq: fenced.sandbox.workspace_seq,
                former: fenced.instance,
                unsaved: input.unsaved_changes,
            };
            break (intent, gate);
        }
        let holder = tx.claim_of(sandbox.id, ClaimKind::Gate).await?;
        drop(tx);
        if !berth.work.line(fenced.sandbox.id).until_changed(patience).await {
            return Err(gate_closed(holder.as_ref().map_or("transition", |h| h.detail.as_str())));
        }
    };
    let receiver = spawn(berth, intent, gate, patience);
    let wait = if input.waiting.respond_async { Duration::ZERO } else { berth.settings.provision_wait };
    let answered = match tokio::time::timeout(wait, receiver).await {
        Ok(Ok(done)) => done.map(|()| Answered::Existing)?,
        Ok(Err(_)) => return Err(Error::new(Code::Internal, "The restore's task was lost.")),
        Err(_) => Answered::Pending,
    };
    let mut view = super::lease::read(berth, caller.organization, id).await?;
    view.token = Some(berth.token_for(&view.lease));
    Ok((view, answered))
}

fn spawn(berth: &Arc<Berth>, intent: Intent, gate: Claimed, patience: Instant) -> oneshot::Receiver<Result<()>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        let held = task.work.hold(gate);
        let done = behind_the_gate(&task, &intent, &gate, patience).await;
        if done.is_ok() {
            held.settled();
        } else {
            drop(held);
            task.give_back_claims().await.ok();
        }
        task.work.ring(intent.former.sandbox_id);
        sender.send(done).ok();
    });
    receiver
}

async fn behind_the_gate(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed, patience: Instant) -> Result<()> {
    if !quiet::operations_ended(berth, intent.former.sandbox_id, patience).await? {
        let error = Error::new(Code::OperationsInProgress, "Commands are still running; a restore waits for them.");
        return Err(error.retry_after(Duration::from_secs(1)));
    }
    if intent.dirty {
        match intent.unsaved {
            Unsaved::Fail => {
                return Err(Error::new(Code::UnsavedChanges, "The workspace holds unsaved work. Say unsaved_changes: capture or discard.")
                    .allow(&["capture", "discard"]));
            }
            Unsaved::Capture => {
                capture::automatic(berth, Kind::PortableWorkspace, &intent.former, gate, true).await?;
            }
            Unsaved::Discard => super::release::require_checkpoint_of(berth, &intent.former).await?,
        }
    }
    let lease = berth.store.read().await?.lease_by_id(intent.lease).await?.ok_or_else(|| Error::not_found("lease"))?;
    let successor = successor::write(berth, &intent.former, lease.harness.as_deref(), gate, &NAMED).await?;
    let plan = Plan { restore: Some(intent.checkpoint), fork: true, ..Plan::default() };
    let ready = successor::make(berth, &successor, &plan, gate, &NAMED).await?;
    super::crash_point("before_switch");
    let switched = switch(berth, intent, gate, &successor, &ready).await;
    if switched.is_err() {
        successor::give_up(berth, &successor, Leaving::Decided, &NAMED).await?;
    }
    switched
}

/// The last transaction: nothing was written meanwhile, the lease still lives, and everything moves at once.
async fn switch(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed, successor: &Instance, ready: &Ready) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let mut sandbox = tx.lock_sandbox(intent.former.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.settle(gate).await?;
    let now = tx.now().await?;
    let mut next = tx.instance_by_id(successor.id).await?.filter(|i| i.status == InstanceStatus::Creating).ok_or(StoreError::Moved)?;
    let mut former =
        tx.instance_by_id(intent.former.id).await?.filter(|i| i.status.is_live()).ok_or_else(crate::store::fence::instance_lost)?;
    if sandbox.workspace_seq != intent.workspace_seq {
        return Err(Error::new(Code::UnsavedChanges, "The workspace was written to while the restore was prepared; nothing was changed."));
    }
    let lease = tx.lease_by_id(intent.lease).await?.ok_or_else(|| Error::not_found("lease"))?;
    crate::store::fence::check_live(&lease, now)?;
    let mut chosen = tx.checkpoint(sandbox.organization_id, intent.checkpoint).await?.ok_or_else(|| Error::not_found("checkpoint"))?;
    if !chosen.current {
        let was = chosen.status;
        chosen.status = super::step(was.on(CheckpointEvent::Attach))?;
        (chosen.attached_at, chosen.detached_at) = (Some(now), None);
        tx.save_checkpoint(&chosen, was, now).await?;
        capture::tell(&mut tx, &chosen, "checkpoint.attached", &NAMED.actor, now).await?;
        sandbox.pointer_seq += 1;
        sandbox.current_checkpoint_id = Some(chosen.id);
    }
    sandbox.synced_seq = Some(sandbox.workspace_seq);
    sandbox.diverged = false;
    successor::take_over(&mut tx, &mut sandbox, (&mut former, &mut next), ready, &NAMED, now).await?;
    tx.commit().await?;
    berth.work.ring(sandbox.id);
    terminate::spawn(berth, former.id);
    Ok(())
}
