//! Successor: an instance that is made and verified beside the current one, and takes its place under every live lease or is given up.

use std::sync::Arc;

use sqlx::types::Json;

use super::make::{self, Ready, Unmade};
use super::succeed::{self, Leaving};
use super::{Berth, terminate};
use crate::clock::Time;
use crate::error::{Error, Result};
use crate::model::event::Actor;
use crate::model::instance::{Instance, Role, Status as InstanceStatus};
use crate::model::lease::{Acquisition, How, Plan, Status};
use crate::model::sandbox::Sandbox;
use crate::store::fence::transition;
use crate::store::{Claimed, Tx};

/// What a succession is called, in events and in the ledger.
#[derive(Debug)]
pub(super) struct Named {
    /// Why the former instance was retired, and why the lease has another one.
    pub reason: &'static str,
    /// The event of each lease.
    pub event: &'static str,
    /// Why a successor that did not come to it was retired.
    pub failed: &'static str,
    pub actor: Actor,
}

/// Writes the successor's row under the gate of its sandbox; one that a server left half made is retired.
pub(super) async fn write(berth: &Berth, former: &Instance, harness: Option<&str>, gate: &Claimed, named: &Named) -> Result<Instance> {
    let mut tx = berth.store.begin().await?;
    let mut sandbox = tx.lock_sandbox(former.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    let environment =
        tx.environment(sandbox.organization_id, sandbox.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    if let Some(mut left) = tx.live_instance(sandbox.id, Role::Successor).await? {
        succeed::retire(&mut tx, &mut sandbox, &mut left, Leaving::Decided, named.failed, true, &named.actor, now).await?;
    }
    let scope = sandbox.scope.clone();
    let making = berth.making(&mut tx, &environment, scope.as_deref(), harness).await?;
    let successor = succeed::write_next(&mut tx, &mut sandbox, Role::Successor, &making, now).await?;
    tx.commit().await?;
    Ok(successor)
}

/// Makes and fills it; one that cannot be made is given up, and everything is as it was.
pub(super) async fn make(berth: &Arc<Berth>, successor: &Instance, plan: &Plan, gate: &Claimed, named: &Named) -> Result<Ready> {
    match make::make(berth, successor, plan, gate).await {
        Ok(ready) => Ok(ready),
        Err(Unmade::Superseded) => Err(transition("Somebody else has taken this over.")),
        Err(Unmade::Refused(error)) => give_up(berth, successor, Leaving::Refused, named).await.and(Err(error)),
        Err(Unmade::Failed(error)) => give_up(berth, successor, Leaving::Decided, named).await.and(Err(error)),
    }
}

/// In the caller's transaction, which has settled the gate and decided what the new content means for the pointer: the former
/// instance leaves, the next one enters, and every active lease goes on with it. Saves the sandbox.
pub(super) async fn take_over(
    tx: &mut Tx,
    sandbox: &mut Sandbox,
    (former, next): (&mut Instance, &mut Instance),
    ready: &Ready,
    named: &Named,
    now: Time,
) -> Result<()> {
    (next.running_at, next.used_at, next.observed_at) = (Some(now), now, Some(now));
    // What is to become of the sandbox once its last lease ends is not the former instance's affair alone.
    next.disposition = former.disposition;
    next.workspace_path = Some(ready.workspace_path.clone());
    succeed::switch(tx, sandbox, former, next, named.reason, &named.actor, now).await?;
    (sandbox.process_open, sandbox.unsaved_loss) = (false, false);
    sandbox.grant_seq += 1;
    tx.save_sandbox(sandbox, now).await?;
    for mut held in tx.live_leases(sandbox.id).await?.into_iter().filter(|l| l.status == Status::Active) {
        let epoch = held.epoch;
        held.instance_id = Some(next.id);
        held.generation = next.generation;
        if held.is_writer() {
            held.grant_seq = sandbox.grant_seq;
            held.acquisition = Some(Json(Acquisition {
                outcome: How::Restored,
                reason: Some(named.reason.to_owned()),
                previous_instance_id: Some(former.id),
                restored_from: ready.restored_from.clone(),
            }));
        }
        tx.save_lease(&held, Status::Active, epoch, now).await?;
        super::lease::tell(tx, &held, named.event, &named.actor, now).await?;
    }
    Ok(())
}

/// A successor that does not come to it leaves; the current instance, the pointer and the generation stay.
pub(super) async fn give_up(berth: &Arc<Berth>, successor: &Instance, how: Leaving, named: &Named) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(mut sandbox) = tx.lock_sandbox(successor.sandbox_id).await? else { return Ok(()) };
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(successor.id).await?.filter(|i| i.status == InstanceStatus::Creating) else { return Ok(()) };
    let how = if row.provider_ref.is_some() { Leaving::Decided } else { how };
    succeed::retire(&mut tx, &mut sandbox, &mut row, how, named.failed, true, &named.actor, now).await?;
    tx.commit().await?;
    if how == Leaving::Decided {
        terminate::spawn(berth, row.id);
    }
    Ok(())
}
