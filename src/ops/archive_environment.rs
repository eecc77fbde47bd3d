//! Archiving an environment: its name is free and nothing new starts in it, once nothing of it lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, Caller, end, release};
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::model::lease::Disposition;

/// How often what is being destroyed is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Archives an environment. Live instances or leases: 409 with counts, or with `destroy` they are ended first, each through the
/// release or the drain that ends any other; what cannot be saved stays, and so does the environment. A repeated call answers the same.
pub async fn archive(berth: &Arc<Berth>, caller: &Caller, id_or_name: &str, destroy: bool) -> Result<()> {
    caller.require(Scope::Admin)?;
    let environment = super::environment::find(berth, caller.organization, id_or_name).await?;
    let patience = Instant::now() + berth.settings.provision_wait;
    loop {
        let obstacle = match attempt(berth, caller, environment.id).await? {
            None => return Ok(()),
            Some(obstacle) => obstacle,
        };
        if !destroy || Instant::now() >= patience {
            return Err(obstacle);
        }
        if !destroy_all(berth, caller, environment.id).await? {
            // The last look: what is left is held, or nothing is left.
            return attempt(berth, caller, environment.id).await?.map_or(Ok(()), Err);
        }
    }
}

/// One transaction: the environment's lock, then one statement that counts and archives. `Some`: something lives.
async fn attempt(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Option<Error>> {
    let mut tx = berth.store.begin().await?;
    let row = tx.lock_environment(caller.organization, id).await?.ok_or_else(|| Error::not_found("environment"))?;
    if row.archived_at.is_some() {
        return Ok(None);
    }
    let now = tx.now().await?;
    if tx.archive_environment(id, now).await? {
        super::environment::tell(&mut tx, caller, &row, "environment.archived", now).await?;
        tx.commit().await?;
        return Ok(None);
    }
    let (instances, leases) = tx.life_of_environment(id).await?;
    Ok(Some(
        Error::new(Code::EnvironmentInUse, "Instances or leases of this environment live. End them, or say destroy=true.")
            .fact("live_instances", instances.len())
            .fact("live_leases", leases.len()),
    ))
}

/// Ends what lives, each on its own; false when only what is held for its unsaved work is left.
async fn destroy_all(berth: &Arc<Berth>, caller: &Caller, environment: Uuid) -> Result<bool> {
    let (_, leases) = berth.store.read().await?.life_of_environment(environment).await?;
    let mut held = false;
    for lease in leases {
        if let Err(error) = release::delete(berth, caller, lease, false).await {
            held |= error.code == Code::CaptureFailed;
            tracing::warn!(lease_id = %lease, code = %error.code.as_str(), "a lease of an environment to be archived goes on");
        }
    }
    let (instances, _) = berth.store.read().await?.life_of_environment(environment).await?;
    let mut left = 0;
    for id in instances {
        let Some(row) = berth.store.read().await?.instance_by_id(id).await? else { continue };
        if row.hold_reason.is_none() {
            left += 1;
            end::drain(berth, &row, Disposition::Destroy, false, "environment_archived").await?;
        }
    }
    if left > 0 {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(left > 0 && !held)
}
