//! Terminate: the one way to die. It uses only what the row recorded, never names a ref another live row holds, believes an
//! absence only with proof and patience, and says "destroyed" only when it is true.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::{Berth, make, succeed};
use crate::clock::Time;
use crate::error::Result;
use crate::model::event::Actor;
use crate::model::instance::{Event as InstanceEvent, Instance, Status as InstanceStatus};
use crate::model::lease::Event;
use crate::provider::{Destroyed, Kind, Lookup, Provider, ProviderError};
use crate::store::{ClaimKind, Claimed};

const ACTOR: Actor = Actor::System { task: "cleaner" };
const BACK_OFF: Duration = Duration::from_secs(5);
const BACK_OFF_CAP: Duration = Duration::from_secs(1800);

/// What one attempt came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    /// Confirmed gone.
    Gone(&'static str),
    /// The provider is not ready; no attempt was used.
    Deferred(&'static str, Duration),
    /// Tried and failed.
    Failed(&'static str),
    /// Only a person can settle it; still looked at.
    Quarantined(&'static str),
}

/// Tears an instance down in a tracked task; the cleaner comes back for what this cannot finish.
pub fn spawn(berth: &Arc<Berth>, instance: Uuid) {
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        if let Err(error) = terminate(&task, instance).await {
            tracing::warn!(instance_id = %instance, code = %error.code.as_str(), "a teardown goes on later");
        }
    });
}

/// One attempt at tearing down a `pending_cleanup` row. False: somebody else is at it, or it is over.
pub async fn terminate(berth: &Arc<Berth>, id: Uuid) -> Result<bool> {
    let mut tx = berth.store.begin().await?;
    let Some(row) = tx.instance_by_id(id).await? else { return Ok(false) };
    tx.lock_sandbox(row.sandbox_id).await?;
    let now = tx.now().await?;
    let Some(row) = tx.instance_by_id(id).await?.filter(|i| i.status == InstanceStatus::PendingCleanup) else { return Ok(false) };
    let Some(claim) = tx.claim(id, ClaimKind::Cleanup, berth.work.owner, "teardown", now, berth.settings.provision_deadline).await? else {
        return Ok(false);
    };
    let held_elsewhere = row.provider_ref.is_some() && tx.ref_is_held_elsewhere(&row).await?;
    tx.commit().await?;
    let held = berth.work.hold(claim);
    let attempt = if held_elsewhere { Attempt::Quarantined("ref_held_by_a_live_row") } else { attempt(berth, &row, now).await? };
    settle(berth, id, &claim, &attempt).await?;
    held.settled();
    Ok(matches!(attempt, Attempt::Gone(_)))
}

async fn attempt(berth: &Berth, row: &Instance, now: Time) -> Result<Attempt> {
    if row.provider_ref.is_none() && row.create_called_at.is_none() {
        return Ok(Attempt::Gone("never_asked_for"));
    }
    let provider = match berth.provider_of(row).await {
        Ok(provider) => provider,
        Err(_) if super::plugins::is_plugin(&row.provider) => return Ok(Attempt::Deferred("plugin_not_ready", BACK_OFF)),
        Err(_) => return Ok(Attempt::Deferred("provider_not_configured", BACK_OFF_CAP)),
    };
    match make::call(berth, provider.binding()).await {
        Ok(binding) if row.binding.as_ref() == Some(&binding) => {}
        Ok(_) => return Ok(Attempt::Deferred("binding_changed", Duration::from_secs(60))),
        Err(error) => return Ok(deferred(&error)),
    }
    let Some(provider_ref) = &row.provider_ref else { return find_first(berth, &*provider, row, now).await };
    Ok(match make::call(berth, provider.destroy(provider_ref)).await {
        Ok(Destroyed::Ended) => Attempt::Gone("destroyed"),
        Ok(Destroyed::AlreadyGone) => Attempt::Gone("already_gone"),
        Err(error) if error.kind == Kind::NotFound => Attempt::Gone("already_gone"),
        Err(error) if matches!(error.kind, Kind::Refused | Kind::Throttled(_)) => deferred(&error),
        Err(error) => Attempt::Failed(error.kind.as_str()),
    })
}

/// A create whose answer never came: found by its tag, or believed absent when no late create can land any more.
async fn find_first(berth: &Berth, provider: &dyn Provider, row: &Instance, now: Time) -> Result<Attempt> {
    if provider.traits().lookup != Lookup::ByTag {
        return Ok(Attempt::Quarantined("unattributable"));
    }
    let tag = make::tag_of(berth, row);
    match make::call(berth, provider.find(&tag)).await {
        Ok(Some(made)) => {
            // The ref is written first; the next attempt destroys exactly it.
            let _superseded = make::keep_ref(berth, row, &made).await;
            Ok(Attempt::Deferred("found_by_tag", Duration::ZERO))
        }
        Ok(None) => {
            let patience = berth.settings.provision_deadline + berth.settings.orphan_grace;
            let called = row.create_called_at.unwrap_or(row.created_at);
            let wait = called.after(patience).since(now);
            Ok(if wait.is_zero() {
                Attempt::Gone("absent")
            } else {
                Attempt::Deferred("absence_not_believed_yet", wait.min(Duration::from_secs(30)))
            })
        }
        Err(error) if matches!(error.kind, Kind::Refused | Kind::Throttled(_)) => Ok(deferred(&error)),
        Err(error) => Ok(Attempt::Failed(error.kind.as_str())),
    }
}

fn deferred(error: &ProviderError) -> Attempt {
    let wait = if let Kind::Throttled(wait) = error.kind { wait.max(BACK_OFF) } else { BACK_OFF };
    Attempt::Deferred(error.kind.as_str(), wait)
}

async fn settle(berth: &Berth, id: Uuid, claim: &Claimed, attempt: &Attempt) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let Some(row) = tx.instance_by_id(id).await? else { return Ok(()) };
    tx.lock_sandbox(row.sandbox_id).await?;
    tx.settle(claim).await?;
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(id).await?.filter(|i| i.status == InstanceStatus::PendingCleanup) else {
        return Ok(tx.commit().await?);
    };
    match attempt {
        Attempt::Gone(how) => {
            row.status = super::step(row.status.on(InstanceEvent::Gone))?;
            (row.cleanup_next_at, row.destroyed_at, row.cleanup_error_kind, row.quarantine_reason) = (None, Some(now), None, None);
            succeed::tell(&mut tx, &row, "instance.destroyed", json!({ "how": how }), &ACTOR, now).await?;
        }
        Attempt::Deferred(why, wait) => {
            row.cleanup_error_kind = (!wait.is_zero()).then(|| (*why).to_owned());
            row.cleanup_next_at = Some(now.after(*wait));
        }
        Attempt::Failed(kind) => {
            row.cleanup_attempts += 1;
            row.cleanup_error_kind = Some((*kind).to_owned());
            row.cleanup_next_at = Some(now.after(back_off(row.cleanup_attempts)));
            if row.cleanup_attempts == crate::model::instance::QUARANTINE_ATTEMPTS {
                tracing::warn!(instance_id = %id, kind, "a teardown failed again and again; it is quarantined and still retried");
                succeed::tell(&mut tx, &row, "cleanup.quarantined", json!({ "error_kind": kind }), &ACTOR, now).await?;
            }
        }
        Attempt::Quarantined(why) => {
            if row.quarantine_reason.as_deref() != Some(why) {
                succeed::tell(&mut tx, &row, "cleanup.refused", json!({ "reason": why }), &ACTOR, now).await?;
            }
            row.quarantine_reason = Some((*why).to_owned());
            row.cleanup_next_at = Some(now.after(Duration::from_secs(60)));
        }
    }
    tx.save_instance(&row, InstanceStatus::PendingCleanup, now).await?;
    if matches!(attempt, Attempt::Gone(_)) {
        end_leases(&mut tx, &row, now).await?;
    }
    tx.commit().await?;
    berth.work.ring(row.sandbox_id);
    Ok(())
}

