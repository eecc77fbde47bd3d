//! End: the one path by which a lease, or an instance nobody leases any more, comes to its rest. Release, DELETE, expiry, the idle
//! drain and a competing acquire store what they want; one story carries it out, and after a crash the driver carries it on.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::succeed::{self, Leaving};
use super::{Berth, capture, loss, make, quiet, terminate};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::Kind as CheckpointKind;
use crate::model::environment::Environment;
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, HoldReason, Instance, Status as InstanceStatus};
use crate::model::lease::{Disposition, Event, Lease, Outcome, Release, Save, Status};
use crate::model::sandbox::Sandbox;
use crate::provider::Kind;
use crate::store::error::StoreError;
use crate::store::{ClaimKind, Claimed, Tx};

const ACTOR: Actor = Actor::System { task: "ender" };

/// What `begin` came to.
#[derive(Debug)]
pub enum Begun {
    /// The lease is over already: nothing was left to tear down.
    Over,
    /// Stored; whoever holds this gate carries it out.
    Gate(Claimed),
    /// A capture or another transition holds the gate.
    Busy,
}

/// What is to become of an instance, with or without a lease.
#[derive(Clone, Debug)]
struct Ending {
    sandbox: Uuid,
    instance: Uuid,
    lease: Option<Uuid>,
    release: Release,
}

/// Stores a release on an active writer's lease: its wishes, the gate, the draining instance, all in the caller's transaction.
pub async fn begin(berth: &Berth, tx: &mut Tx, sandbox: &mut Sandbox, mut lease: Lease, release: Release, now: Time) -> Result<Begun> {
    let (was, epoch) = (lease.status, lease.epoch);
    let instance = match lease.instance_id {
        Some(id) => tx.instance_by_id(id).await?,
        None => None,
    };
    let Some(mut instance) = instance.filter(|i| i.status.is_live()) else {
        lease.status = super::step(was.on(Event::End(release.ends_as)))?;
        lease.released_at = Some(now);
        tx.save_lease(&lease, was, epoch, now).await?;
        super::lease::tell(tx, &lease, super::lease::end_event(release.ends_as), &ACTOR, now).await?;
        return Ok(Begun::Over);
    };
    if !matches!(instance.status, InstanceStatus::Running | InstanceStatus::Stopped) {
        return Ok(Begun::Busy);
    }
    let Some(gate) = tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, "drain", now, berth.settings.capture_timeout * 2).await?
    else {
        return Ok(Begun::Busy);
    };
    let instance_was = instance.status;
    instance.status = super::step(instance_was.on(InstanceEvent::Drain))?;
    tx.save_instance(&instance, instance_was, now).await?;
    sandbox.grant_seq += 1;
    tx.save_sandbox(sandbox, now).await?;
    lease.release = Some(sqlx::types::Json(release));
    tx.save_lease(&lease, was, epoch, now).await?;
    Ok(Begun::Gate(gate))
}

/// Claims an expired writer's lease, by the reaper or a competing acquire: the point of no return.
pub async fn begin_expiry(berth: &Berth, tx: &mut Tx, sandbox: &mut Sandbox, lease: Lease, now: Time) -> Result<Option<Claimed>> {
    let environment = tx.environment(lease.organization_id, lease.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    let release = Release {
        ends_as: Status::Expired,
        disposition: lease.policy.disposition(Outcome::Succeeded),
        save: environment.save_at_end(true, sandbox.is_anonymous()),
        discard: false,
        cancel_active_work: true,
        unattended: true,
        evidence: false,
        confirmed: false,
    };
    Ok(match begin(berth, tx, sandbox, lease, release, now).await? {
        Begun::Gate(gate) => Some(gate),
        Begun::Over | Begun::Busy => None,
    })
}

/// A reader's lease ends at once; the last one to go lets a stored disposition happen, which the driver carries out.
pub async fn end_reader(berth: &Berth, tx: &mut Tx, sandbox: &mut Sandbox, mut lease: Lease, end: Status, now: Time) -> Result<()> {
    let was = lease.status;
    lease.status = super::step(was.on(Event::End(end)))?;
    lease.released_at = Some(now);
    tx.save_lease(&lease, was, lease.epoch, now).await?;
    super::lease::tell(tx, &lease, super::lease::end_event(end), &ACTOR, now).await?;
    berth.work.ring(sandbox.id);
    Ok(())
}

/// Carries a stored release out in a tracked task; the receiver hears how it ended.
pub fn spawn(berth: &Arc<Berth>, lease: Uuid, gate: Claimed) -> oneshot::Receiver<Result<()>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        let ended = behind(&task, &gate, carry_out_lease(&task, lease, &gate)).await;
        if let Err(error) = &ended {
            tracing::warn!(lease_id = %lease, code = %error.code.as_str(), "a release did not end, or goes on later");
        }
        sender.send(ended).ok();
    });
    receiver
}

