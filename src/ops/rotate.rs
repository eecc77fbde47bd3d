//! Rotate: before its provider ends an instance by itself, its workspace moves to a successor, and the leases go on with that: same
//! lease, same holder, same expiry, the next generation. What fails leaves the box as it was, to be tried again.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::reap::{BATCH, begin};
use super::succeed::Leaving;
use super::successor::{self, Named};
use super::{Berth, capture, end, loss, make, plugins, quiet, terminate};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Consistency, Kind};
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::lease::{Disposition, Plan, Status};
use crate::model::operation::Status as OperationStatus;
use crate::model::sandbox::Sandbox;
use crate::store::error::StoreError;
use crate::store::{ClaimKind, Claimed, Tx};

static NAMED: Named =
    Named { reason: "rotated", event: "lease.rotated", failed: "rotation_failed", actor: Actor::System { task: "rotator" } };
/// What is left for everything but the capture once running operations had their time.
const MARGIN: Duration = Duration::from_secs(60);
/// How many periods of the reaper a rotation that failed has to wait.
const PAUSE: u32 = 6;
/// How often the rotator looks whether running operations have had their time.
const LOOK: Duration = Duration::from_millis(250);

/// What one pass began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RotateReport {
    /// Instances that their provider will end soon.
    pub due: usize,
}

/// What a rotation was claimed for.
struct Intent {
    former: Instance,
    harness: Option<String>,
    /// Everything under a lower grant is to end.
    grant_seq: i64,
    /// Until when running operations may go on.
    finish: Time,
}

/// One pass over instances that their provider will end soon; the work itself goes on in tracked tasks.
pub async fn pass(berth: &Arc<Berth>) -> Result<RotateReport> {
    let mut tx = berth.store.read().await?;
    let soon = tx.now().await?.after(berth.settings.rotation_lead);
    let due = tx.ending_instances(soon, BATCH).await?;
    drop(tx);
    for id in &due {
        begin(berth, *id, |berth, id| async move { rotate(&berth, id).await });
    }
    Ok(RotateReport { due: due.len() })
}

/// When an instance is to be rotated: the lead before its end, but not before half of its life is over, or one with a life shorter
/// than the lead would do nothing but move.
fn due_at(made: Time, ends: Time, lead: Duration) -> Time {
    ends.before(lead).max(made.after(ends.since(made) / 2))
}

/// Moves one instance's work to a successor, or, if nobody leases it, saves it and ends the instance.
async fn rotate(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let Some((intent, gate)) = claim(berth, id).await? else { return Ok(()) };
    let held = berth.work.hold(gate);
    let done = behind_the_gate(berth, &intent, &gate).await;
    if let Err(error) = &done {
        tracing::warn!(instance_id = %id, code = %error.code.as_str(), "a rotation failed; its box is left as it is, and it is tried again");
        drop(held);
        berth.give_back_claims().await?;
        let mut tx = berth.store.begin().await?;
        pause(berth, &mut tx, id).await?;
        tx.commit().await?;
    } else {
        held.settled();
    }
    berth.work.ring(intent.former.sandbox_id);
    Ok(())
}

/// Closes the gate for writes. From here on the writer works under the next grant, so that everything of the former one can end.
async fn claim(berth: &Arc<Berth>, id: Uuid) -> Result<Option<(Intent, Claimed)>> {
    let of = &berth.settings;
    let mut tx = berth.store.begin().await?;
    let Some(found) = tx.instance_by_id(id).await? else { return Ok(None) };
    let Some(mut sandbox) = tx.lock_sandbox(found.sandbox_id).await? else { return Ok(None) };
    let now = tx.now().await?;
    let rests = |row: &Instance| matches!(row.status, InstanceStatus::Running | InstanceStatus::Stopped);
    let Some(former) = tx.instance_by_id(id).await?.filter(rests) else { return Ok(None) };
    let is_due = |ends: &Time| due_at(former.created_at, *ends, of.rotation_lead) <= now;
    let Some(ends) = former.provider_expires_at.filter(is_due) else { return Ok(None) };
    let live = tx.live_leases(sandbox.id).await?;
    if live.is_empty() {
        // If it cannot be saved it is held, and has to wait like what fails below.
        pause(berth, &mut tx, id).await?;
        tx.commit().await?;
        return end::drain(berth, &former, Disposition::Destroy, false, "provider_expiry").await.map(|_| None);
    }
    if live.iter().any(|lease| lease.status == Status::Pending || lease.release.is_some()) {
        return Ok(None);
    }
    let writer = live.iter().find(|lease| lease.is_writer());
    let harness = writer.or(live.first()).and_then(|lease| lease.harness.clone());
    if let Err(error) = can_follow(berth, &mut tx, &sandbox, harness.as_deref()).await {
        pause(berth, &mut tx, id).await?;
        tx.commit().await?;
        return Err(error);
    }
    let finish = ends.before(of.capture_timeout + MARGIN);
    let span = finish.since(now) + of.capture_timeout + of.provision_deadline;
    let Some(gate) = tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, "rotation", now, span).await? else { return Ok(None) };
    sandbox.grant_seq += 1;
    tx.save_sandbox(&sandbox, now).await?;
    if let Some(writer) = writer {
        let mut writer = writer.clone();
        writer.grant_seq = sandbox.grant_seq;
        tx.save_lease(&writer, Status::Active, writer.epoch, now).await?;
    }
    tx.commit().await?;
    Ok(Some((Intent { former, harness, grant_seq: sandbox.grant_seq, finish }, gate)))
}

