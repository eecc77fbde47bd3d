//! Explain: why something lives, what would end it, when, and what holds that back.

use uuid::Uuid;

use super::view::{Because, Explanation, Happened, LeaseView, SandboxView};
use super::{Berth, Caller};
use crate::error::{Error, Result};
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::lease::Status;
use crate::store::Tx;

const HISTORY: i64 = 50;

/// Why a lease lives.
pub async fn lease(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Explanation> {
    caller.require_on_lease(Scope::Read, id)?;
    let view = super::lease::read(berth, caller.organization, id).await?;
    let mut tx = berth.store.read().await?;
    let instance = match view.lease.instance_id {
        Some(instance) => tx.instance_by_id(instance).await?,
        None => None,
    };
    let history = history(&mut tx, caller.organization, id).await?;
    let because = lease_rules(&view, instance.as_ref());
    Ok(Explanation { alive: view.lease.status.is_live(), because, next: view.next, history })
}

/// Why a sandbox's instance and checkpoint live.
pub async fn sandbox(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Explanation> {
    caller.require_on_sandbox(berth, Scope::Read, id).await?;
    let mut tx = berth.store.read().await?;
    let row = tx.living_sandbox(caller.organization, id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    let view = super::sandbox::join(&mut tx, row).await?;
    let mut because = sandbox_rules(&view);
    for lease in tx.live_leases(id).await? {
        because.push(rule("lease_live", lease.acquired_at, lease.expires_at, format!("{} holds lease {}.", lease.holder, lease.id)));
    }
    let subject = view.instance.as_ref().map_or(id, |i| i.id);
    let history = history(&mut tx, caller.organization, subject).await?;
    Ok(Explanation { alive: view.instance.is_some(), because, next: view.next, history })
}

fn rule(rule: &str, since: Option<crate::clock::Time>, until: Option<crate::clock::Time>, detail: impl Into<String>) -> Because {
    Because { rule: rule.to_owned(), since, until, detail: detail.into() }
}

fn lease_rules(view: &LeaseView, instance: Option<&Instance>) -> Vec<Because> {
    let lease = &view.lease;
    let mut because = vec![match lease.status {
        Status::Pending => {
            rule("lease_pending", Some(lease.created_at), instance.map(|i| i.provision_deadline), "Its sandbox is being made ready.")
        }
        Status::Active if lease.release.is_some() => {
            rule("lease_releasing", Some(lease.updated_at), None, "A release is stored and is being carried out.")
        }
        Status::Active => {
            rule("lease_active", lease.acquired_at, lease.expires_at, format!("{} holds it; only a renew extends it.", lease.holder))
        }
        Status::Retained => rule("lease_retained", lease.released_at, lease.retain_until, "Over for its holder; its sandbox is kept."),
        Status::PendingCleanup => {
            rule("teardown_unconfirmed", lease.released_at, None, "Over; the provider has not confirmed the teardown yet.")
        }
        Status::Released | Status::Expired | Status::Failed => {
            let detail = lease.failure_reason.clone().unwrap_or_else(|| format!("It is {}.", lease.status));
            rule("lease_over", lease.released_at, None, detail)
        }
    }];
    because.extend(instance.map(instance_rule));
    because
}

fn instance_rule(instance: &Instance) -> Because {
    let (name, since, detail) = match instance.status {
        InstanceStatus::Lost => ("instance_lost", instance.retired_at, "The provider proved that it is gone.".to_owned()),
        InstanceStatus::Destroyed => ("instance_destroyed", instance.destroyed_at, "The provider confirmed its end.".to_owned()),
        InstanceStatus::PendingCleanup => {
            let why = instance.quarantine_reason.as_ref().or(instance.cleanup_error_kind.as_ref());
            (
                "instance_pending_cleanup",
                instance.retired_at,
                why.map_or_else(|| "It is being torn down.".to_owned(), |w| format!("It is being torn down; the last try said {w}.")),
            )
        }
        _ if instance.hold_reason.is_some() => (
            "instance_held",
            Some(instance.updated_at),
            "Its unsaved work could not be saved; it is kept until somebody takes it or discards it.".to_owned(),
        ),
        status => {
            ("instance_live", instance.running_at.or(Some(instance.created_at)), format!("Generation {} is {status}.", instance.generation))
        }
    };
    rule(name, since, instance.provider_expires_at, detail)
}

fn sandbox_rules(view: &SandboxView) -> Vec<Because> {
    let mut because: Vec<_> = view.instance.as_ref().map(instance_rule).into_iter().collect();
    if let Some(checkpoint) = &view.current_checkpoint {
        because.push(rule(
            "checkpoint_current",
            checkpoint.attached_at,
            checkpoint.expires_at,
            format!("Checkpoint {} is what the next instance starts from.", checkpoint.id),
        ));
    }
    if view.sandbox.diverged {
        because.push(rule(
            "diverged",
            None,
            None,
            "The pointer was moved away from the live workspace; the next acquire starts from the pointer.",
        ));
    }
    if view.is_dirty() {
        because.push(rule("dirty", None, None, "The live workspace holds work that the current checkpoint does not."));
    }
    because
}

async fn history(tx: &mut Tx, organization: Uuid, subject: Uuid) -> Result<Vec<Happened>> {
    let rows = tx.history(organization, subject, HISTORY).await?;
    Ok(rows.into_iter().map(|(type_, time, actor)| Happened { type_, time, actor }).collect())
}
