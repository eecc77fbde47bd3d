//! Sweep: an object at a provider is an orphan if and only if its tag is ours, no row that is live, held or not confirmed gone names
//! it by ref or tag, and it is known to be older than the grace. Anything that cannot be told is left alone.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::{Berth, make};
use crate::clock::Time;
use crate::error::Result;
use crate::model::event::Actor;
use crate::provider::{Destroyed, Listed, Provider};
use crate::store::event::NewEvent;

const ACTOR: Actor = Actor::System { task: "sweeper" };
/// The most objects one pass ends.
pub const MOST_KILLS: usize = 50;

/// One object that was looked at and is not simply owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Whose inventory it is in.
    pub provider: String,
    /// The provider's name of it; none when the inventory itself could not be had.
    pub provider_ref: Option<String>,
    /// The row its tag names.
    pub instance_id: Option<Uuid>,
    /// What was done: `destroyed`, `already_gone`, `would_destroy` or `skipped`.
    pub action: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What one pass saw and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Objects in all inventories.
    pub seen: usize,
    /// Objects a row answers for.
    pub owned: usize,
    /// Objects nobody answers for.
    pub orphaned: usize,
    /// Orphans that were ended now.
    pub terminated: usize,
    /// Orphans that ended by themselves meanwhile.
    pub already_gone: usize,
    /// Looks and kills that failed; each is a skip.
    pub errors: usize,
    /// Each object that is not simply owned.
    pub items: Vec<Found>,
}

impl SweepReport {
    fn note(&mut self, provider: &dyn Provider, object: Option<&Listed>, action: &'static str, reason: &'static str) {
        self.items.push(Found {
            provider: provider.traits().kind.to_owned(),
            provider_ref: object.map(|o| o.provider_ref.clone()),
            instance_id: object.map(|o| o.tag.instance),
            action,
            reason,
        });
    }
}

/// One pass over every provider's inventory.
pub async fn pass(berth: &Arc<Berth>, dry_run: bool) -> Result<SweepReport> {
    let mut report = SweepReport::default();
    for provider in berth.providers.all() {
        let Ok(mut listed) = make::call(berth, provider.list(berth.deployment.id)).await else {
            report.errors += 1;
            report.note(&**provider, None, "skipped", "inventory_unknown");
            continue;
        };
        listed.retain(|object| object.tag.deployment == berth.deployment.id);
        report.seen += listed.len();
        let now = berth.store.read().await?.now().await?;
        for object in listed {
            consider(berth, &**provider, &object, now, dry_run, &mut report).await?;
        }
    }
    if report.terminated > 0 || report.errors > 0 {
        tracing::warn!(seen = report.seen, terminated = report.terminated, errors = report.errors, "the inventory was swept");
    }
    Ok(report)
}

async fn consider(
    berth: &Berth,
    provider: &dyn Provider,
    object: &Listed,
    now: Time,
    dry_run: bool,
    report: &mut SweepReport,
) -> Result<()> {
    if is_owned(berth, provider, object).await? {
        report.owned += 1;
        return Ok(());
    }
    let Some(created_at) = object.created_at else {
        report.note(provider, Some(object), "skipped", "age_unknown");
        return Ok(());
    };
    if now.since(created_at) < berth.settings.orphan_grace {
        report.note(provider, Some(object), "skipped", "younger_than_the_grace");
        return Ok(());
    }
    report.orphaned += 1;
    if dry_run {
        report.note(provider, Some(object), "would_destroy", "no_row_names_it");
        return Ok(());
    }
    if report.terminated >= MOST_KILLS {
        report.note(provider, Some(object), "skipped", "enough_for_one_pass");
        return Ok(());
    }
    // Again, immediately before the kill: a row may have come to name it since.
    if is_owned(berth, provider, object).await? {
        report.note(provider, Some(object), "skipped", "owned_meanwhile");
        return Ok(());
    }
    match make::call(berth, provider.destroy(&object.provider_ref)).await {
        Ok(Destroyed::Ended) => {
            report.terminated += 1;
            report.note(provider, Some(object), "destroyed", "no_row_names_it");
            tell(berth, provider, object).await?;
        }
        Ok(Destroyed::AlreadyGone) => {
            report.already_gone += 1;
            report.note(provider, Some(object), "already_gone", "no_row_names_it");
        }
        Err(_) => {
            report.errors += 1;
            report.note(provider, Some(object), "skipped", "the_provider_failed");
        }
    }
    Ok(())
}

async fn is_owned(berth: &Berth, provider: &dyn Provider, object: &Listed) -> Result<bool> {
    let mut tx = berth.store.read().await?;
    Ok(tx.names_object(provider.traits().kind, &object.provider_ref, object.tag.instance).await?)
}

/// The tag's organization hears of it, if it is still there.
async fn tell(berth: &Berth, provider: &dyn Provider, object: &Listed) -> Result<()> {
    tracing::warn!(provider = provider.traits().kind, instance_id = %object.tag.instance, "an orphan was ended");
    let mut tx = berth.store.begin().await?;
    if tx.organization(object.tag.organization).await?.is_none() {
        return Ok(());
    }
    let now = tx.now().await?;
    let event = NewEvent {
        organization: object.tag.organization,
        type_: "orphan.destroyed",
        subject_kind: "instance",
        subject: object.tag.instance,
        generation: Some(object.tag.generation),
        actor: &ACTOR,
        data: json!({ "provider": provider.traits().kind, "provider_ref": object.provider_ref }),
    };
    tx.tell(event, now).await?;
    Ok(tx.commit().await?)
}
