//! Observe: instances that nobody has looked at for a while are looked at, so that a run learns early of what it lost.
//!
//! A pass is bounded, by the number of rows and by the time of a call: a provider that does not answer is asked no more in this pass,
//! and keeps no other waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, future, stream};
use serde::Serialize;

use super::{Berth, loss, resume};
use crate::error::Result;
use crate::model::instance::{Instance, Status};
use crate::provider::{Observation, Presence};

/// How long one look is good for.
pub const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How many instances of one provider a pass looks at.
const MOST_LOOKS: i64 = 200;
/// How many of them at once.
const AT_ONCE: usize = 8;
/// How many rows one transaction writes: a longer one keeps every other writer waiting.
const NOTED_AT_ONCE: usize = 25;

/// What one pass saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ObserveReport {
    /// Instances that were due.
    pub due: usize,
    /// Those that are as their rows say.
    pub unchanged: usize,
    /// Those that run or stand still although their rows said otherwise.
    pub corrected: usize,
    /// Those that are proven to be gone.
    pub lost: usize,
    /// Those of which nothing was proven.
    pub unknown: usize,
}

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Unchanged,
    Corrected,
    Lost,
    Unknown,
}

/// One pass over what is due at every provider of this server, and at every plugin.
pub async fn pass(berth: &Arc<Berth>) -> Result<ObserveReport> {
    let mut tx = berth.store.read().await?;
    let before = tx.now().await?.before(LOOK_EVERY);
    let mut due = Vec::new();
    for provider in berth.providers.all() {
        due.push(tx.unobserved(provider.traits().kind, before, MOST_LOOKS).await?);
    }
    for plugin in tx.running_plugins().await? {
        due.push(tx.unobserved_of_plugin(plugin, before, MOST_LOOKS).await?);
    }
    drop(tx);
    let mut report = ObserveReport::default();
    for seen in future::join_all(due.into_iter().map(|due| of_provider(berth, due))).await {
        let seen = seen?;
        report.due += seen.due;
        report.unchanged += seen.unchanged;
        report.corrected += seen.corrected;
        report.lost += seen.lost;
        report.unknown += seen.unknown;
    }
    Ok(report)
}

/// Looks at what is due at one provider, or one plugin.
async fn of_provider(berth: &Arc<Berth>, due: Vec<Instance>) -> Result<ObserveReport> {
    let now = berth.store.read().await?.now().await?;
    let mut report = ObserveReport { due: due.len(), ..ObserveReport::default() };
    let silent = &AtomicBool::new(false);
    let mut looks = stream::iter(due)
        .map(|instance| async move {
            let seen = if silent.load(Ordering::Relaxed) { Ok(Seen::Unknown) } else { look(berth, &instance, silent).await };
            (instance, seen)
        })
        .buffer_unordered(AT_ONCE);
    let mut unchanged = Vec::new();
    while let Some((instance, seen)) = looks.next().await {
        match seen {
            Ok(Seen::Unchanged) => unchanged.push((instance.id, instance.status)),
            Ok(Seen::Corrected) => report.corrected += 1,
            Ok(Seen::Lost) => report.lost += 1,
            Ok(Seen::Unknown) => report.unknown += 1,
            Err(error) => {
                report.unknown += 1;
                tracing::warn!(instance_id = %instance.id, code = %error.code.as_str(), "what was seen is written down later");
            }
        }
    }
    report.unchanged = unchanged.len();
    for status in [Status::Running, Status::Stopped] {
        let of_status: Vec<_> = unchanged.iter().filter(|(_, was)| *was == status).map(|(id, _)| *id).collect();
        for some in of_status.chunks(NOTED_AT_ONCE) {
            let mut tx = berth.store.begin().await?;
            tx.note_observed(some, status, now).await?;
            tx.commit().await?;
        }
    }
    Ok(report)
}

/// Looks at one instance and writes down what is not as its row says.
async fn look(berth: &Arc<Berth>, instance: &Instance, silent: &AtomicBool) -> Result<Seen> {
    let (Some(binding), Some(provider_ref)) = (&instance.binding, &instance.provider_ref) else { return Ok(Seen::Unknown) };
    let Ok(provider) = berth.provider_of(instance).await else {
        // A plugin's worker that does not answer now.
        silent.store(true, Ordering::Relaxed);
        return Ok(Seen::Unknown);
    };
    let Ok(seen) = tokio::time::timeout(berth.settings.call_timeout, provider.observe(binding, provider_ref)).await else {
        silent.store(true, Ordering::Relaxed);
        return Ok(Seen::Unknown);
    };
    match (instance.status, seen) {
        (Status::Running, Observation::Present(Presence::Running))
        | (Status::Stopped, Observation::Present(Presence::Stopped | Presence::Paused)) => Ok(Seen::Unchanged),
        (_, Observation::Unknown) => Ok(Seen::Unknown),
        (_, Observation::Absent | Observation::Present(Presence::Ended)) => {
            Ok(if loss::settle(berth, instance.id, "not_found", None).await? { Seen::Lost } else { Seen::Unknown })
        }
        (_, Observation::Present(_)) => {
            // Whoever stops or starts it changed its row since: a second look is held against the row as it is by now.
            let now = berth.store.read().await?.instance_by_id(instance.id).await?;
            let Some(now) = now.filter(|now| now.status == instance.status && now.updated_at == instance.updated_at) else {
                return Ok(Seen::Unknown);
            };
            resume::settle_by_observation(berth, &now).await?;
            Ok(Seen::Corrected)
        }
    }
}
