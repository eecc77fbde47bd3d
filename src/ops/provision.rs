//! Provision: whatever a pending lease still needs, one step after another, until it is active or has failed. Requests and the
//! driver call the same function, so a crash at any line is finished from what the rows say.

use std::sync::Arc;

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::make::{self, Ready, Unmade};
use super::succeed::{self, Leaving};
use super::{Berth, capture, quiet, resume, terminate};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Event as CheckpointEvent, Kind as CheckpointKind, Status as CheckpointStatus};
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, HoldReason, Instance, Role, Status as InstanceStatus};
use crate::model::lease::{Acquisition, Event, How, Lease, Status};
use crate::model::sandbox::Sandbox;
use crate::provider::Observation;
use crate::store::error::StoreError;
use crate::store::{ClaimKind, Claimed, Tx};

const ACTOR: Actor = Actor::System { task: "provisioner" };

/// Whether the claim was settled by the step that ended the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// In its transaction.
    Settled,
    /// There was nothing left to do, or somebody else does it.
    NothingLeft,
}

/// Carries a pending lease on in a tracked task that no client's leaving cancels.
pub fn spawn(berth: &Arc<Berth>, lease: Uuid, claim: Claimed) {
    let task = Arc::clone(berth);
    berth.work.spawn(async move { carry_on(&task, lease, claim).await });
}

/// Steps until the lease is no longer pending, or leaves the rest to whoever claims it next.
pub async fn carry_on(berth: &Arc<Berth>, lease: Uuid, claim: Claimed) {
    let held = berth.work.hold(claim);
    match run(berth, lease, &claim).await {
        Ok(Done::Settled) => return held.settled(),
        Ok(Done::NothingLeft) => {}
        Err(error) => tracing::warn!(lease_id = %lease, code = %error.code.as_str(), "provisioning goes on later"),
    }
    drop(held);
    berth.give_back_claims().await.ok();
}

async fn run(berth: &Arc<Berth>, lease: Uuid, claim: &Claimed) -> Result<Done> {
    loop {
        let mut tx = berth.store.read().await?;
        let Some(row) = tx.lease_by_id(lease).await?.filter(|l| l.status == Status::Pending) else { return Ok(Done::NothingLeft) };
        let instance = match row.instance_id {
            Some(id) => tx.instance_by_id(id).await?,
            None => None,
        };
        let now = tx.now().await?;
        drop(tx);
        let Some(instance) = instance else {
            return fail(berth, &row, claim, Error::new(Code::Internal, "The lease lost its instance.")).await;
        };
        let overdue_since = row.created_at.after(berth.settings.provision_deadline);
        if now >= overdue_since && instance.status == InstanceStatus::Creating {
            return unmake(berth, &row, claim, Leaving::Decided, overdue(instance.status)).await;
        }
        if now >= overdue_since {
            // The instance is untouched: whatever was begun on it is an intent that the driver settles.
            return fail(berth, &row, claim, overdue(instance.status)).await;
        }
        match instance.status {
            InstanceStatus::Draining => {
                if let Some(done) = replace(berth, &row, &instance, claim).await? {
                    return Ok(done);
                }
            }
            InstanceStatus::Creating if instance.provider_ref.is_some() && row.plan.restore.is_some() => {
                if !begin_anew(berth, &row, &instance, claim).await? {
                    return Ok(Done::NothingLeft);
                }
            }
            InstanceStatus::Creating => match make::make(berth, &instance, &row.plan, claim).await {
                Ok(ready) => {
                    super::crash_point("before_activation");
                    return activate(berth, &row, claim, Some(ready)).await;
                }
                Err(Unmade::Superseded) => return Ok(Done::NothingLeft),
                Err(Unmade::Refused(error)) => return unmake(berth, &row, claim, Leaving::Refused, error).await,
                Err(Unmade::Failed(error)) => return unmake(berth, &row, claim, Leaving::Decided, error).await,
            },
            InstanceStatus::Starting => match resume::start(berth, &instance, row.grant_seq).await {
                Ok(()) => return activate(berth, &row, claim, None).await,
                Err(resume::NotStarted::Gone(reason)) => {
                    if let Some(done) = succeed_gone(berth, &row, claim, reason).await? {
                        return Ok(done);
                    }
                }
                Err(resume::NotStarted::Refused(error)) => {
                    return preserve(berth, &row, claim, Some(InstanceEvent::StartFailed), error).await;
                }
                Err(resume::NotStarted::Unknown(error)) => {
                    let seen = resume::unstarted(look(berth, &instance).await);
                    return preserve(berth, &row, claim, seen, error).await;
                }
            },
            InstanceStatus::Running => {
                if !instance.quiet {
                    quiet::silence(berth, &instance, row.grant_seq).await?;
                }
                return activate(berth, &row, claim, None).await;
            }
            _ => {
                return fail(
                    berth,
                    &row,
                    claim,
                    Error::new(Code::InstanceLost, "The sandbox's instance went away while the lease was pending."),
                )
                .await;
            }
        }
    }
}

