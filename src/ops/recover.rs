//! Recover: a lease whose instance is proven lost gets the next one, filled from the checkpoint; one flight for all who ask.

use std::sync::Arc;

use sqlx::types::Json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::input::Recover;
use super::make::{self, Ready, Unmade};
use super::succeed::{self, Leaving};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, provision, terminate};
use crate::error::{Code, Error, Result};
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, Instance, Role, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::lease::{Acquisition, How, OnUnavailable, Plan, Status};
use crate::store::error::StoreError;
use crate::store::fence::{self, transition};
use crate::store::{Carried, ClaimKind, Claimed};

const ACTOR: Actor = Actor::System { task: "recoverer" };

/// Brings a lost sandbox back under the same lease. Nothing lost, or a carried generation below the current one: the lease as it is.
pub async fn recover(berth: &Arc<Berth>, caller: &Caller, id: Uuid, input: Recover) -> Result<(LeaseView, Answered)> {
    caller.require_on_lease(Scope::Write, id)?;
    let carried = caller.carried(input.carried);
    let wait = if input.waiting.respond_async { std::time::Duration::ZERO } else { berth.settings.provision_wait };
    let patience = Instant::now() + wait;
    loop {
        let mut tx = berth.store.begin().await?;
        let locked = tx.lock_lease(caller.organization, id).await?;
        let (mut sandbox, lease, now) = (locked.sandbox, locked.lease, locked.now);
        fence::check_live(&lease, now)?;
        fence::check_epoch(&lease, Carried { generation: None, ..carried })?;
        if !lease.is_writer() {
            return Err(Error::new(Code::ReadOnlyLease, "A reader does not recover a sandbox; its writer does."));
        }
        if lease.release.is_some() {
            return Err(transition("This lease is being released."));
        }
        let Some(carried_generation) = carried.generation else {
            return Err(Error::new(Code::GenerationRequired, "Recover with an API key needs the header Berth-Generation.")
                .fact("current", sandbox.generation));
        };
        let current = match lease.instance_id {
            Some(instance) => tx.instance_by_id(instance).await?,
            None => None,
        };
        let lives = current.is_some_and(|i| i.status.is_live());
        if lives || carried_generation < lease.generation {
            drop(tx);
            return Ok((view(berth, caller, id).await?, Answered::Existing));
        }
        if carried_generation > sandbox.generation {
            return Err(fence::stale_generation(lease.generation, carried_generation));
        }
        let selected = input.restore_checkpoint_id.or(sandbox.current_checkpoint_id);
        // Its name keeps the checkpoint from being collected meanwhile.
        let detail = selected.map_or_else(|| "recover".to_owned(), |id| format!("recover {id}"));
        let claim = tx.claim(sandbox.id, ClaimKind::Recover, berth.work.owner, &detail, now, berth.settings.provision_deadline).await?;
        let Some(claim) = claim else {
            drop(tx);
            if !berth.work.line(sandbox.id).until_changed(patience).await {
                return Ok((view(berth, caller, id).await?, Answered::Pending));
            }
            continue;
        };
        if let Some(left) = tx.live_instance(sandbox.id, Role::Current).await? {
            // What a recovery that died half way was making; its claim lapsed, so it is retired and never finished.
            let mut left = left;
            if left.status != InstanceStatus::Creating {
                return Err(transition("The sandbox is changing state."));
            }
            succeed::retire(&mut tx, &mut sandbox, &mut left, Leaving::Decided, "recover_abandoned", true, &ACTOR, now).await?;
        }
        let plan = Plan {
            restore: selected,
            fork: input.restore_checkpoint_id.is_some(),
            on_unavailable: input.on_unavailable,
            reason: Some("lost".to_owned()),
            previous_instance_id: lease.instance_id,
            discard: false,
        };
        let empty = input.on_unavailable == Some(OnUnavailable::Empty);
        if plan.restore.is_none() && sandbox.unsaved_loss && !empty {
            return Err(Error::new(
                Code::CheckpointUnavailable,
                "The lost work was never saved, so there is nothing to recover from. Say restore.on_unavailable: empty to go on with an empty workspace.",
            ));
        }
        let environment =
            tx.environment(lease.organization_id, lease.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
        let chosen = input.on_unavailable.is_some() || input.restore_checkpoint_id.is_some();
        if environment.requires_checkpoint_of(&sandbox) && sandbox.is_behind() && !chosen {
            return Err(provision::behind());
        }
        let making = berth.making(&mut tx, &environment, sandbox.scope.as_deref(), lease.harness.as_deref()).await?;
        let instance = succeed::write_next(&mut tx, &mut sandbox, Role::Current, &making, now).await?;
        tx.commit().await?;
        let done = spawn(berth, id, instance, plan, claim);
        return match tokio::time::timeout_at(patience, done).await {
            Ok(Ok(done)) => {
                done?;
                Ok((view(berth, caller, id).await?, Answered::Existing))
            }
            Ok(Err(_)) => Err(Error::new(Code::Internal, "The recovery's task was lost.")),
            Err(_) => Ok((view(berth, caller, id).await?, Answered::Pending)),
        };
    }
}

async fn view(berth: &Berth, caller: &Caller, id: Uuid) -> Result<LeaseView> {
    let mut view = super::lease::read(berth, caller.organization, id).await?;
    view.token = Some(berth.token_for(&view.lease));
    Ok(view)
}

fn spawn(berth: &Arc<Berth>, lease: Uuid, instance: Instance, plan: Plan, claim: Claimed) -> oneshot::Receiver<Result<()>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        let held = task.work.hold(claim);
        let done = match make::make(&task, &instance, &plan, &claim).await {
            Ok(ready) => restamp(&task, lease, &instance, &plan, ready, &claim).await,
            Err(Unmade::Superseded) => Err(transition("Somebody else has taken the recovery over.")),
            Err(Unmade::Refused(error)) => give_up(&task, &instance, Leaving::Refused, &claim).await.and(Err(error)),
            Err(Unmade::Failed(error)) => give_up(&task, &instance, Leaving::Decided, &claim).await.and(Err(error)),
        };
        drop(held);
        task.give_back_claims().await.ok();
        task.work.ring(instance.sandbox_id);
        sender.send(done).ok();
    });
    receiver
}

