//! Release and DELETE: what the caller wants is stored, then carried out through `end`, and repeated calls answer the same end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::end::{self, Begun};
use super::input::ReleaseRequest;
use super::succeed::{self, Leaving};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, terminate};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::environment::Environment;
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::lease::{Disposition, Event, Lease, Outcome, Release, Save, Status};
use crate::model::sandbox::Sandbox;
use crate::store::fence::{self, gate_closed, transition};
use crate::store::{Carried, ClaimKind, Tx};

const ACTOR: Actor = Actor::System { task: "releaser" };

/// Ends a lease as its holder wishes.
pub async fn release(berth: &Arc<Berth>, caller: &Caller, id: Uuid, input: ReleaseRequest) -> Result<(LeaseView, Answered)> {
    caller.require_on_lease(Scope::Write, id)?;
    if caller.is_token() && (input.disposition == Some(Disposition::Destroy) || input.discard_workspace) {
        return Err(Error::new(Code::Forbidden, "A lease token may neither destroy nor discard; use an API key."));
    }
    if input.checkpoint == Some(Save::ProviderNative) {
        let instance = super::lease::read(berth, caller.organization, id).await?.lease.instance_id;
        if let Some(instance) = instance
            && let Some(row) = berth.store.read().await?.instance_by_id(instance).await?
        {
            super::native::offered(berth, &row).await?;
        }
    }
    end_lease(berth, caller, id, &input).await?;
    answer(berth, caller, id).await
}

/// Ends a lease and its instance, from every status. `Existing`: the provider confirmed; `Pending`: not yet.
pub async fn delete(berth: &Arc<Berth>, caller: &Caller, id: Uuid, discard_workspace: bool) -> Result<(LeaseView, Answered)> {
    caller.require(Scope::Write)?;
    let input = ReleaseRequest {
        disposition: Some(Disposition::Destroy),
        discard_workspace,
        cancel_active_work: true,
        ..ReleaseRequest::default()
    };
    end_lease(berth, caller, id, &input).await?;
    let view = super::lease::read(berth, caller.organization, id).await?;
    if matches!(view.lease.status, Status::Retained) || view.lease.status.is_end() {
        destroy_rest(berth, &view.lease, discard_workspace).await?;
    }
    answer(berth, caller, id).await
}

async fn answer(berth: &Berth, caller: &Caller, id: Uuid) -> Result<(LeaseView, Answered)> {
    let patience = Instant::now() + berth.settings.provision_wait.min(Duration::from_secs(10));
    loop {
        let view = super::lease::read(berth, caller.organization, id).await?;
        // A destroy that is stored for later, behind readers or a transition, is not confirmed either.
        let stored = view.instance.as_ref().is_some_and(|i| i.status.is_live() && i.disposition == Some(Disposition::Destroy));
        let open = stored || view.lease.status == Status::PendingCleanup || view.lease.release.is_some();
        let deferred = view.instance.as_ref().is_some_and(|i| i.cleanup_error_kind.is_some());
        if !open || stored || deferred || !berth.work.line(view.lease.sandbox_id).until_changed(patience).await {
            return Ok((view, if open { Answered::Pending } else { Answered::Existing }));
        }
    }
}

