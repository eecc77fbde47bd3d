//! Sweep: an object at a provider is an orphan if and only if its tag is ours, no row that is live, held or not confirmed gone names
//! it by ref or tag, and it is known to be older than the grace. Anything that cannot be told is left alone. Snapshots are swept by the
//! same rule, see `sweep_snapshots`.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::{Berth, make, sweep_snapshots};
use crate::clock::Time;
use crate::error::Result;
use crate::model::event::Actor;
use crate::provider::{Destroyed, Listed, Provider, ProviderError};
use crate::store::event::NewEvent;

const ACTOR: Actor = Actor::System { task: "sweeper" };
/// The most objects one pass ends.
pub const MOST_KILLS: usize = 50;
const NOBODYS: &str = "no_row_names_it";

/// One object that was looked at and is not simply owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// `object`, or `snapshot`.
    pub kind: &'static str,
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

/// One thing in an inventory, as it is told of.
pub(super) struct Told<'a> {
    pub(super) kind: &'static str,
    pub(super) provider: &'a dyn Provider,
    pub(super) provider_ref: Option<&'a str>,
    pub(super) instance_id: Option<Uuid>,
}

impl SweepReport {
    pub(super) fn note(&mut self, told: &Told<'_>, action: &'static str, reason: &'static str) {
        self.items.push(Found {
            kind: told.kind,
            provider: told.provider.traits().kind.to_owned(),
            provider_ref: told.provider_ref.map(str::to_owned),
            instance_id: told.instance_id,
            action,
            reason,
        });
    }

    /// Whether something that nobody answers for is to be ended now; if not, that is noted.
    pub(super) fn condemns(&mut self, told: &Told<'_>, age: Option<Duration>, grace: Duration, dry_run: bool) -> bool {
        let (action, reason) = match age {
            None => ("skipped", "age_unknown"),
            Some(age) if age < grace => ("skipped", "younger_than_the_grace"),
            Some(_) => {
                self.orphaned += 1;
                if dry_run {
                    ("would_destroy", NOBODYS)
                } else if self.terminated >= MOST_KILLS {
                    ("skipped", "enough_for_one_pass")
                } else {
                    return true;
                }
            }
        };
        self.note(told, action, reason);
        false
    }

    /// Takes down what became of something that was to be ended; true when it was ended now.
    pub(super) fn ended(&mut self, told: &Told<'_>, end: &std::result::Result<Destroyed, ProviderError>) -> bool {
        match end {
            Ok(Destroyed::Ended) => {
                self.terminated += 1;
                self.note(told, "destroyed", NOBODYS);
                return true;
            }
            Ok(Destroyed::AlreadyGone) => {
                self.already_gone += 1;
                self.note(told, "already_gone", NOBODYS);
            }
            Err(_) => {
                self.errors += 1;
                self.note(told, "skipped", "the_provider_failed");
            }
        }
        false
    }
}

/// One pass over every provider's inventory.
pub async fn pass(berth: &Arc<Berth>, dry_run: bool) -> Result<SweepReport> {
    let mut report = SweepReport::default();
    for provider in berth.providers.all() {
        sweep_objects(berth, &**provider, dry_run, &mut report).await?;
        sweep_snapshots::sweep(berth, &**provider, dry_run, &mut report).await?;
    }
    if report.terminated > 0 || report.errors > 0 {
        tracing::warn!(seen = report.seen, terminated = report.terminated, errors = report.errors, "the inventory was swept");
    }
    Ok(report)
}

async fn sweep_objects(berth: &Berth, provider: &dyn Provider, dry_run: bool, report: &mut SweepReport) -> Result<()> {
    let Ok(mut listed) = make::call(berth, provider.list(berth.deployment.id)).await else {
        report.errors += 1;
        report.note(&Told { kind: "object", provider, provider_ref: None, instance_id: None }, "skipped", "inventory_unknown");
        return Ok(());
    };
    listed.retain(|object| object.tag.deployment == berth.deployment.id);
    report.seen += listed.len();
    let now = berth.store.read().await?.now().await?;
    for object in listed {
        consider(berth, provider, &object, now, dry_run, report).await?;
    }
    Ok(())
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
    let told = Told { kind: "object", provider, provider_ref: Some(&object.provider_ref), instance_id: Some(object.tag.instance) };
    let age = object.created_at.map(|created_at| now.since(created_at));
    if !report.condemns(&told, age, berth.settings.orphan_grace, dry_run) {
        return Ok(());
    }
    // Again, immediately before the kill: a row may have come to name it since.
    if is_owned(berth, provider, object).await? {
        report.note(&told, "skipped", "owned_meanwhile");
        return Ok(());
    }
    let end = make::call(berth, provider.destroy(&object.provider_ref)).await;
    if report.ended(&told, &end) {
        tell(berth, provider, object).await?;
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