/// Everything a step writes: the lease still pending, the claim still ours, the sandbox locked.
async fn open(berth: &Berth, lease: &Lease, claim: &Claimed) -> Result<Option<(Tx, Sandbox, Lease, Time)>> {
    let mut tx = berth.store.begin().await?;
    let Some(sandbox) = tx.lock_sandbox(lease.sandbox_id).await? else { return Ok(None) };
    let Some(now_lease) = tx.lease_by_id(lease.id).await?.filter(|l| l.status == Status::Pending) else { return Ok(None) };
    match tx.prove(claim).await {
        Ok(()) => {}
        Err(StoreError::ClaimLost) => return Ok(None),
        Err(other) => return Err(other.into()),
    }
    let now = tx.now().await?;
    Ok(Some((tx, sandbox, now_lease, now)))
}

/// The lease becomes active and its time to live starts.
async fn activate(berth: &Arc<Berth>, lease: &Lease, claim: &Claimed, ready: Option<Ready>) -> Result<Done> {
    let Some((mut tx, mut sandbox, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Done::NothingLeft) };
    let Some(mut instance) = tx.instance_by_id(lease.instance_id.unwrap_or_default()).await? else { return Ok(Done::NothingLeft) };
    if lease.require_provider_expiry {
        let wanted = lease.requested_expires_at.unwrap_or(now);
        if instance.provider_expires_at.is_none_or(|at| at < wanted) {
            drop(tx);
            let error = Error::new(Code::ProviderExpiryUnattested, "The provider attests no end as early as was required.");
            if ready.is_some() {
                return unmake(berth, &lease, claim, Leaving::Decided, error).await;
            }
            return preserve(berth, &lease, claim, Some(InstanceEvent::Ready), error).await;
        }
    }
    let was = instance.status;
    let outcome = match was {
        InstanceStatus::Creating => created_how(&lease, ready.as_ref()),
        InstanceStatus::Starting => How::Resumed,
        _ => How::Attached,
    };
    if was != InstanceStatus::Running {
        instance.status = super::step(was.on(InstanceEvent::Ready))?;
        instance.running_at = Some(now);
        instance.stopped_at = None;
    }
    instance.quiet = true;
    instance.used_at = now;
    instance.observed_at = Some(now);
    instance.hold_reason = None;
    let mut restored_from = None;
    if let Some(ready) = ready {
        settle_content(&mut tx, &mut sandbox, &instance, &ready, now).await?;
        instance.workspace_path = Some(ready.workspace_path);
        restored_from = ready.restored_from;
    }
    tx.save_instance(&instance, was, now).await?;
    tx.save_sandbox(&sandbox, now).await?;
    let replaced = matches!(outcome, How::Replacement | How::Restored);
    lease.status = super::step(Status::Pending.on(Event::Activate))?;
    lease.expires_at = Some(Time(now.0.saturating_add(lease.ttl_ms)));
    lease.acquired_at = Some(now);
    lease.acquisition = Some(Json(Acquisition {
        outcome,
        reason: lease.plan.reason.clone().filter(|_| replaced),
        previous_instance_id: lease.plan.previous_instance_id,
        restored_from,
    }));
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    super::lease::tell(&mut tx, &lease, "lease.acquired", &ACTOR, now).await?;
    tx.settle(claim).await?;
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    Ok(Done::Settled)
}

