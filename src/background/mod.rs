//! Background: what happens without a request. Doctrine: a pass reads what is due, claims each item on its own and leaves the work
//! to tracked tasks; a pass that fails is logged once and tried again at the next period; nothing here decides by this machine's clock.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::ops::{Berth, collect, drive, events, observe, reap, rotate, spool, sweep, work};

/// How often providers' inventories are compared with the ledger.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Starts the loops; they end when the server stops.
pub fn start(berth: &Arc<Berth>) {
    let period = berth.settings.reaper_period;
    every(berth, "claim_keeper", work::RENEW_EVERY, |berth| async move { told(berth.keep_claims().await.map(|()| json!({}))) });
    every(berth, "driver", period, |berth| async move { told(drive::pass(&berth).await) });
    every(berth, "reaper", period, |berth| async move { told(reap::pass(&berth).await) });
    every(berth, "rotator", period, |berth| async move { told(rotate::pass(&berth).await) });
    every(berth, "observer", period, |berth| async move { told(observe::pass(&berth).await) });
    every(berth, "spool", period, |berth| async move { told(spool::flush(&berth).await) });
    every(berth, "orphan_sweeper", SWEEP_EVERY, |berth| async move { told(sweep::pass(&berth, false).await) });
    every(berth, "artifact_deleter", Duration::from_secs(30).min(period * 6), |berth| async move {
        told(collect::delete_artifacts(&berth).await.map(|deleted| json!({ "deleted": deleted })))
    });
    every(berth, "object_sweeper", Duration::from_secs(6 * 3600), |berth| async move {
        told(collect::sweep_unledgered(&berth).await.map(|swept| json!({ "swept": swept })))
    });
    every(berth, "housekeeper", Duration::from_secs(600), |berth| async move {
        events::forget_old(&berth).await?;
        told(drive::forget_old(&berth).await.map(|forgotten| json!({ "forgotten_operations": forgotten })))
    });
}

/// A pass's report, as it is shown.
fn told<R: Serialize>(ended: Result<R, Error>) -> Result<Value, Error> {
    ended.map(|report| json!(report))
}

/// Runs a pass at once and then every period, until the server stops.
fn every<F, W>(berth: &Arc<Berth>, task: &'static str, period: Duration, pass: F)
where
    F: Fn(Arc<Berth>) -> W + Send + 'static,
    W: Future<Output = Result<Value, Error>> + Send + 'static,
{
    let berth = Arc::clone(berth);
    let stopping = berth.work.stopping().clone();
    berth.clone().work.spawn(async move {
        let mut failing = false;
        loop {
            berth.tasks.begin(task, period);
            let ended = pass(Arc::clone(&berth)).await;
            berth.tasks.end(task, &ended);
            match ended {
                Ok(_) => failing = false,
                Err(error) if failing => tracing::debug!(task, code = %error.code.as_str(), "a background pass failed again"),
                Err(error) => {
                    failing = true;
                    tracing::warn!(task, code = %error.code.as_str(), "a background pass failed; it is tried again every period");
                }
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
        }
    });
}