/// Whether the work behind a gate settled it, in the transaction that ended the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Settled,
    /// Somebody else, or a loss, has ended what there was to do.
    Unneeded,
}

/// Works behind a gate, and opens it again whatever the work came to: a gate that nobody works behind closes its scope for nothing.
async fn behind(berth: &Berth, gate: &Claimed, work: impl Future<Output = Result<Gate>>) -> Result<()> {
    let held = berth.work.hold(*gate);
    let done = work.await;
    if let Ok(Gate::Settled) = done {
        held.settled();
        return Ok(());
    }
    drop(held);
    berth.give_back_claims().await.ok();
    done.map(|_| ())
}

async fn carry_out_lease(berth: &Arc<Berth>, lease: Uuid, gate: &Claimed) -> Result<Gate> {
    let mut tx = berth.store.read().await?;
    let row = tx.lease_by_id(lease).await?.filter(|l| l.status == Status::Active);
    drop(tx);
    let Some((row, release)) = row.and_then(|l| l.release.clone().map(|r| (l, r.0))) else { return Ok(Gate::Unneeded) };
    let ending = Ending { sandbox: row.sandbox_id, instance: row.instance_id.unwrap_or_default(), lease: Some(lease), release };
    carry_out(berth, &ending, gate).await
}

/// Brings an instance that nobody leases to its rest: the idle drain, `retain_until`, a DELETE after the end.
pub async fn drain(berth: &Arc<Berth>, instance: &Instance, disposition: Disposition, discard: bool, cause: &str) -> Result<bool> {
    let mut tx = berth.store.begin().await?;
    let Some(mut sandbox) = tx.lock_sandbox(instance.sandbox_id).await? else { return Ok(false) };
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(instance.id).await? else { return Ok(false) };
    let rests = matches!(row.status, InstanceStatus::Running | InstanceStatus::Stopped);
    if !rests || sandbox.instance_id != Some(row.id) || !tx.live_leases(sandbox.id).await?.is_empty() {
        return Ok(false);
    }
    let Some(gate) = tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, "drain", now, berth.settings.capture_timeout * 2).await?
    else {
        return Ok(false);
    };
    let was = row.status;
    row.status = super::step(was.on(InstanceEvent::Drain))?;
    row.disposition = row.disposition.max(Some(disposition));
    tx.save_instance(&row, was, now).await?;
    sandbox.grant_seq += 1;
    tx.save_sandbox(&sandbox, now).await?;
    tx.commit().await?;
    let release = Release {
        ends_as: Status::Released,
        disposition,
        save: if sandbox.is_anonymous() { Save::None } else { Save::Auto },
        discard,
        cancel_active_work: true,
        unattended: true,
        evidence: false,
        confirmed: false,
    };
    tracing::info!(instance_id = %row.id, cause, disposition = disposition.as_str(), "an unleased instance is drained");
    let ending = Ending { sandbox: sandbox.id, instance: row.id, lease: None, release };
    behind(berth, &gate, carry_out(berth, &ending, &gate)).await?;
    Ok(true)
}

/// Carries on a drain without a lease that a crash left behind, with the gate just taken.
pub(super) async fn carry_on_drain(berth: &Arc<Berth>, row: &Instance, gate: Claimed) -> Result<()> {
    let mut tx = berth.store.read().await?;
    let anonymous = tx.sandbox(row.organization_id, row.sandbox_id).await?.is_none_or(|s| s.is_anonymous());
    drop(tx);
    let release = Release {
        ends_as: Status::Released,
        disposition: row.disposition.unwrap_or(Disposition::StopAndRetain),
        save: if anonymous { Save::None } else { Save::Auto },
        discard: false,
        cancel_active_work: true,
        unattended: true,
        evidence: false,
        confirmed: false,
    };
    let ending = Ending { sandbox: row.sandbox_id, instance: row.id, lease: None, release };
    behind(berth, &gate, carry_out(berth, &ending, &gate)).await
}

