//! Drive: what a crash or a lapsed claim left half done is taken over and carried on, through the same functions that requests use.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::reap::{BATCH, begin};
use super::succeed::{self, Leaving};
use super::{Berth, capture, end, provision, resume, terminate};
use crate::error::Result;
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::lease::Status;
use crate::store::{ClaimKind, Claimed};

const ACTOR: Actor = Actor::System { task: "driver" };

/// What one pass took over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DriveReport {
    /// Pending leases nobody was making ready.
    pub pending: usize,
    /// Stored releases nobody was carrying out.
    pub releases: usize,
    /// Stops, starts, drains and creates nobody was settling.
    pub intents: usize,
    /// Teardowns that were due.
    pub cleanups: usize,
    /// Operations whose server is gone.
    pub operations: usize,
    /// Sandboxes with captures whose server is gone.
    pub captures: usize,
}

/// One pass over unfinished work; the work itself goes on in tracked tasks.
pub async fn pass(berth: &Arc<Berth>) -> Result<DriveReport> {
    let mut tx = berth.store.read().await?;
    let now = tx.now().await?;
    let operations = tx.abandoned_operations(now, BATCH).await?;
    let captures = tx.abandoned_captures(now, BATCH).await?;
    let pending = tx.unclaimed_pending_leases(now, BATCH).await?;
    let releases = tx.unclaimed_releases(now, BATCH).await?;
    let intents = tx.unclaimed_intents(now, BATCH).await?;
    let cleanups = tx.cleanup_due(now, BATCH).await?;
    drop(tx);
    let report = DriveReport {
        pending: pending.len(),
        releases: releases.len(),
        intents: intents.len(),
        cleanups: cleanups.len(),
        operations: operations.len(),
        captures: captures.len(),
    };
    for sandbox in captures {
        begin(berth, sandbox, |berth, id| async move { capture::abandon(&berth, id).await });
    }
    for operation in operations {
        begin(berth, operation, |berth, id| async move { abandon(&berth, id).await });
    }
    for lease in pending {
        begin(berth, lease, |berth, id| async move { carry_on_pending(&berth, id).await });
    }
    for lease in releases {
        begin(berth, lease, |berth, id| async move { carry_on_release(&berth, id).await });
    }
    for instance in intents {
        begin(berth, instance, |berth, id| async move { carry_on_intent(&berth, id).await });
    }
    for instance in cleanups {
        begin(berth, instance, |berth, id| async move { terminate::terminate(&berth, id).await.map(|_| ()) });
    }
    Ok(report)
}

/// Forgets execs and answered requests from longer ago than they are kept.
pub async fn forget_old(berth: &Arc<Berth>) -> Result<u64> {
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let gone = tx.forget_operations(now.before(Duration::from_secs(24 * 3600))).await?;
    tx.forget_idempotency_before(now.before(super::idempotency::KEPT), now).await?;
    tx.commit().await?;
    Ok(gone)
}

/// Nobody knows how it ended, and it is never run again.
async fn abandon(berth: &Berth, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.clear_lapsed(id, ClaimKind::Operation, now).await?;
    if !tx.is_claimed(id, ClaimKind::Operation, now).await? {
        tx.settle_operation(id, &super::admit::plain(crate::model::operation::Status::Unknown, None), now).await?;
    }
    Ok(tx.commit().await?)
}

async fn carry_on_pending(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(lease) = tx.lease_by_id(id).await? else { return Ok(()) };
    tx.lock_sandbox(lease.sandbox_id).await?;
    let now = tx.now().await?;
    let Some(lease) = tx.lease_by_id(id).await?.filter(|l| l.status == Status::Pending) else { return Ok(()) };
    let claim = tx.claim(lease.id, ClaimKind::Provision, berth.work.owner, "provision", now, berth.settings.provision_deadline).await?;
    tx.commit().await?;
    if let Some(claim) = claim {
        provision::carry_on(berth, lease.id, claim).await;
    }
    Ok(())
}

async fn carry_on_release(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(lease) = tx.lease_by_id(id).await? else { return Ok(()) };
    let gate = take_gate(berth, &mut tx, lease.sandbox_id).await?;
    tx.commit().await?;
    match gate {
        Some(gate) => end::spawn(berth, id, gate).await.unwrap_or(Ok(())),
        None => Ok(()),
    }
}

async fn take_gate(berth: &Berth, tx: &mut crate::store::Tx, sandbox: Uuid) -> Result<Option<Claimed>> {
    tx.lock_sandbox(sandbox).await?;
    let now = tx.now().await?;
    Ok(tx.claim(sandbox, ClaimKind::Gate, berth.work.owner, "drain", now, berth.settings.capture_timeout * 2).await?)
}

async fn carry_on_intent(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(found) = tx.instance_by_id(id).await? else { return Ok(()) };
    let Some(mut sandbox) = tx.lock_sandbox(found.sandbox_id).await? else { return Ok(()) };
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(id).await?.filter(|i| i.status == found.status) else { return Ok(()) };
    match row.status {
        InstanceStatus::Creating => {
            succeed::retire(&mut tx, &mut sandbox, &mut row, Leaving::Decided, "abandoned", true, &ACTOR, now).await?;
            tx.commit().await?;
            terminate::spawn(berth, id);
            Ok(())
        }
        InstanceStatus::Draining => {
            let gate = tx.claim(sandbox.id, ClaimKind::Gate, berth.work.owner, "drain", now, berth.settings.capture_timeout * 2).await?;
            tx.commit().await?;
            let Some(gate) = gate else { return Ok(()) };
            end::carry_on_drain(berth, &row, gate).await
        }
        InstanceStatus::Stopping | InstanceStatus::Starting => {
            let claim =
                tx.claim(id, ClaimKind::Cleanup, berth.work.owner, row.status.as_str(), now, berth.settings.provision_deadline).await?;
            let writer = tx.live_leases(sandbox.id).await?.into_iter().find(|l| l.is_writer() && l.status == Status::Active);
            tx.commit().await?;
            let Some(claim) = claim else { return Ok(()) };
            if row.status == InstanceStatus::Stopping {
                return end::settle_stop(berth, &row, claim).await;
            }
            carry_on_start(berth, &row, writer.map(|l| l.grant_seq), claim).await
        }
        _ => Ok(()),
    }
}

/// A start somebody still waits for is repeated; one nobody waits for is settled by a look, and never by destroy.
async fn carry_on_start(berth: &Arc<Berth>, row: &Instance, grant_seq: Option<i64>, claim: Claimed) -> Result<()> {
    let held = berth.work.hold(claim);
    if let Some(grant_seq) = grant_seq {
        let _told = resume::settle_start(berth, row, grant_seq, &claim).await?;
        held.settled();
        return Ok(());
    }
    resume::settle_by_observation(berth, row).await?;
    drop(held);
    berth.give_back_claims().await
}
