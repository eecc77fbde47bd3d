//! Reap: time ends leases. An expired lease is eligible; the claim, taken under its sandbox's lock, is the point of no return.

use std::sync::Arc;

use uuid::Uuid;

use super::{Berth, end};
use crate::error::Result;
use crate::model::environment::OnIdle;
use crate::model::event::Actor;
use crate::model::lease::{Disposition, Event, Status};

const ACTOR: Actor = Actor::System { task: "reaper" };
/// How many items one pass looks at.
pub const BATCH: i64 = 500;
/// How many rows one of its writes changes.
const AT_ONCE: i64 = 50;

/// What one pass began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReapReport {
    /// Leases whose time had passed.
    pub expired: usize,
    /// Retained leases whose time had passed.
    pub retained: usize,
    /// Idle running instances.
    pub idle: usize,
    /// Stopped instances nobody came back for.
    pub forgotten: usize,
}

/// What time has ended.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// Leases whose time has passed.
    pub expired: Vec<Uuid>,
    /// Retained leases whose time has passed.
    pub retained: Vec<Uuid>,
    /// Idle running instances.
    pub idle: Vec<Uuid>,
    /// Stopped instances nobody came back for.
    pub forgotten: Vec<Uuid>,
}

/// Looks for what time has ended.
pub async fn due(berth: &Berth) -> Result<Due> {
    let mut tx = berth.store.read().await?;
    let now = tx.now().await?;
    Ok(Due {
        expired: tx.expired_leases(now, BATCH).await?,
        retained: tx.retained_leases_due(now, BATCH).await?,
        idle: tx.idle_instances(now, BATCH).await?,
        forgotten: tx.forgotten_instances(now, BATCH).await?,
    })
}

/// One pass over what time has ended; the work itself goes on in tracked tasks.
pub async fn pass(berth: &Arc<Berth>) -> Result<ReapReport> {
    put_off(berth).await?;
    Ok(begin_all(berth, due(berth).await?))
}

/// Puts the look at instances that are in use off, a few at a time: a longer write keeps every other one waiting.
async fn put_off(berth: &Berth) -> Result<()> {
    let now = berth.store.read().await?.now().await?;
    for _ in 0..BATCH {
        let mut tx = berth.store.begin().await?;
        let some = tx.put_off_idle_checks(now, AT_ONCE).await?;
        tx.commit().await?;
        if some < AT_ONCE.unsigned_abs() {
            break;
        }
    }
    Ok(())
}

/// Begins what is due.
pub fn begin_all(berth: &Arc<Berth>, due: Due) -> ReapReport {
    let Due { expired, retained, idle, forgotten } = due;
    let report = ReapReport { expired: expired.len(), retained: retained.len(), idle: idle.len(), forgotten: forgotten.len() };
    for lease in expired {
        begin(berth, lease, |berth, id| async move { expire(&berth, id).await });
    }
    for lease in retained {
        begin(berth, lease, |berth, id| async move { end_retained(&berth, id).await });
    }
    for instance in idle {
        begin(berth, instance, |berth, id| async move { drain_idle(&berth, id).await });
    }
    for instance in forgotten {
        begin(berth, instance, |berth, id| async move { forget(&berth, id).await });
    }
    report
}

/// Runs one item of a pass; its failure is logged and left to the next pass, with what it had claimed given back.
pub(super) fn begin<F, W>(berth: &Arc<Berth>, item: Uuid, work: F)
where
    F: FnOnce(Arc<Berth>, Uuid) -> W + Send + 'static,
    W: Future<Output = Result<()>> + Send + 'static,
{
    let task = Arc::clone(berth);
    berth.work.once(item, async move {
        if let Err(error) = work(Arc::clone(&task), item).await {
            tracing::warn!(item = %item, code = %error.code.as_str(), "a background item goes on later");
            task.give_back_claims().await.ok();
        }
    });
}

async fn expire(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(found) = tx.lease_by_id(id).await? else { return Ok(()) };
    let locked = tx.lock_lease(found.organization_id, id).await?;
    let (mut sandbox, lease, now) = (locked.sandbox, locked.lease, locked.now);
    if lease.status != Status::Active || !lease.has_expired(now) || lease.release.is_some() {
        return Ok(());
    }
    if !lease.is_writer() {
        end::end_reader(berth, &mut tx, &mut sandbox, lease, Status::Expired, now).await?;
        return Ok(tx.commit().await?);
    }
    let gate = end::begin_expiry(berth, &mut tx, &mut sandbox, lease, now).await?;
    tx.commit().await?;
    berth.work.ring(sandbox.id);
    match gate {
        Some(gate) => end::spawn(berth, id, gate).await.unwrap_or(Ok(())),
        None => Ok(()),
    }
}

async fn end_retained(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(found) = tx.lease_by_id(id).await? else { return Ok(()) };
    let locked = tx.lock_lease(found.organization_id, id).await?;
    let mut lease = locked.lease;
    if lease.status != Status::Retained || lease.retain_until.is_none_or(|at| at > locked.now) {
        return Ok(());
    }
    let instance = match lease.instance_id {
        Some(instance) => tx.instance_by_id(instance).await?,
        None => None,
    };
    if let Some(instance) = instance.filter(|i| i.status.is_live() && i.hold_reason.is_none()) {
        drop(tx);
        return end::drain(berth, &instance, Disposition::Destroy, false, "retain_until").await.map(|_| ());
    }
    lease.status = super::step(Status::Retained.on(Event::End(Status::Expired)))?;
    (lease.retain_until, lease.released_at) = (None, lease.released_at.or(Some(locked.now)));
    tx.save_lease(&lease, Status::Retained, lease.epoch, locked.now).await?;
    super::lease::tell(&mut tx, &lease, "lease.expired", &ACTOR, locked.now).await?;
    Ok(tx.commit().await?)
}

async fn drain_idle(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let mut tx = berth.store.read().await?;
    let Some(instance) = tx.instance_by_id(id).await? else { return Ok(()) };
    let Some(environment) = tx.environment(instance.organization_id, instance.environment_id).await? else { return Ok(()) };
    drop(tx);
    let on_idle = if environment.on_idle == OnIdle::Destroy { Disposition::Destroy } else { Disposition::StopAndRetain };
    let disposition = instance.disposition.unwrap_or(on_idle);
    end::drain(berth, &instance, disposition, false, "idle").await.map(|_| ())
}

async fn forget(berth: &Arc<Berth>, id: Uuid) -> Result<()> {
    let Some(instance) = berth.store.read().await?.instance_by_id(id).await? else { return Ok(()) };
    end::drain(berth, &instance, Disposition::Destroy, false, "unused").await.map(|_| ())
}