/// The new instance becomes the one every live, unexpired lease of the sandbox uses.
async fn restamp(berth: &Arc<Berth>, lease: Uuid, made: &Instance, plan: &Plan, ready: Ready, claim: &Claimed) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(mut sandbox) = tx.lock_sandbox(made.sandbox_id).await? else { return Err(Error::not_found("sandbox")) };
    tx.settle(claim).await?;
    let now = tx.now().await?;
    let mut instance = tx.instance_by_id(made.id).await?.filter(|i| i.status == InstanceStatus::Creating).ok_or(StoreError::Moved)?;
    let live = tx.live_leases(sandbox.id).await?;
    if !live.iter().any(|l| l.id == lease && l.status == Status::Active && !l.has_expired(now)) {
        succeed::retire(&mut tx, &mut sandbox, &mut instance, Leaving::Decided, "lease_over", true, &ACTOR, now).await?;
        tx.commit().await?;
        terminate::spawn(berth, instance.id);
        return Err(Error::new(Code::LeaseExpired, "The lease ended while its sandbox was recovered."));
    }
    instance.status = super::step(InstanceStatus::Creating.on(InstanceEvent::Ready))?;
    (instance.running_at, instance.used_at, instance.observed_at, instance.quiet) = (Some(now), now, Some(now), true);
    instance.workspace_path = Some(ready.workspace_path.clone());
    tx.save_instance(&instance, InstanceStatus::Creating, now).await?;
    provision::settle_content(&mut tx, &mut sandbox, &instance, &ready, now).await?;
    sandbox.grant_seq += 1;
    tx.save_sandbox(&sandbox, now).await?;
    for mut held in live.into_iter().filter(|l| l.status == Status::Active) {
        let epoch = held.epoch;
        held.instance_id = Some(instance.id);
        held.generation = instance.generation;
        if held.is_writer() {
            held.grant_seq = sandbox.grant_seq;
            held.acquisition = Some(Json(Acquisition {
                outcome: if ready.restored_from.is_some() { How::Restored } else { How::Replacement },
                reason: plan.reason.clone(),
                previous_instance_id: plan.previous_instance_id,
                restored_from: ready.restored_from.clone(),
            }));
        }
        tx.save_lease(&held, Status::Active, epoch, now).await?;
        super::lease::tell(&mut tx, &held, "lease.recovered", &ACTOR, now).await?;
    }
    Ok(tx.commit().await?)
}

async fn give_up(berth: &Arc<Berth>, made: &Instance, how: Leaving, claim: &Claimed) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(mut sandbox) = tx.lock_sandbox(made.sandbox_id).await? else { return Ok(()) };
    let now = tx.now().await?;
    tx.drop_claim(claim).await?;
    let Some(mut row) = tx.instance_by_id(made.id).await?.filter(|i| i.status == InstanceStatus::Creating) else {
        return Ok(tx.commit().await?);
    };
    let how = if row.provider_ref.is_some() { Leaving::Decided } else { how };
    succeed::retire(&mut tx, &mut sandbox, &mut row, how, "recover_failed", true, &ACTOR, now).await?;
    tx.commit().await?;
    if how == Leaving::Decided {
        terminate::spawn(berth, row.id);
    }
    Ok(())
}