/// Ends a `pending_cleanup` row on a person's word, without a confirmation; a teardown that is under way changes nothing any more.
pub(super) async fn forget(berth: &Berth, row: &Instance, actor: &Actor, reason: &str) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(row.sandbox_id).await?;
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(row.id).await?.filter(|i| i.status == InstanceStatus::PendingCleanup) else { return Ok(()) };
    tx.clear_claim(row.id, ClaimKind::Cleanup).await?;
    row.status = super::step(row.status.on(InstanceEvent::Gone))?;
    (row.cleanup_next_at, row.destroyed_at, row.quarantine_reason) = (None, Some(now), None);
    tx.save_instance(&row, InstanceStatus::PendingCleanup, now).await?;
    succeed::tell(&mut tx, &row, "instance.forgotten", json!({ "reason": reason }), actor, now).await?;
    end_leases(&mut tx, &row, now).await?;
    tx.commit().await?;
    berth.work.ring(row.sandbox_id);
    Ok(())
}

/// The leases that waited for this confirmation reach their end.
async fn end_leases(tx: &mut crate::store::Tx, row: &Instance, now: Time) -> Result<()> {
    for lease in tx.unended_leases_of_instance(row.id).await? {
        let Some(end) = lease.ends_as else { continue };
        let mut ended = lease.clone();
        ended.status = super::step(lease.status.on(Event::End(end)))?;
        ended.ends_as = None;
        ended.released_at = ended.released_at.or(Some(now));
        tx.save_lease(&ended, lease.status, lease.epoch, now).await?;
        super::lease::tell(tx, &ended, super::lease::end_event(end), &ACTOR, now).await?;
    }
    Ok(())
}

/// 5 s, doubling, at most 30 min, for ever.
fn back_off(attempts: i64) -> Duration {
    let doublings = u32::try_from(attempts.clamp(1, 20) - 1).unwrap_or(0);
    (BACK_OFF * 2_u32.saturating_pow(doublings)).min(BACK_OFF_CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_and_is_capped() {
        assert_eq!(back_off(1), Duration::from_secs(5));
        assert_eq!(back_off(2), Duration::from_secs(10));
        assert_eq!(back_off(9), Duration::from_secs(1280));
        assert_eq!(back_off(10), BACK_OFF_CAP);
        assert_eq!(back_off(1_000_000), BACK_OFF_CAP);
    }
}