async fn end_lease(berth: &Arc<Berth>, caller: &Caller, id: Uuid, input: &ReleaseRequest) -> Result<()> {
    let patience = Instant::now() + input.waiting.others;
    loop {
        let mut tx = berth.store.begin().await?;
        let locked = tx.lock_lease(caller.organization, id).await?;
        let (mut sandbox, lease, now) = (locked.sandbox, locked.lease, locked.now);
        let carried = caller.carried(Carried::default());
        if lease.status.is_live() {
            fence::check_epoch(&lease, Carried { generation: None, ..carried })?;
        }
        if !lease.status.is_live() {
            return Ok(());
        }
        if lease.status == Status::Pending {
            let teardown = end_pending(&mut tx, &mut sandbox, lease, now).await?;
            tx.commit().await?;
            berth.work.ring(sandbox.id);
            if let Some(instance) = teardown {
                terminate::terminate(berth, instance).await?;
            }
            return Ok(());
        }
        if !lease.is_writer() {
            end::end_reader(berth, &mut tx, &mut sandbox, lease, end_of(input), now).await?;
            tx.commit().await?;
            return Ok(());
        }
        let obstacle = if lease.release.is_some() {
            transition("This lease is being released already.")
        } else {
            let environment =
                tx.environment(lease.organization_id, lease.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
            let release = wished(input, &lease, &environment, sandbox.is_anonymous());
            if release.disposition == Disposition::Destroy && (release.discard || release.save == Save::None) {
                let instance = super::lease::live_instance_of(&mut tx, &sandbox).await?;
                require_checkpoint(&environment, &sandbox, instance.as_ref())?;
            }
            match end::begin(berth, &mut tx, &mut sandbox, lease, release, now).await? {
                Begun::Over => return Ok(tx.commit().await?),
                Begun::Gate(gate) => {
                    tx.commit().await?;
                    berth.work.ring(sandbox.id);
                    let ended = end::spawn(berth, id, gate);
                    return match tokio::time::timeout(berth.settings.provision_wait, ended).await {
                        Ok(Ok(ended)) => ended,
                        _ => Ok(()),
                    };
                }
                Begun::Busy => {
                    let gate = tx.claim_of(sandbox.id, ClaimKind::Gate).await?;
                    gate.map_or_else(|| transition("The sandbox is changing state."), |g| gate_closed(&g.detail))
                }
            }
        };
        drop(tx);
        if !berth.work.line(sandbox.id).until_changed(patience).await {
            return Err(obstacle);
        }
    }
}

/// Where the environment requires it, what no checkpoint holds is neither destroyed nor replaced, whoever consents.
pub(super) fn require_checkpoint(environment: &Environment, sandbox: &Sandbox, instance: Option<&Instance>) -> Result<()> {
    if environment.requires_checkpoint_of(sandbox) && sandbox.is_dirty(instance) {
        return Err(Error::new(
            Code::CheckpointRequired,
            "This environment requires a checkpoint of what is unsaved first. Capture it, then repeat; nothing was destroyed.",
        ));
    }
    Ok(())
}

/// The same for an instance nobody leases.
pub(super) async fn require_checkpoint_of(berth: &Berth, instance: &Instance) -> Result<()> {
    let mut tx = berth.store.read().await?;
    let environment = tx.environment(instance.organization_id, instance.environment_id).await?;
    let sandbox = tx.sandbox(instance.organization_id, instance.sandbox_id).await?;
    match (environment, sandbox) {
        (Some(environment), Some(sandbox)) => require_checkpoint(&environment, &sandbox, Some(instance)),
        _ => Ok(()),
    }
}

fn end_of(input: &ReleaseRequest) -> Status {
    if input.outcome == Some(Outcome::Failed) { Status::Failed } else { Status::Released }
}

fn wished(input: &ReleaseRequest, lease: &Lease, environment: &Environment, anonymous: bool) -> Release {
    let outcome = input.outcome.unwrap_or(Outcome::Succeeded);
    let disposition = input.disposition.unwrap_or_else(|| lease.policy.disposition(outcome));
    Release {
        ends_as: end_of(input),
        disposition,
        save: input.checkpoint.unwrap_or_else(|| environment.save_at_end(false, anonymous)),
        discard: input.discard_workspace,
        cancel_active_work: input.cancel_active_work,
        unattended: false,
        evidence: input.disposition.is_none() && disposition == Disposition::KeepRunning,
        confirmed: input.disposition == Some(Disposition::StopAndRetain) || input.cancel_active_work,
    }
}

/// A lease that was never active: what is being made is torn down, what was being resumed is preserved.
async fn end_pending(tx: &mut Tx, sandbox: &mut Sandbox, mut lease: Lease, now: Time) -> Result<Option<Uuid>> {
    let mut teardown = None;
    let instance = match lease.instance_id {
        Some(id) => tx.instance_by_id(id).await?,
        None => None,
    };
    if let Some(mut instance) = instance.filter(|i| i.status.is_live()) {
        let was = instance.status;
        match was {
            InstanceStatus::Creating => {
                succeed::retire(tx, sandbox, &mut instance, Leaving::Decided, "released", true, &ACTOR, now).await?;
                teardown = Some(instance.id);
            }
            // A start is an intent that may be on its way: the driver settles it by a look.
            InstanceStatus::Draining => {
                let back = if instance.stopped_at.is_some() { InstanceStatus::Stopped } else { InstanceStatus::Running };
                instance.status = super::step(was.on(InstanceEvent::Undrain(back)))?;
                tx.save_instance(&instance, was, now).await?;
                tx.clear_claim(sandbox.id, ClaimKind::Gate).await?;
            }
            _ => {}
        }
    }
    if teardown.is_some() {
        lease.status = super::step(Status::Pending.on(Event::AwaitTeardown))?;
        lease.ends_as = Some(Status::Released);
    } else {
        lease.status = super::step(Status::Pending.on(Event::End(Status::Released)))?;
    }
    lease.released_at = Some(now);
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    super::lease::tell(tx, &lease, "lease.released", &ACTOR, now).await?;
    tx.clear_claim(lease.id, ClaimKind::Provision).await?;
    Ok(teardown)
}

/// DELETE of a lease that is over: its instance goes too, unless another lease has come to use it since.
async fn destroy_rest(berth: &Arc<Berth>, lease: &Lease, discard: bool) -> Result<()> {
    let Some(id) = lease.instance_id else { return Ok(()) };
    let mut tx = berth.store.read().await?;
    let Some(instance) = tx.instance_by_id(id).await? else { return Ok(()) };
    let last = tx.last_lease_of_instance(id).await?;
    drop(tx);
    if !instance.status.is_live() || last.is_some_and(|l| l.id != lease.id) {
        return Ok(());
    }
    if discard {
        require_checkpoint_of(berth, &instance).await?;
    }
    if !end::drain(berth, &instance, Disposition::Destroy, discard, "deleted").await? {
        return store_destroy(berth, &instance).await;
    }
    let after = berth.store.read().await?.instance_by_id(id).await?;
    match after {
        Some(row) if row.hold_reason.is_some() => Err(Error::new(
            Code::CaptureFailed,
            "The workspace could not be saved, so nothing was destroyed. Say discard_workspace=true to lose it.",
        )),
        _ => Ok(()),
    }
}

/// The instance is in the middle of something: the wish is stored, and happens as soon as it rests.
async fn store_destroy(berth: &Arc<Berth>, instance: &Instance) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(sandbox) = tx.lock_sandbox(instance.sandbox_id).await? else { return Ok(()) };
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status.is_live()) else { return Ok(()) };
    if sandbox.instance_id != Some(row.id) || !tx.live_leases(sandbox.id).await?.is_empty() {
        return Ok(());
    }
    row.disposition = Some(Disposition::Destroy);
    let was = row.status;
    tx.save_instance(&row, was, now).await?;
    Ok(tx.commit().await?)
}