/// Whether a successor could be asked for at all. Where it could not, each try would only cost the holder what runs.
async fn can_follow(berth: &Berth, tx: &mut Tx, sandbox: &Sandbox, harness: Option<&str>) -> Result<()> {
    let environment =
        tx.environment(sandbox.organization_id, sandbox.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    if environment.archived_at.is_some() {
        return Err(Error::new(Code::EnvironmentArchived, "The environment is archived; nothing follows a sandbox of it."));
    }
    if !plugins::is_plugin(&environment.provider) && berth.providers.get(&environment.provider).is_none() {
        return Err(Error::new(Code::ProviderUnavailable, "This server does not run the provider of what would follow."));
    }
    berth.making(tx, &environment, sandbox.scope.as_deref(), harness).await.map(|_| ())
}

/// Leaves an instance alone for a while.
async fn pause(berth: &Berth, tx: &mut Tx, id: Uuid) -> Result<()> {
    let pause = berth.settings.reaper_period * PAUSE;
    let after = tx.now().await?.after(berth.settings.rotation_lead).after(pause);
    Ok(tx.pause_rotation(id, after).await?)
}

async fn behind_the_gate(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed) -> Result<()> {
    let (saved, workspace_seq) = match settle_and_save(berth, intent, gate).await {
        Ok(saved) => saved,
        Err(error) => {
            // What cannot be made quiet or saved may be gone already: a look says so.
            let _found = loss::investigate(berth, &intent.former).await?;
            return Err(error);
        }
    };
    let successor = successor::write(berth, &intent.former, intent.harness.as_deref(), gate, &NAMED).await?;
    let plan = Plan { restore: saved, fork: true, ..Plan::default() };
    let ready = successor::make(berth, &successor, &plan, gate, &NAMED).await?;
    super::crash_point("before_switch");
    let switched = switch(berth, intent, gate, &successor, &ready, (saved, workspace_seq)).await;
    if switched.is_err() {
        successor::give_up(berth, &successor, Leaving::Decided, &NAMED).await?;
    }
    switched
}

/// Running operations have their time and are then cut off, processes end, and what is there is saved. Says which checkpoint holds it, if
/// it is not just empty, and at which write.
async fn settle_and_save(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed) -> Result<(Option<Uuid>, i64)> {
    let former = &intent.former;
    while !quiet::operations_ended(berth, former.sandbox_id, Instant::now() + LOOK).await? {
        if berth.store.read().await?.now().await? >= intent.finish {
            break;
        }
    }
    cut_off(berth, intent, gate).await?;
    let mut tx = berth.store.read().await?;
    let is_quiet = tx.instance_by_id(former.id).await?.is_some_and(|row| row.quiet);
    drop(tx);
    if !is_quiet {
        quiet::silence_patiently(berth, former, intent.grant_seq).await?;
    }
    let mut tx = berth.store.read().await?;
    let sandbox = tx.sandbox(former.organization_id, former.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    let current = tx.current_checkpoint(sandbox.id).await?;
    drop(tx);
    let saved = match current {
        None if !sandbox.is_dirty(Some(former)) => None,
        Some(current) if current.kind == Kind::PortableWorkspace && !sandbox.is_dirty(Some(former)) => Some(current.id),
        _ => {
            let taken = capture::automatic(berth, Kind::PortableWorkspace, former, gate, true).await?;
            if taken.consistency == Some(Consistency::Live) {
                return Err(Error::new(Code::CaptureFailed, "Something went on writing while the workspace was saved."));
            }
            Some(taken.id)
        }
    };
    Ok((saved, sandbox.workspace_seq))
}

/// How an operation ends that had its time is not known to anybody.
async fn cut_off(berth: &Berth, intent: &Intent, gate: &Claimed) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(intent.former.sandbox_id).await?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    tx.settle_operations_below(intent.former.sandbox_id, intent.grant_seq, OperationStatus::Unknown, false, now).await?;
    Ok(tx.commit().await?)
}

/// The last transaction: the former instance leaves, and every live lease goes on with the successor.
async fn switch(
    berth: &Arc<Berth>,
    intent: &Intent,
    gate: &Claimed,
    successor: &Instance,
    ready: &make::Ready,
    (saved, workspace_seq): (Option<Uuid>, i64),
) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let mut sandbox = tx.lock_sandbox(intent.former.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.settle(gate).await?;
    let now = tx.now().await?;
    let mut next = tx.instance_by_id(successor.id).await?.filter(|i| i.status == InstanceStatus::Creating).ok_or(StoreError::Moved)?;
    let mut former =
        tx.instance_by_id(intent.former.id).await?.filter(|i| i.status.is_live()).ok_or_else(crate::store::fence::instance_lost)?;
    if sandbox.workspace_seq != workspace_seq {
        return Err(StoreError::Moved.into());
    }
    // A diverged workspace is moved as it is and stays diverged.
    sandbox.synced_seq = (saved == sandbox.current_checkpoint_id).then_some(workspace_seq);
    successor::take_over(&mut tx, &mut sandbox, (&mut former, &mut next), ready, &NAMED, now).await?;
    tx.commit().await?;
    tracing::info!(instance_id = %former.id, successor_id = %next.id, "an instance was rotated before its provider ends it");
    terminate::spawn(berth, former.id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_due_the_lead_before_the_end_and_never_in_the_first_half_of_a_life() {
        let lead = Duration::from_secs(900);
        assert_eq!(due_at(Time(0), Time(86_400_000), lead), Time(85_500_000));
        assert_eq!(due_at(Time(1_000), Time(601_000), lead), Time(301_000));
    }
}
