//! Renew: the only thing that extends a time to live. It never shortens, and either it or the expiry's claim wins, never both.

use uuid::Uuid;

use super::input::Renew;
use super::view::LeaseView;
use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::environment::Environment;
use crate::model::key::Scope;
use crate::model::lease::{Disposition, Event, Status};
use crate::store::{Carried, fence};

/// Extends a lease and says what was granted. Works until somebody has claimed the expiry, and hands out the present token.
pub async fn renew(berth: &Berth, caller: &Caller, id: Uuid, input: Renew) -> Result<LeaseView> {
    caller.require_on_lease(Scope::Write, id)?;
    let (mut tx, row) = berth.store.begin_on_lease(caller.organization, id).await?;
    let mut row = row.ok_or_else(|| Error::not_found("lease"))?;
    let (lease, now) = (&mut row.lease, tx.now().await?);
    let Carried { epoch, .. } = caller.carried(Carried::default());
    fence::check_epoch(lease, Carried { epoch, generation: None })?;
    if lease.status != Status::Active {
        fence::check_live(lease, now)?;
    }
    if lease.release.is_some() {
        return Err(fence::transition("This lease is being released."));
    }
    if input.ttl_seconds.is_some() {
        let environment = tx.environment(lease.organization_id, lease.environment_id).await?;
        check_ttl(&environment.ok_or_else(|| Error::not_found("environment"))?, input.ttl_seconds)?;
    }
    if !lease.is_writer() && row.instance.disposition == Some(Disposition::Destroy) {
        return Err(Error::new(Code::LeaseConflict, "The sandbox is to be destroyed when its readers leave; this reader is not extended."));
    }
    if let Some(seconds) = input.ttl_seconds {
        lease.ttl_ms = seconds.saturating_mul(1000);
    }
    let mut until = Time(now.0.saturating_add(lease.ttl_ms));
    if let Some(cap) = lease.max_expires_at {
        until = until.min(cap);
    }
    let granted = if input.exact { until } else { lease.expires_at.map_or(until, |at| at.max(until)) };
    lease.status = super::step(lease.status.on(Event::Extend))?;
    lease.expires_at = Some(granted);
    (lease.renewed_at, lease.updated_at, row.server_time) = (Some(now), now, now);
    tx.extend_lease(lease, super::lease::event(lease, "lease.renewed", &caller.actor()), now).await?;
    tx.commit().await?;
    let mut view = super::lease::view(row);
    view.token = Some(berth.token_for(&view.lease));
    Ok(view)
}

/// 422 unless 1 ≤ ttl ≤ the environment's `max_ttl_seconds`.
pub fn check_ttl(environment: &Environment, ttl_seconds: Option<i64>) -> Result<()> {
    let max = environment.max_ttl_ms / 1000;
    match ttl_seconds {
        Some(ttl) if !(1..=max).contains(&ttl) => Err(Error::invalid("/ttl_seconds", format!("must be 1 to {max}"))),
        _ => Ok(()),
    }
}
