//! Loss: believed only with structural proof under the row's own binding, and then settled in one transaction.

use uuid::Uuid;

use super::succeed::{self, Leaving};
use super::{Berth, provision};
use crate::error::Result;
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::lease::{Event, Status};
use crate::model::operation::Status as OperationStatus;
use crate::provider::{Observation, Presence};

const ACTOR: Actor = Actor::System { task: "observer" };

/// What became of an instance after a provider said it does not find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is gone, by proof, and the rows say so now.
    Lost,
    /// It is stopped, and the row says so now.
    Stopped,
    /// Nothing was proven.
    Unproven,
}

/// An administrator's word that an instance is lost.
#[derive(Clone, Debug)]
pub struct Word {
    /// Whose.
    pub actor: Actor,
    /// Why, in their own words.
    pub reason: String,
}

/// Looks at an instance after another verb met a not-found or a refusal, and writes down what the look proved.
pub async fn investigate(berth: &std::sync::Arc<Berth>, instance: &Instance) -> Result<Found> {
    match provision::look(berth, instance).await {
        Observation::Absent | Observation::Present(Presence::Ended) => {
            Ok(if settle(berth, instance.id, "not_found", None).await? { Found::Lost } else { Found::Unproven })
        }
        // Frozen by somebody else: a start thaws it, behind the fence of the grant it is started for.
        Observation::Present(Presence::Stopped | Presence::Paused) => {
            super::resume::settle_by_observation(berth, instance).await?;
            Ok(Found::Stopped)
        }
        _ => Ok(Found::Unproven),
    }
}

/// What is gone is lost; what came back without its files is there, and is torn down.
pub(super) fn leaving(reason: &str) -> Leaving {
    if reason == super::resume::IDENTITY_MISMATCH { Leaving::Decided } else { Leaving::Lost }
}

/// Writes a proven loss down: the instance, the generation, the operations, and the leases that had a release stored. Live
/// leases stay active and answer `instance_lost` until recover. False when the row was not live any more.
pub async fn settle(berth: &Berth, instance: Uuid, reason: &str, said: Option<&Word>) -> Result<bool> {
    let mut tx = berth.store.begin().await?;
    let Some(found) = tx.instance_by_id(instance).await? else { return Ok(false) };
    let Some(mut sandbox) = tx.lock_sandbox(found.sandbox_id).await? else { return Ok(false) };
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(instance).await?.filter(|i| i.status.is_live()) else { return Ok(false) };
    if row.status == InstanceStatus::Creating {
        return Ok(false);
    }
    succeed::retire(&mut tx, &mut sandbox, &mut row, leaving(reason), reason, false, &ACTOR, now).await?;
    if let Some(word) = said {
        let data = serde_json::json!({ "reason": word.reason });
        succeed::tell(&mut tx, &row, "instance.marked_lost", data, &word.actor, now).await?;
    }
    tx.settle_operations_below(sandbox.id, i64::MAX, OperationStatus::Unknown, false, now).await?;
    for lease in tx.live_leases(sandbox.id).await?.into_iter().filter(|l| l.instance_id == Some(instance)) {
        let Some(release) = lease.release.clone() else { continue };
        let mut ended = lease.clone();
        ended.status = super::step(lease.status.on(Event::End(release.ends_as)))?;
        ended.release = None;
        ended.released_at = Some(now);
        tx.save_lease(&ended, lease.status, lease.epoch, now).await?;
        super::lease::tell(&mut tx, &ended, "lease.released", &ACTOR, now).await?;
    }
    for lease in tx.unended_leases_of_instance(instance).await?.into_iter().filter(|l| l.status == Status::Retained) {
        let mut ended = lease.clone();
        ended.status = super::step(lease.status.on(Event::End(Status::Released)))?;
        (ended.retain_until, ended.released_at) = (None, ended.released_at.or(Some(now)));
        tx.save_lease(&ended, lease.status, lease.epoch, now).await?;
    }
    tx.commit().await?;
    berth.work.ring(sandbox.id);
    tracing::warn!(instance_id = %instance, sandbox_id = %sandbox.id, reason, "an instance is lost");
    Ok(true)
}
