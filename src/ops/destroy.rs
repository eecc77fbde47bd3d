//! Scoped destroy: the instances of many sandboxes are ended, each claimed first under its lock by a check that no live lease holds it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, Caller, end, release};
use crate::error::{Code, Error, Result};
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::key::Scope as KeyScope;
use crate::model::lease::Disposition;
use crate::model::sandbox::Sandbox;
use crate::model::scope::Scope;
use crate::store::fence::transition;
use crate::store::{Cursor, Filters};

/// How many are ended at once.
const AT_ONCE: usize = 8;
/// How many rows are read at once.
const PAGE: i64 = 200;
/// How long an instance that is between two states is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which sandboxes, and how.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Id or name.
    pub environment: Option<String>,
    /// Pairs that must all be in the scope.
    pub scope: Option<Scope>,
    /// Exactly these.
    pub sandbox_ids: Option<Vec<Uuid>>,
    /// Consent to lose what is unsaved.
    pub discard_workspace: bool,
    /// Only say what would happen.
    pub dry_run: bool,
}

/// What became of one sandbox's instance.
#[derive(Clone, Debug)]
pub enum Fate {
    /// The provider confirmed the end; in a dry run: it would be ended.
    Destroyed,
    /// Its end is decided; the provider has not confirmed it yet.
    Pending,
    /// A live lease holds it.
    SkippedLive,
    /// It lives on, and why.
    Failed(Error),
}

/// One sandbox of a scoped destroy.
#[derive(Clone, Debug)]
pub struct Item {
    /// The sandbox.
    pub sandbox: Uuid,
    /// Its instance.
    pub instance: Option<Uuid>,
    /// What became of it.
    pub fate: Fate,
}

/// Ends the instances of the selected sandboxes; those without one are no item. One failure stops nothing.
pub async fn destroy(berth: &Arc<Berth>, caller: &Caller, selection: &Selection) -> Result<Vec<Item>> {
    caller.require(KeyScope::Write)?;
    let (sandboxes, mut items) = select(berth, caller, selection).await?;
    let (discard, dry_run) = (selection.discard_workspace, selection.dry_run);
    let ended = stream::iter(sandboxes).map(|sandbox| async move {
        let fate = if dry_run { foresee(berth, &sandbox).await } else { one(berth, &sandbox, discard).await };
        let fate = fate.unwrap_or_else(|error| Some(Fate::Failed(error)));
        fate.map(|fate| Item { sandbox: sandbox.id, instance: sandbox.instance_id, fate })
    });
    let ended: Vec<Option<Item>> = ended.buffer_unordered(AT_ONCE).collect().await;
    items.extend(ended.into_iter().flatten());
    items.sort_by_key(|item| item.sandbox);
    Ok(items)
}

/// The selected sandboxes that have an instance, and an item for each id that names none.
async fn select(berth: &Berth, caller: &Caller, selection: &Selection) -> Result<(Vec<Sandbox>, Vec<Item>)> {
    let environment = match &selection.environment {
        Some(name) => Some(super::environment::find(berth, caller.organization, name).await?.id),
        None => None,
    };
    let mut tx = berth.store.read().await?;
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    if let Some(ids) = &selection.sandbox_ids {
        for id in ids {
            match tx.living_sandbox(caller.organization, *id).await? {
                Some(sandbox) => found.push(sandbox),
                None => unknown.push(Item { sandbox: *id, instance: None, fate: Fate::Failed(Error::not_found("sandbox")) }),
            }
        }
        let wanted = |s: &Sandbox| {
            let has = |(key, value): (&String, &String)| s.scope.as_ref().and_then(|scope| scope.get(key)) == Some(value);
            environment.is_none_or(|e| e == s.environment_id) && selection.scope.iter().flatten().all(has)
        };
        found.retain(|s| s.instance_id.is_some() && wanted(s));
        return Ok((found, unknown));
    }
    let live = InstanceStatus::ALL.iter().filter(|s| s.is_live()).map(|s| s.as_str().to_owned()).collect();
    let filters = Filters { status: live, environment, scope: selection.scope.clone().unwrap_or_default(), ..Filters::default() };
    let mut cursor = None;
    loop {
        let page = tx.sandboxes(caller.organization, &filters, cursor, PAGE).await?;
        let Some(last) = page.last() else { return Ok((found, unknown)) };
        cursor = Some(Cursor { created_at: last.created_at, id: last.id });
        found.extend(page);
    }
}

async fn foresee(berth: &Berth, sandbox: &Sandbox) -> Result<Option<Fate>> {
    let live = berth.store.read().await?.live_leases(sandbox.id).await?;
    Ok(Some(if live.is_empty() { Fate::Destroyed } else { Fate::SkippedLive }))
}

/// Ends one instance; `None` when there is none any more.
async fn one(berth: &Arc<Berth>, sandbox: &Sandbox, discard: bool) -> Result<Option<Fate>> {
    let patience = Instant::now() + PATIENCE;
    let mut began = false;
    loop {
        let mut tx = berth.store.read().await?;
        let Some(row) = tx.instance_by_id(sandbox.instance_id.unwrap_or_default()).await? else { return Ok(None) };
        if !row.status.is_live() {
            let confirmed = row.status != InstanceStatus::PendingCleanup;
            let fate = if confirmed { Fate::Destroyed } else { Fate::Pending };
            return Ok(began.then_some(fate));
        }
        if !tx.live_leases(sandbox.id).await?.is_empty() {
            return Ok(Some(Fate::SkippedLive));
        }
        drop(tx);
        if discard && !began {
            release::require_checkpoint_of(berth, &row).await?;
        }
        if began && row.hold_reason.is_some() {
            let kept = "The workspace could not be saved, so nothing was destroyed. Say discard_workspace: true to lose it.";
            return Ok(Some(Fate::Failed(Error::new(Code::CaptureFailed, kept))));
        }
        let ours = spawn_drain(berth, row, discard, "scoped_destroy").await?;
        began |= ours;
        if (!ours || Instant::now() >= patience) && !berth.work.line(sandbox.id).until_changed(patience).await {
            return Ok(Some(Fate::Failed(transition("The sandbox is changing state; try again when it has."))));
        }
    }
}

/// Drains an instance to its destruction in a tracked task; false when a lease holds it or it is between two states.
pub(super) async fn spawn_drain(berth: &Arc<Berth>, instance: Instance, discard: bool, cause: &'static str) -> Result<bool> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        let drained = end::drain(&task, &instance, Disposition::Destroy, discard, cause).await;
        if drained.is_err() {
            task.give_back_claims().await.ok();
        }
        sender.send(drained).ok();
    });
    receiver.await.unwrap_or_else(|_| Err(Error::new(Code::Internal, "The drain's task was lost.")))
}
