//! Resume: exactly the stopped instance is started, or nothing is; never a replacement, and never destroyed for not starting.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::input::{Carried, Waiting};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, loss, make, provision};
use crate::error::{Code, Error, Result};
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::provider::{Kind, Observation, Presence};
use crate::store::fence::transition;
use crate::store::{ClaimKind, Claimed};

const ACTOR: Actor = Actor::System { task: "resumer" };

/// Why a start did not happen.
#[derive(Debug)]
pub enum NotStarted {
    /// The provider proved, under the row's binding, that the instance does not exist.
    Gone,
    /// Anything else: the instance is preserved.
    Failed(Error),
}

/// Starts exactly this instance and raises its fence to the coming grant. Only transient failures are repeated: after 250 ms,
/// doubling, at most 5 s apart, within the resume's bound.
pub async fn start(berth: &Berth, instance: &Instance, grant_seq: i64) -> std::result::Result<(), NotStarted> {
    let provider = berth.provider_of(instance).map_err(NotStarted::Failed)?;
    let (Some(binding), Some(provider_ref)) = (&instance.binding, &instance.provider_ref) else {
        return Err(NotStarted::Failed(Error::new(Code::ResumeFailed, "The stopped instance has no recorded name at its provider.")));
    };
    if !provider.traits().stop_resume {
        return Err(NotStarted::Failed(Error::new(
            Code::ResumeUnavailable,
            "The provider no longer offers to resume; the instance is preserved.",
        )));
    }
    let until = Instant::now() + berth.settings.resume_retry;
    let mut pause = Duration::from_millis(250);
    loop {
        let started = make::call(berth, provider.start(provider_ref)).await;
        let started = match started {
            Ok(()) => make::call(berth, provider.fence(provider_ref, grant_seq)).await,
            refused => refused,
        };
        match started {
            Ok(()) => return Ok(()),
            Err(error) if error.kind == Kind::NotFound => {
                let seen = tokio::time::timeout(berth.settings.call_timeout, provider.observe(binding, provider_ref)).await;
                return Err(match seen {
                    Ok(Observation::Absent | Observation::Present(Presence::Ended)) => NotStarted::Gone,
                    _ => NotStarted::Failed(Error::new(Code::ResumeFailed, "The provider could not start the instance; it is preserved.")),
                });
            }
            Err(error) if error.kind.is_transient() && Instant::now() + pause < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
            Err(error) => {
                return Err(NotStarted::Failed(
                    Error::new(
                        Code::ResumeFailed,
                        "The provider could not start the instance; it is preserved, and nothing was made in its place.",
                    )
                    .fact("provider_error_kind", error.kind.as_str()),
                ));
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
    if matches!(started, Err(NotStarted::Gone)) {
        loss::settle(berth, instance.id, "not_found").await?;
    }
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    let now = tx.now().await?;
    tx.settle(claim).await?;
    if let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status == InstanceStatus::Starting) {
        let event = if started.is_ok() { InstanceEvent::Ready } else { InstanceEvent::StartFailed };
        row.status = super::step(InstanceStatus::Starting.on(event))?;
        if started.is_ok() {
            (row.running_at, row.stopped_at, row.quiet, row.used_at) = (Some(now), None, true, now);
            super::succeed::tell(&mut tx, &row, "instance.resumed", serde_json::json!({}), &ACTOR, now).await?;
        }
        tx.save_instance(&row, InstanceStatus::Starting, now).await?;
    }
    tx.commit().await?;
    berth.work.ring(instance.sandbox_id);
    Ok(match started {
        Ok(()) => Ok(()),
        Err(NotStarted::Gone) => Err(crate::store::fence::instance_lost()),
        Err(NotStarted::Failed(error)) => Err(error),
    })
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
            return loss::settle(berth, instance.id, "not_found").await.map(|_| ());
        }
        (InstanceStatus::Running, Observation::Present(Presence::Stopped)) => InstanceEvent::SeenStopped,
        (InstanceStatus::Draining, Observation::Present(Presence::Stopped)) => InstanceEvent::Undrain(InstanceStatus::Stopped),
        (InstanceStatus::Draining, Observation::Present(Presence::Running)) => InstanceEvent::Undrain(InstanceStatus::Running),
        (InstanceStatus::Starting, Observation::Present(Presence::Stopped)) => InstanceEvent::StartFailed,
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