/// Quiet, saved, at rest: in this order, each step repeatable.
async fn carry_out(berth: &Arc<Berth>, ending: &Ending, gate: &Claimed) -> Result<Gate> {
    let release = &ending.release;
    if !release.cancel_active_work && !quiet::operations_ended(berth, ending.sandbox, Instant::now() + berth.settings.drain_wait).await? {
        let error = Error::new(Code::OperationsInProgress, "Commands are still running. Wait for them, or say cancel_active_work: true.");
        return undo(berth, ending, gate, error).await;
    }
    let mut tx = berth.store.read().await?;
    let Some(instance) = tx.instance_by_id(ending.instance).await?.filter(|i| i.status == InstanceStatus::Draining) else {
        return Ok(Gate::Unneeded);
    };
    let Some(sandbox) = tx.sandbox(instance.organization_id, ending.sandbox).await? else { return Ok(Gate::Unneeded) };
    let destroys = instance.disposition.max(Some(release.disposition)) == Some(Disposition::Destroy);
    let environment = tx.environment(instance.organization_id, instance.environment_id).await?;
    let required = destroys && sandbox.workspace_seq > 0 && environment.is_some_and(|e| e.requires_checkpoint_of(&sandbox));
    let current = tx.current_checkpoint(sandbox.id).await?.map(|c| c.kind);
    let saved = current == Some(CheckpointKind::PortableWorkspace);
    drop(tx);
    let processes_go_on = release.disposition == Disposition::KeepRunning && !release.cancel_active_work;
    let mut certain = true;
    if !instance.quiet
        && !processes_go_on
        && let Err(error) = quiet::silence_patiently(berth, &instance, sandbox.grant_seq).await
    {
        match loss::investigate(berth, &instance).await? {
            loss::Found::Lost => return Ok(Gate::Unneeded),
            // Nothing runs in what is stopped.
            loss::Found::Stopped => {}
            loss::Found::Unproven if !release.unattended => return undo(berth, ending, gate, error).await,
            // The stop, or the teardown, is the kill; until then something may go on writing, and the capture says so.
            loss::Found::Unproven => certain = false,
        }
    }
    let dirty = sandbox.is_dirty(Some(&instance)) || !certain;
    let wanted = match release.save {
        Save::None => false,
        // A snapshot is never all that is left of a sandbox that is destroyed.
        Save::Auto => (dirty || destroys && current == Some(CheckpointKind::ProviderNative)) && !release.discard,
        Save::PortableWorkspace | Save::ProviderNative => true,
    };
    let wanted = wanted || required && (dirty || !saved);
    let native = release.save == Save::ProviderNative && !destroys;
    let kind = if native { CheckpointKind::ProviderNative } else { CheckpointKind::PortableWorkspace };
    if wanted && let Err(cause) = capture::automatic(berth, kind, &instance, gate, certain).await {
        if loss::investigate(berth, &instance).await? == loss::Found::Lost {
            return Ok(Gate::Unneeded);
        }
        if required || !release.discard && !sandbox.is_anonymous() {
            return unsaved(berth, ending, gate, cause, required).await;
        }
    }
    if required && !certain {
        let cause = Error::new(Code::CheckpointRequired, "Something may still write, so no checkpoint is certain to hold everything.");
        return unsaved(berth, ending, gate, cause, required).await;
    }
    super::crash_point("before_rest");
    let mut ending = ending.clone();
    if !certain {
        ending.release.disposition = ending.release.disposition.max(Disposition::StopAndRetain);
    }
    rest(berth, &ending, gate).await
}

async fn open(berth: &Berth, ending: &Ending, gate: &Claimed) -> Result<Option<(Tx, Sandbox, Option<Lease>, Instance, Time)>> {
    let mut tx = berth.store.begin().await?;
    let Some(sandbox) = tx.lock_sandbox(ending.sandbox).await? else { return Ok(None) };
    match tx.prove(gate).await {
        Ok(()) => {}
        Err(StoreError::ClaimLost) => return Ok(None),
        Err(other) => return Err(other.into()),
    }
    let lease = match ending.lease {
        Some(id) => {
            let Some(lease) = tx.lease_by_id(id).await?.filter(|l| l.status == Status::Active && l.release.is_some()) else {
                return Ok(None);
            };
            Some(lease)
        }
        None => None,
    };
    let Some(instance) = tx.instance_by_id(ending.instance).await?.filter(|i| i.status == InstanceStatus::Draining) else {
        return Ok(None);
    };
    let now = tx.now().await?;
    Ok(Some((tx, sandbox, lease, instance, now)))
}

fn undrained(instance: &Instance) -> InstanceStatus {
    if instance.stopped_at.is_some() { InstanceStatus::Stopped } else { InstanceStatus::Running }
}