/// What the new instance's content means for the pointer, for dirty and for diverged. A checkpoint the caller named becomes the
/// current one: its own row if it is this sandbox's, else a fork, a row of its own on the same artifact.
pub(super) async fn settle_content(tx: &mut Tx, sandbox: &mut Sandbox, instance: &Instance, ready: &Ready, now: Time) -> Result<()> {
    if let Some(chosen) = ready.chosen.as_ref().filter(|c| sandbox.current_checkpoint_id != Some(c.id)) {
        let mut row = chosen.clone();
        (row.attached_at, row.detached_at) = (Some(now), None);
        if chosen.sandbox_id == sandbox.id {
            row.status = super::step(chosen.status.on(CheckpointEvent::Attach))?;
            tx.save_checkpoint(&row, chosen.status, now).await?;
        } else {
            let known = match &chosen.workspace_revision {
                Some(revision) => tx.checkpoint_by_revision(sandbox.id, revision).await?,
                None => None,
            };
            (row.id, row.parent_id) = (crate::id::new(), Some(chosen.id));
            (row.sandbox_id, row.instance_id, row.generation) = (sandbox.id, Some(instance.id), instance.generation);
            (row.workspace_seq, row.status, row.created_at) = (Some(sandbox.workspace_seq), CheckpointStatus::Attached, now);
            if let Some(known) = known {
                row = known.clone();
                row.status = super::step(known.status.on(CheckpointEvent::Attach))?;
                (row.attached_at, row.detached_at) = (Some(now), None);
                tx.save_checkpoint(&row, known.status, now).await?;
            } else {
                if !tx.hold_artifact(row.artifact_id.unwrap_or_default()).await? {
                    return Err(StoreError::Moved.into());
                }
                tx.insert_checkpoint(&row).await?;
            }
        }
        sandbox.current_checkpoint_id = Some(row.id);
        sandbox.pointer_seq += 1;
        super::capture::tell(tx, &row, "checkpoint.attached", &ACTOR, now).await?;
    }
    let in_step = !ready.diverged && (ready.restored_from.is_some() || sandbox.current_checkpoint_id.is_none());
    sandbox.synced_seq = in_step.then_some(sandbox.workspace_seq);
    sandbox.diverged = ready.diverged && sandbox.current_checkpoint_id.is_some();
    sandbox.process_open = false;
    sandbox.unsaved_loss = false;
    Ok(())
}

fn created_how(lease: &Lease, ready: Option<&Ready>) -> How {
    let restored = ready.is_some_and(|r| r.restored_from.is_some());
    match (&lease.plan.reason, restored) {
        (Some(reason), _) if reason != "restore_requested" && reason != "diverged" && reason != "policy" => How::Replacement,
        (_, true) => How::Restored,
        (Some(_), false) => How::Replacement,
        (None, false) => How::Created,
    }
}

/// The lease ends as failed; nothing is torn down.
async fn fail(berth: &Berth, lease: &Lease, claim: &Claimed, error: Error) -> Result<Done> {
    let Some((mut tx, _, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Done::NothingLeft) };
    note_failure(&mut lease, &error, now);
    lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    super::lease::tell(&mut tx, &lease, "lease.failed", &ACTOR, now).await?;
    tx.settle(claim).await?;
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    Ok(Done::Settled)
}

fn overdue(at: InstanceStatus) -> Error {
    match at {
        InstanceStatus::Starting => Error::new(Code::ResumeFailed, "Resuming the sandbox took too long; the instance is preserved."),
        _ => Error::new(Code::ProviderTimeout, "Making the sandbox ready took too long; nothing was destroyed."),
    }
}

