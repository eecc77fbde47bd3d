//! Resume: exactly the stopped instance is started, or nothing is; never a replacement, and never destroyed for not starting.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::input::{Carried, Waiting};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, loss, make, provision};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::provider::{Kind, Observation, Presence};
use crate::store::fence::transition;
use crate::store::{ClaimKind, Claimed, Tx};

const ACTOR: Actor = Actor::System { task: "resumer" };
/// Why a sandbox that came back without its files is not the one it was. What came back is torn down.
pub(super) const IDENTITY_MISMATCH: &str = "identity_mismatch";

/// Why a start did not happen.
#[derive(Debug)]
pub enum NotStarted {
    /// The provider proved, under the row's binding, that the instance does not exist, or not with the files it had; with the reason.
    Gone(&'static str),
    /// It surely was not started: the instance is stopped, as it was.
    Refused(Error),
    /// It may have been started: a look says whether, and the instance is preserved either way.
    Unknown(Error),
}

/// Starts exactly this instance and raises its fence to the coming grant. Only transient failures are repeated: after 250 ms,
/// doubling, at most 5 s apart, within the resume's bound.
pub async fn start(berth: &Berth, instance: &Instance, grant_seq: i64) -> std::result::Result<(), NotStarted> {
    let provider = berth.provider_of(instance).await.map_err(NotStarted::Refused)?;
    let (Some(binding), Some(provider_ref)) = (&instance.binding, &instance.provider_ref) else {
        return Err(NotStarted::Refused(Error::new(Code::ResumeFailed, "The stopped instance has no recorded name at its provider.")));
    };
    if !provider.traits().stop_resume {
        return Err(NotStarted::Refused(Error::new(
            Code::ResumeUnavailable,
            "The provider no longer offers to resume; the instance is preserved.",
        )));
    }
    let until = Instant::now() + berth.settings.resume_retry;
    let mut pause = Duration::from_millis(250);
    let mut perhaps = false;
    loop {
        let started = match make::call(berth, provider.start(provider_ref)).await {
            Ok(()) => {
                perhaps = true;
                make::call(berth, provider.fence(provider_ref, grant_seq)).await
            }
            refused => refused,
        };
        match started {
            Ok(()) => return Ok(()),
            Err(error) if error.kind == Kind::Mismatch => return Err(NotStarted::Gone(IDENTITY_MISMATCH)),
            Err(error) if error.kind == Kind::NotFound => {
                let seen = tokio::time::timeout(berth.settings.call_timeout, provider.observe(binding, provider_ref)).await;
                return Err(match seen {
                    Ok(Observation::Absent | Observation::Present(Presence::Ended)) => NotStarted::Gone("not_found"),
                    _ => NotStarted::Unknown(Error::new(Code::ResumeFailed, "The provider could not start the instance; it is preserved.")),
                });
            }
            Err(error) if error.kind.is_transient() && Instant::now() + pause < until => {
                perhaps = true;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
            Err(error) => {
                let told = Error::new(
                    Code::ResumeFailed,
                    "The provider could not start the instance; it is preserved, and nothing was made in its place.",
                )
                .fact("provider_error_kind", error.kind.as_str());
                let surely_not = !perhaps && matches!(error.kind, Kind::Refused | Kind::Invalid | Kind::Failed | Kind::Unsupported);
                return Err(if surely_not { NotStarted::Refused(told) } else { NotStarted::Unknown(told) });
            }
        }
    }
}

/// Starts the stopped instance of an active lease; one flight for all who ask.
pub async fn resume(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, carried: Carried, waiting: Waiting) -> Result<(LeaseView, Answered)> {
    caller.require_on_lease(Scope::Write, lease)?;
    let mut tx = berth.store.begin().await?;
    let fenced = tx.fence(caller.organization, lease, caller.carried(carried)).await?;
    drop(tx);
    let patience = if waiting.respond_async { Duration::ZERO } else { berth.settings.provision_wait };
    if fenced.instance.status != InstanceStatus::Running {
        match wake(berth, caller.organization, lease, Instant::now() + patience).await {
            Err(error) if error.code == Code::TransitionInProgress => {}
            other => other?,
        }
    }
    let mut view = super::lease::read(berth, caller.organization, lease).await?;
    view.token = Some(berth.token_for(&view.lease));
    let running = view.instance.as_ref().is_some_and(|i| i.status == InstanceStatus::Running);
    Ok((view, if running { Answered::Existing } else { Answered::Pending }))
}

/// Waits until the lease's instance runs, starting it if it is stopped.
pub async fn wake(berth: &Arc<Berth>, organization: Uuid, lease: Uuid, patience: Instant) -> Result<()> {
    loop {
        let mut tx = berth.store.begin().await?;
        let locked = tx.lock_lease(organization, lease).await?;
        crate::store::fence::check_live(&locked.lease, locked.now)?;
        let instance = match locked.lease.instance_id {
            Some(id) => tx.instance_by_id(id).await?,
            None => None,
        };
        let Some(mut instance) = instance.filter(|i| i.status.is_live()) else { return Err(crate::store::fence::instance_lost()) };
        match instance.status {
            InstanceStatus::Running => return Ok(()),
            InstanceStatus::Stopped => {
                tx.pass_gate(locked.sandbox.id, locked.now).await?;
                let claim = tx
                    .claim(instance.id, ClaimKind::Cleanup, berth.work.owner, "start", locked.now, berth.settings.provision_deadline)
                    .await?;
                if let Some(claim) = claim {
                    instance.status = super::step(InstanceStatus::Stopped.on(InstanceEvent::Start))?;
                    tx.save_instance(&instance, InstanceStatus::Stopped, locked.now).await?;
                    tx.commit().await?;
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let (task_berth, grant_seq) = (Arc::clone(berth), locked.lease.grant_seq);
                    berth.work.spawn(async move {
                        let held = task_berth.work.hold(claim);
                        let settled = settle_start(&task_berth, &instance, grant_seq, &claim).await;
                        if settled.is_ok() {
                            held.settled();
                        }
                        sender.send(settled.and_then(|told| told)).ok();
                    });
                    return match tokio::time::timeout_at(patience, receiver).await {
                        Ok(Ok(settled)) => settled,
                        _ => Err(transition("The sandbox is being started.")),
                    };
                }
            }
            _ => {}
        }
        drop(tx);
        if !berth.work.line(locked.sandbox.id).until_changed(patience).await {
            return Err(transition("The sandbox is changing state."));
        }
    }
}

/// Carries out a stored intent to start. The outer error: later; the inner one: what to tell the caller.
pub(super) async fn settle_start(berth: &Berth, instance: &Instance, grant_seq: i64, claim: &Claimed) -> Result<Result<()>> {
    let started = start(berth, instance, grant_seq).await;
    if let Err(NotStarted::Gone(reason)) = started {
        loss::settle(berth, instance.id, reason, None).await?;
    }
    let not_started = match &started {
        Err(NotStarted::Unknown(_)) => unstarted(provision::look(berth, instance).await),
        _ => Some(InstanceEvent::StartFailed),
    };
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    let now = tx.now().await?;
    tx.settle(claim).await?;
    if let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status == InstanceStatus::Starting) {
        if started.is_ok() {
            row.status = super::step(InstanceStatus::Starting.on(InstanceEvent::Ready))?;
            (row.running_at, row.stopped_at, row.quiet, row.used_at) = (Some(now), None, true, now);
            super::succeed::tell(&mut tx, &row, "instance.resumed", serde_json::json!({}), &ACTOR, now).await?;
            tx.save_instance(&row, InstanceStatus::Starting, now).await?;
        } else if let Some(event) = not_started {
            settle_unstarted(&mut tx, &mut row, event, now).await?;
        }
    }
    tx.commit().await?;
    berth.work.ring(instance.sandbox_id);
    Ok(match started {
        Ok(()) => Ok(()),
        Err(NotStarted::Gone(_)) => Err(crate::store::fence::instance_lost()),
        Err(NotStarted::Refused(error) | NotStarted::Unknown(error)) => Err(error),
    })
}

/// What became of an instance whose start did not succeed, by a look; `None`: nothing is known, and it stays an intent that the
/// driver settles.
pub(super) fn unstarted(seen: Observation) -> Option<InstanceEvent> {
    match seen {
        Observation::Present(Presence::Stopped | Presence::Paused) => Some(InstanceEvent::StartFailed),
        Observation::Present(Presence::Running) => Some(InstanceEvent::Ready),
        _ => None,
    }
}

/// Writes down what became of a start that did not succeed. What runs all the same is not quiet, and drained when it is idle.
pub(super) async fn settle_unstarted(tx: &mut Tx, row: &mut Instance, event: InstanceEvent, now: Time) -> Result<()> {
    row.status = super::step(InstanceStatus::Starting.on(event))?;
    if row.status == InstanceStatus::Running {
        (row.running_at, row.stopped_at, row.quiet, row.used_at) = (Some(now), None, false, now);
    }
    Ok(tx.save_instance(row, InstanceStatus::Starting, now).await?)
}

/// What a look says about an instance whose row says otherwise: settled, or left for later.
pub(super) async fn settle_by_observation(berth: &Arc<Berth>, instance: &Instance) -> Result<()> {
    let seen = provision::look(berth, instance).await;
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status == instance.status) else { return Ok(()) };
    let was = row.status;
    let event = match (was, seen) {
        (_, Observation::Absent | Observation::Present(Presence::Ended)) => {
            drop(tx);
            return loss::settle(berth, instance.id, "not_found", None).await.map(|_| ());
        }
        (InstanceStatus::Running, Observation::Present(Presence::Stopped | Presence::Paused)) => InstanceEvent::SeenStopped,
        // Somebody else started it: it is not quiet, and drained when it is idle.
        (InstanceStatus::Stopped, Observation::Present(Presence::Running)) => InstanceEvent::SeenRunning,
        (InstanceStatus::Draining, Observation::Present(Presence::Stopped)) => {
            // Its drainer goes on with it: nothing runs in it any more, and at rest it is stopped.
            (row.stopped_at, row.quiet, row.observed_at) = (row.stopped_at.or(Some(now)), true, Some(now));
            tx.save_instance(&row, was, now).await?;
            return Ok(tx.commit().await?);
        }
        (InstanceStatus::Starting, Observation::Present(Presence::Stopped | Presence::Paused)) => InstanceEvent::StartFailed,
        (InstanceStatus::Starting, Observation::Present(Presence::Running)) => InstanceEvent::Ready,
        _ => return Ok(()),
    };
    row.status = super::step(was.on(event))?;
    row.observed_at = Some(now);
    match row.status {
        InstanceStatus::Running => (row.quiet, row.stopped_at) = (false, None),
        InstanceStatus::Stopped => row.stopped_at = row.stopped_at.or(Some(now)),
        _ => {}
    }
    tx.save_instance(&row, was, now).await?;
    tx.commit().await?;
    berth.work.ring(instance.sandbox_id);
    Ok(())
}