/// All as before: the release is forgotten and the caller told why. What the lease had running may have been killed behind a raised
/// fence, so it goes on under the grant of that fence.
async fn undo(berth: &Berth, ending: &Ending, gate: &Claimed, error: Error) -> Result<Gate> {
    let Some((mut tx, sandbox, lease, mut instance, now)) = open(berth, ending, gate).await? else { return Err(error) };
    instance.status = super::step(InstanceStatus::Draining.on(InstanceEvent::Undrain(undrained(&instance))))?;
    tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
    if let Some(mut lease) = lease {
        lease.release = None;
        lease.grant_seq = sandbox.grant_seq;
        tx.save_lease(&lease, Status::Active, lease.epoch, now).await?;
    }
    tx.settle(gate).await?;
    tx.commit().await?;
    berth.work.ring(ending.sandbox);
    Err(error)
}

/// The work could not be saved. Somebody waits: nothing happens, and they are told. Nobody does: the lease ends, the box is held.
async fn unsaved(berth: &Arc<Berth>, ending: &Ending, gate: &Claimed, cause: Error, required: bool) -> Result<Gate> {
    if !ending.release.unattended {
        let error = if required {
            Error::new(
                Code::CheckpointRequired,
                "This environment requires a checkpoint before a sandbox is destroyed, and none could be taken; nothing was destroyed.",
            )
        } else {
            Error::new(
                Code::CaptureFailed,
                "The workspace could not be saved, so nothing was stopped or destroyed. Say discard_workspace: true to lose it.",
            )
        };
        let error = error.fact("cause_code", cause.code.as_str());
        return undo(berth, ending, gate, error).await;
    }
    let Some((mut tx, _, lease, mut instance, now)) = open(berth, ending, gate).await? else { return Ok(Gate::Unneeded) };
    instance.hold_reason = Some(HoldReason::CaptureFailed);
    let rests = undrained(&instance) == InstanceStatus::Stopped;
    let event = if rests { InstanceEvent::Undrain(InstanceStatus::Stopped) } else { InstanceEvent::Stop };
    instance.status = super::step(InstanceStatus::Draining.on(event))?;
    instance.disposition = None;
    tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
    succeed::tell(
        &mut tx,
        &instance,
        "instance.held",
        serde_json::json!({ "reason": "capture_failed", "cause_code": cause.code.as_str() }),
        &ACTOR,
        now,
    )
    .await?;
    if let Some(mut lease) = lease {
        lease.status = super::step(Status::Active.on(Event::End(ending.release.ends_as)))?;
        (lease.release, lease.released_at) = (None, Some(now));
        lease.failure_code = Some(Code::CaptureFailed.as_str());
        tx.save_lease(&lease, Status::Active, lease.epoch, now).await?;
        super::lease::tell(&mut tx, &lease, super::lease::end_event(ending.release.ends_as), &ACTOR, now).await?;
    }
    tx.settle(gate).await?;
    let stop = if rests { None } else { claim_stop(berth, &mut tx, &instance, now).await? };
    tx.commit().await?;
    tracing::warn!(instance_id = %instance.id, cause = %cause.code.as_str(), "an instance is held: its unsaved work could not be saved");
    berth.work.ring(ending.sandbox);
    if let Some(claim) = stop {
        later(settle_stop(berth, &instance, claim).await);
    }
    Ok(Gate::Settled)
}

/// The lease is over and the gate open; what is left is an intent in the ledger, which the driver carries on.
fn later(left: Result<()>) {
    if let Err(error) = left {
        tracing::warn!(code = %error.code.as_str(), "a stop or a teardown goes on later");
    }
}

async fn claim_stop(berth: &Berth, tx: &mut Tx, instance: &Instance, now: Time) -> Result<Option<Claimed>> {
    Ok(tx.claim(instance.id, ClaimKind::Cleanup, berth.work.owner, "stop", now, berth.settings.provision_deadline).await?)
}

