//! Retention: revisions beyond what the environment keeps leave by themselves, each for a reason that can be asked for beforehand.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::{Berth, Caller, collect};
use crate::clock::Time;
use crate::error::{Error, Result};
use crate::model::checkpoint::{Checkpoint, Event, Kind, Status};
use crate::model::environment::CheckpointPolicy;
use crate::model::event::Actor;
use crate::model::key::Scope;
use crate::store::Tx;

const ACTOR: Actor = Actor::System { task: "retention" };
/// How many revisions are kept when the environment does not say.
pub const KEEP_LAST: i64 = 10;

/// Why a revision stays, or that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The pointer names it.
    Current,
    /// It is the newest attached one that can be restored on any provider.
    LastPortable,
    /// It is among the newest `keep_last`.
    KeepLast,
    /// It is younger than `keep_for_seconds`.
    KeepFor,
    /// Somebody is being restored from it.
    InUse,
    /// It leaves.
    Surplus,
}

impl Reason {
    /// As it is told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::LastPortable => "last_portable",
            Self::KeepLast => "keep_last",
            Self::KeepFor => "keep_for",
            Self::InUse => "in_use",
            Self::Surplus => "surplus",
        }
    }
}

/// What retention decided about one revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub checkpoint: Uuid,
    /// Why.
    pub reason: Reason,
}

/// What retention would do with a sandbox's revisions now, newest first; nothing is changed.
pub async fn dry_run(berth: &Berth, caller: &Caller, sandbox: Uuid) -> Result<Vec<Verdict>> {
    caller.require_on_sandbox(berth, Scope::Read, sandbox).await?;
    let mut tx = berth.store.read().await?;
    let row = tx.sandbox(caller.organization, sandbox).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    let now = tx.now().await?;
    let policy = policy_of(&mut tx, row.organization_id, row.environment_id).await?;
    Ok(decide(&mut tx, sandbox, &policy, now).await?.into_iter().map(|(_, verdict)| verdict).collect())
}

/// Applies retention to a sandbox in a tracked task; what fails is tried again after the next capture.
pub(super) fn spawn(berth: &Arc<Berth>, sandbox: Uuid) {
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        if let Err(error) = apply(&task, sandbox).await {
            tracing::warn!(sandbox_id = %sandbox, code = %error.code.as_str(), "retention is applied again after the next capture");
        }
    });
}

/// Detaches and collects what is surplus, each with its event; returns how many left.
pub async fn apply(berth: &Berth, sandbox: Uuid) -> Result<usize> {
    let mut tx = berth.store.begin().await?;
    let Some(row) = tx.lock_sandbox(sandbox).await? else { return Ok(0) };
    let now = tx.now().await?;
    let policy = policy_of(&mut tx, row.organization_id, row.environment_id).await?;
    let mut left = 0;
    for (mut checkpoint, verdict) in decide(&mut tx, sandbox, &policy, now).await? {
        if verdict.reason != Reason::Surplus {
            continue;
        }
        if checkpoint.status == Status::Attached {
            checkpoint.status = super::step(Status::Attached.on(Event::Detach))?;
            checkpoint.detached_at = Some(now);
            tx.save_checkpoint(&checkpoint, Status::Attached, now).await?;
            super::capture::tell(&mut tx, &checkpoint, "checkpoint.detached", &ACTOR, now).await?;
        }
        collect::take(&mut tx, &checkpoint, now).await?;
        super::capture::tell(&mut tx, &checkpoint, "checkpoint.collected", &ACTOR, now).await?;
        left += 1;
    }
    tx.commit().await?;
    Ok(left)
}

async fn policy_of(tx: &mut Tx, organization: Uuid, environment: Uuid) -> Result<CheckpointPolicy> {
    Ok(tx.environment(organization, environment).await?.map(|e| e.checkpoint_policy.0).unwrap_or_default())
}

async fn decide(tx: &mut Tx, sandbox: Uuid, policy: &CheckpointPolicy, now: Time) -> Result<Vec<(Checkpoint, Verdict)>> {
    let rows = tx.settled_checkpoints(sandbox).await?;
    let mut reasons = judge(&rows, policy, now);
    for (row, reason) in rows.iter().zip(&mut reasons) {
        if *reason == Reason::Surplus && tx.is_being_restored(row.id, now).await? {
            *reason = Reason::InUse;
        }
    }
    Ok(rows
        .into_iter()
        .zip(reasons)
        .map(|(row, reason)| {
            let verdict = Verdict { checkpoint: row.id, reason };
            (row, verdict)
        })
        .collect())
}

/// Attached, unattached and failed rows are counted apart, so that none of them pushes another kind out.
fn judge(newest_first: &[Checkpoint], policy: &CheckpointPolicy, now: Time) -> Vec<Reason> {
    let keep_last = policy.keep_last.unwrap_or(KEEP_LAST).max(2);
    let keep_for_ms = policy.keep_for_seconds.unwrap_or(0).max(0).saturating_mul(1000);
    let last_portable = newest_first.iter().find(|c| c.status == Status::Attached && c.kind == Kind::PortableWorkspace).map(|c| c.id);
    let mut counted: HashMap<u8, i64> = HashMap::new();
    let reason = |c: &Checkpoint| {
        let kind = match c.status {
            Status::Attached => 0,
            Status::Failed => 1,
            _ => 2,
        };
        let before = counted.entry(kind).or_default();
        *before += 1;
        let clock = c.created_at.0.max(c.attached_at.map_or(0, |at| at.0)).max(c.detached_at.map_or(0, |at| at.0));
        if c.current {
            Reason::Current
        } else if last_portable == Some(c.id) {
            Reason::LastPortable
        } else if *before <= keep_last {
            Reason::KeepLast
        } else if now.0.saturating_sub(clock) < keep_for_ms {
            Reason::KeepFor
        } else {
            Reason::Surplus
        }
    };
    newest_first.iter().map(reason).collect()
}