/// A resume did not happen: the instance is preserved exactly, nothing is created. `became`: what is known to have become of it;
/// what is not known is settled by a later look.
async fn preserve(berth: &Berth, lease: &Lease, claim: &Claimed, became: Option<InstanceEvent>, error: Error) -> Result<Done> {
    let Some((mut tx, _, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Done::NothingLeft) };
    let instance = tx.instance_by_id(lease.instance_id.unwrap_or_default()).await?;
    if let (Some(mut instance), Some(event)) = (instance.filter(|i| i.status == InstanceStatus::Starting), became) {
        resume::settle_unstarted(&mut tx, &mut instance, event, now).await?;
    }
    note_failure(&mut lease, &error, now);
    lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    super::lease::tell(&mut tx, &lease, "lease.failed", &ACTOR, now).await?;
    tx.settle(claim).await?;
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    Ok(Done::Settled)
}

/// A create failed: the row leaves the live set, and what may exist is torn down.
async fn unmake(berth: &Arc<Berth>, lease: &Lease, claim: &Claimed, how: Leaving, error: Error) -> Result<Done> {
    let Some((mut tx, mut sandbox, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Done::NothingLeft) };
    let Some(mut instance) = tx.instance_by_id(lease.instance_id.unwrap_or_default()).await? else { return Ok(Done::NothingLeft) };
    let how = if how == Leaving::Refused && (instance.status != InstanceStatus::Creating || instance.provider_ref.is_some()) {
        Leaving::Decided
    } else {
        how
    };
    succeed::retire(&mut tx, &mut sandbox, &mut instance, how, "provision_failed", false, &ACTOR, now).await?;
    note_failure(&mut lease, &error, now);
    if how == Leaving::Refused {
        lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
    } else {
        lease.status = super::step(Status::Pending.on(Event::AwaitTeardown))?;
        lease.ends_as = Some(Status::Failed);
    }
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    super::lease::tell(&mut tx, &lease, "lease.failed", &ACTOR, now).await?;
    tx.settle(claim).await?;
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    if how == Leaving::Decided {
        terminate::spawn(berth, instance.id);
    }
    Ok(Done::Settled)
}

/// The provider proved that the stopped instance is gone: it is lost, and the next one is made from the checkpoint.
async fn succeed_gone(berth: &Berth, lease: &Lease, claim: &Claimed, reason: &'static str) -> Result<Option<Done>> {
    let Some((mut tx, mut sandbox, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Some(Done::NothingLeft)) };
    let Some(mut gone) = tx.instance_by_id(lease.instance_id.unwrap_or_default()).await? else { return Ok(Some(Done::NothingLeft)) };
    if gone.status != InstanceStatus::Starting {
        return Ok(Some(Done::NothingLeft));
    }
    succeed::retire(&mut tx, &mut sandbox, &mut gone, super::loss::leaving(reason), reason, false, &ACTOR, now).await?;
    let mut ended = None;
    let environment = tx.environment(lease.organization_id, lease.environment_id).await?;
    let required = environment.is_some_and(|e| e.requires_checkpoint_of(&sandbox));
    if required && sandbox.is_behind() && lease.plan.on_unavailable.is_none() && !lease.plan.fork {
        note_failure(&mut lease, &behind(), now);
        lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
        tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
        tx.settle(claim).await?;
        ended = Some(Done::Settled);
    } else if sandbox.unsaved_loss
        && sandbox.current_checkpoint_id.is_none()
        && lease.plan.on_unavailable != Some(crate::model::lease::OnUnavailable::Empty)
    {
        let error = Error::new(
            Code::CheckpointUnavailable,
            "The stopped sandbox is gone and its work was never saved. Say restore.on_unavailable: empty to start over.",
        );
        note_failure(&mut lease, &error, now);
        lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
        tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
        tx.settle(claim).await?;
        ended = Some(Done::Settled);
    } else {
        next_instance(berth, &mut tx, &mut sandbox, &mut lease, &gone, reason, now).await?;
    }
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    Ok(ended)
}

