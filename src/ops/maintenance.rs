//! Maintenance on an operator's word: a pass of the reaper, the sweeper or the artifact deleter, or only what it would do and why.

use std::sync::Arc;

use super::{Berth, Caller, collect, reap, sweep};
use crate::error::Result;
use crate::model::key::Scope;

/// One thing a pass looked at.
#[derive(Clone, Debug)]
pub struct Item {
    /// `lease`, `instance`, `object`, `snapshot` or `artifact`.
    pub kind: &'static str,
    /// Its id, or the provider's name of it; none for an inventory that could not be had.
    pub id: Option<String>,
    /// What is done, or would be.
    pub action: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What reaping would begin, or began: its work goes on in the background.
pub async fn reap(berth: &Arc<Berth>, caller: &Caller, dry_run: bool) -> Result<Vec<Item>> {
    caller.require(Scope::Operator)?;
    let due = reap::due(berth).await?;
    let item = |kind, action, reason| move |id: &uuid::Uuid| Item { kind, id: Some(id.to_string()), action, reason };
    let mut items: Vec<Item> = due.expired.iter().map(item("lease", "expire", "its time to live has passed")).collect();
    items.extend(due.retained.iter().map(item("lease", "destroy", "its retain_until has passed")));
    items.extend(due.idle.iter().map(item("instance", "drain", "no lease uses it, for longer than the idle timeout")));
    items.extend(due.forgotten.iter().map(item("instance", "destroy", "it is stopped, and nobody came back for it")));
    if !dry_run {
        reap::begin_all(berth, due);
    }
    Ok(items)
}

/// What a sweep would end, or ended, and what it left alone and why.
pub async fn sweep(berth: &Arc<Berth>, caller: &Caller, dry_run: bool) -> Result<Vec<Item>> {
    caller.require(Scope::Operator)?;
    let report = sweep::pass(berth, dry_run).await?;
    let item = |found: sweep::Found| Item { kind: found.kind, id: found.provider_ref, action: found.action, reason: found.reason };
    Ok(report.items.into_iter().map(item).collect())
}

/// What the artifact deleter would delete, or deleted.
pub async fn collect(berth: &Arc<Berth>, caller: &Caller, dry_run: bool) -> Result<Vec<Item>> {
    caller.require(Scope::Operator)?;
    let (unrecorded, due) = collect::due(berth).await?;
    let item = |action, reason| move |id: uuid::Uuid| Item { kind: "artifact", id: Some(id.to_string()), action, reason };
    let mut items: Vec<Item> = due.into_iter().map(item("delete", "no checkpoint is left on it")).collect();
    items.extend(unrecorded.into_iter().map(item("delete", "nobody recorded it within a day of its upload")));
    if !dry_run {
        collect::delete_artifacts(berth).await?;
    }
    Ok(items)
}