/// The instance comes to rest as the strongest stored disposition says, and the lease ends.
async fn rest(berth: &Arc<Berth>, ending: &Ending, gate: &Claimed) -> Result<Gate> {
    let Some((mut tx, mut sandbox, lease, mut instance, now)) = open(berth, ending, gate).await? else { return Ok(Gate::Unneeded) };
    let environment: Environment =
        tx.environment(instance.organization_id, instance.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    let others = tx.live_leases(sandbox.id).await?.into_iter().filter(|l| Some(l.id) != ending.lease && !l.has_expired(now)).count();
    let disposition = instance.disposition.map_or(ending.release.disposition, |d| d.max(ending.release.disposition));
    let back = undrained(&instance);
    let mut stop = None;
    let mut destroyed = false;
    instance.used_at = now;
    if others > 0 && disposition > Disposition::KeepRunning {
        instance.disposition = Some(disposition);
        instance.status = super::step(InstanceStatus::Draining.on(InstanceEvent::Undrain(back)))?;
        tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
    } else if disposition == Disposition::Destroy {
        let consented = ending.release.discard || ending.release.save == Save::None;
        succeed::retire(&mut tx, &mut sandbox, &mut instance, Leaving::Decided, end_reason(ending), consented, &ACTOR, now).await?;
        destroyed = true;
        for mut other in tx.unended_leases_of_instance(instance.id).await?.into_iter().filter(|l| l.status == Status::Retained) {
            other.status = super::step(Status::Retained.on(Event::AwaitTeardown))?;
            let due = other.retain_until.is_some_and(|at| at <= now);
            (other.ends_as, other.retain_until) = (Some(if due { Status::Expired } else { Status::Released }), None);
            tx.save_lease(&other, Status::Retained, other.epoch, now).await?;
        }
    } else if disposition == Disposition::StopAndRetain && back == InstanceStatus::Running {
        // What is kept of it says that only a confirmation ends this stop.
        instance.disposition = ending.release.confirmed.then_some(disposition);
        instance.status = super::step(InstanceStatus::Draining.on(InstanceEvent::Stop))?;
        tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
        stop = claim_stop(berth, &mut tx, &instance, now).await?;
    } else {
        instance.disposition = None;
        instance.status = super::step(InstanceStatus::Draining.on(InstanceEvent::Undrain(back)))?;
        tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
    }
    if let Some(mut lease) = lease {
        lease.release = None;
        lease.released_at = Some(now);
        let kept = disposition == Disposition::KeepRunning && others == 0;
        if destroyed {
            lease.status = super::step(Status::Active.on(Event::AwaitTeardown))?;
            lease.ends_as = Some(ending.release.ends_as);
        } else if kept && ending.release.ends_as != Status::Expired {
            lease.status = super::step(Status::Active.on(Event::Retain))?;
            lease.retain_until = Some(Time(now.0.saturating_add(environment.retain_ms)));
            lease.evidence = ending.release.evidence;
        } else {
            lease.status = super::step(Status::Active.on(Event::End(ending.release.ends_as)))?;
        }
        tx.save_lease(&lease, Status::Active, lease.epoch, now).await?;
        if !destroyed {
            super::lease::tell(&mut tx, &lease, super::lease::end_event(ending.release.ends_as), &ACTOR, now).await?;
        }
    }
    tx.settle(gate).await?;
    tx.commit().await?;
    berth.work.ring(ending.sandbox);
    if let Some(claim) = stop {
        later(settle_stop(berth, &instance, claim).await);
    }
    if destroyed {
        later(terminate::terminate(berth, instance.id).await.map(|_| ()));
    }
    Ok(Gate::Settled)
}

fn end_reason(ending: &Ending) -> &'static str {
    match (ending.lease, ending.release.ends_as) {
        (None, _) => "drained",
        (_, Status::Expired) => "expired",
        _ => "released",
    }
}

/// Carries out a stored intent to stop; settled by a confirmation or an observation, and never by destroy.
pub(super) async fn settle_stop(berth: &Arc<Berth>, instance: &Instance, claim: Claimed) -> Result<()> {
    let held = berth.work.hold(claim);
    let provider = berth.provider_of(instance).await?;
    let stopped = make::call(berth, provider.stop(instance.provider_ref.as_deref().unwrap_or_default())).await;
    if let Err(error) = &stopped {
        if error.kind == Kind::NotFound && loss::investigate(berth, instance).await? == loss::Found::Lost {
            return Ok(());
        }
        tracing::warn!(instance_id = %instance.id, kind = error.kind.as_str(), "a stop is not confirmed yet; it is repeated");
        drop(held);
        return berth.give_back_claims().await;
    }
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    let now = tx.now().await?;
    tx.settle(&claim).await?;
    if let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status == InstanceStatus::Stopping) {
        row.status = super::step(InstanceStatus::Stopping.on(InstanceEvent::Stopped))?;
        (row.stopped_at, row.quiet, row.observed_at, row.disposition) = (Some(now), true, Some(now), None);
        tx.save_instance(&row, InstanceStatus::Stopping, now).await?;
        succeed::tell(&mut tx, &row, "instance.stopped", serde_json::json!({}), &ACTOR, now).await?;
    }
    tx.commit().await?;
    held.settled();
    berth.work.ring(instance.sandbox_id);
    Ok(())
}