/// 409 `checkpoint_required`: the work is gone and the pointer is behind it.
pub(super) fn behind() -> Error {
    Error::new(
        Code::CheckpointRequired,
        "This environment requires a checkpoint that is not behind, and later work was lost. Name a checkpoint, or say restore.on_unavailable.",
    )
}

async fn next_instance(
    berth: &Berth,
    tx: &mut Tx,
    sandbox: &mut Sandbox,
    lease: &mut Lease,
    former: &Instance,
    reason: &str,
    now: Time,
) -> Result<()> {
    let environment = tx.environment(lease.organization_id, lease.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    let making = berth.making(tx, &environment, sandbox.scope.as_deref(), lease.harness.as_deref()).await?;
    let next = succeed::write_next(tx, sandbox, Role::Current, &making, now).await?;
    lease.instance_id = Some(next.id);
    lease.generation = next.generation;
    lease.plan.reason = Some(reason.to_owned());
    lease.plan.previous_instance_id = Some(former.id);
    if lease.plan.restore.is_none() || !lease.plan.fork {
        lease.plan.restore = sandbox.current_checkpoint_id;
    }
    Ok(tx.save_lease(lease, Status::Pending, lease.epoch, now).await?)
}

/// The instance that cannot be reused: made quiet, captured if dirty, retired, and followed by the next one. `None`: go on with it.
async fn replace(berth: &Arc<Berth>, lease: &Lease, instance: &Instance, claim: &Claimed) -> Result<Option<Done>> {
    let mut tx = berth.store.begin().await?;
    let Some(sandbox) = tx.lock_sandbox(lease.sandbox_id).await? else { return Ok(Some(Done::NothingLeft)) };
    let now = tx.now().await?;
    let gate = match tx.claim_of(sandbox.id, ClaimKind::Gate).await? {
        Some(row) if row.owner == berth.work.owner && row.detail == "drain" => {
            Some(Claimed { subject: sandbox.id, kind: ClaimKind::Gate, token: row.token, deadline: row.deadline })
        }
        _ => tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, "drain", now, berth.settings.provision_deadline).await?,
    };
    let environment = tx.environment(lease.organization_id, lease.environment_id).await?;
    let required = sandbox.workspace_seq > 0 && environment.is_some_and(|e| e.requires_checkpoint_of(&sandbox));
    let current = tx.current_checkpoint(sandbox.id).await?.map(|c| c.kind);
    let saved = current == Some(CheckpointKind::PortableWorkspace);
    tx.commit().await?;
    let gate = gate.ok_or(StoreError::ClaimLost)?;
    let held = berth.work.hold(gate);
    let unsaved = sandbox.is_dirty(Some(instance)) && !sandbox.is_anonymous();
    // A snapshot is never all that is left of an instance that is destroyed, nor what another configuration starts from.
    let dirty = unsaved || required && !saved || current == Some(CheckpointKind::ProviderNative);
    if !lease.plan.discard {
        if !instance.quiet {
            quiet::silence(berth, instance, lease.grant_seq).await?;
        }
        if dirty && let Err(cause) = capture::automatic(berth, CheckpointKind::PortableWorkspace, instance, &gate, true).await {
            let kept = keep_unsaved(berth, lease, claim, &gate, &cause, required).await?;
            held.settled();
            return Ok(Some(kept));
        }
    }
    let Some((mut tx, mut sandbox, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Some(Done::NothingLeft)) };
    let Some(mut former) = tx.instance_by_id(instance.id).await? else { return Ok(Some(Done::NothingLeft)) };
    let reason = lease.plan.reason.clone().unwrap_or_default();
    succeed::retire(&mut tx, &mut sandbox, &mut former, Leaving::Decided, &reason, lease.plan.discard, &ACTOR, now).await?;
    if lease.plan.discard {
        sandbox.unsaved_loss = false;
    }
    next_instance(berth, &mut tx, &mut sandbox, &mut lease, &former, &reason, now).await?;
    tx.settle(&gate).await?;
    tx.commit().await?;
    held.settled();
    terminate::spawn(berth, former.id);
    Ok(None)
}

/// Whoever filled the instance before may still be at it, and what it writes would land on a successor's live work. So it is retired,
/// and the workspace is put back into one that nobody else knows.
async fn begin_anew(berth: &Arc<Berth>, lease: &Lease, instance: &Instance, claim: &Claimed) -> Result<bool> {
    let Some((mut tx, mut sandbox, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(false) };
    let Some(mut former) = tx.instance_by_id(instance.id).await?.filter(|i| i.status == InstanceStatus::Creating) else { return Ok(false) };
    succeed::retire(&mut tx, &mut sandbox, &mut former, Leaving::Decided, "restore_taken_over", true, &ACTOR, now).await?;
    let (reason, previous) = (lease.plan.reason.clone(), lease.plan.previous_instance_id);
    next_instance(berth, &mut tx, &mut sandbox, &mut lease, &former, "restore_taken_over", now).await?;
    (lease.plan.reason, lease.plan.previous_instance_id) = (reason, previous);
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    tx.commit().await?;
    terminate::spawn(berth, former.id);
    Ok(true)
}

/// Unsaved work could not be saved: nothing is destroyed, the box is held and the lease fails.
async fn keep_unsaved(berth: &Berth, lease: &Lease, claim: &Claimed, gate: &Claimed, cause: &Error, required: bool) -> Result<Done> {
    let Some((mut tx, _, mut lease, now)) = open(berth, lease, claim).await? else { return Ok(Done::NothingLeft) };
    if let Some(mut instance) =
        tx.instance_by_id(lease.instance_id.unwrap_or_default()).await?.filter(|i| i.status == InstanceStatus::Draining)
    {
        let back = if instance.stopped_at.is_some() { InstanceStatus::Stopped } else { InstanceStatus::Running };
        instance.status = super::step(InstanceStatus::Draining.on(InstanceEvent::Undrain(back)))?;
        instance.hold_reason = Some(HoldReason::CaptureFailed);
        tx.save_instance(&instance, InstanceStatus::Draining, now).await?;
    }
    let error = Error::new(
        if required { Code::CheckpointRequired } else { Code::ConfigurationConflict },
        "The sandbox must be replaced, but its unsaved work could not be saved. Say discard_workspace: true to lose it.",
    )
    .fact("cause", "capture_failed")
    .fact("cause_code", cause.code.as_str());
    note_failure(&mut lease, &error, now);
    lease.status = super::step(Status::Pending.on(Event::FailUntouched))?;
    tx.save_lease(&lease, Status::Pending, lease.epoch, now).await?;
    tx.settle(claim).await?;
    tx.drop_claim(gate).await?;
    tx.commit().await?;
    berth.work.ring(lease.sandbox_id);
    Ok(Done::Settled)
}

fn note_failure(lease: &mut Lease, error: &Error, now: Time) {
    lease.failure_code = Some(error.code.as_str());
    lease.failure_reason = Some(error.detail.clone());
    let mut facts = error.facts.clone();
    if let Some(wait) = error.retry_after {
        facts.insert("retry_after_seconds".to_owned(), Value::from(wait.as_secs()));
    }
    lease.failure_facts = Some(Json(Value::Object(facts)));
    lease.released_at = Some(now);
}

/// What a look at an instance says, under its own binding and in bounded time.
pub(super) async fn look(berth: &Berth, instance: &Instance) -> Observation {
    let (Ok(provider), Some(binding), Some(provider_ref)) = (berth.provider_of(instance).await, &instance.binding, &instance.provider_ref)
    else {
        return Observation::Unknown;
    };
    tokio::time::timeout(berth.settings.call_timeout, provider.observe(binding, provider_ref)).await.unwrap_or(Observation::Unknown)
}
