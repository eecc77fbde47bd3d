//! Background: what happens without a request. Doctrine: a pass reads what is due, claims each item on its own and leaves the work
//! to tracked tasks; a pass that fails is logged once and tried again at the next period; nothing here decides by this machine's clock.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ops::{Berth, collect, drive, reap, work};

/// Starts the loops; they end when the server stops.
pub fn start(berth: &Arc<Berth>) {
    let period = berth.settings.reaper_period;
    every(berth, "claim_keeper", work::RENEW_EVERY, |berth| async move { berth.keep_claims().await });
    every(berth, "driver", period, |berth| async move { drive::pass(&berth).await.map(drop) });
    every(berth, "reaper", period, |berth| async move { reap::pass(&berth).await.map(drop) });
    every(berth, "artifact_deleter", Duration::from_secs(30).min(period * 6), |berth| async move {
        collect::delete_artifacts(&berth).await.map(drop)
    });
    every(berth, "object_sweeper", Duration::from_secs(6 * 3600), |berth| async move { collect::sweep_unledgered(&berth).await.map(drop) });
    every(berth, "housekeeper", Duration::from_secs(600), |berth| async move { drive::forget_old(&berth).await.map(drop) });
}

/// Runs a pass at once and then every period, until the server stops.
fn every<F, W>(berth: &Arc<Berth>, task: &'static str, period: Duration, pass: F)
where
    F: Fn(Arc<Berth>) -> W + Send + 'static,
    W: Future<Output = std::result::Result<(), Error>> + Send + 'static,
{
    let berth = Arc::clone(berth);
    let stopping = berth.work.stopping().clone();
    berth.clone().work.spawn(async move {
        let mut failing = false;
        loop {
            match pass(Arc::clone(&berth)).await {
                Ok(()) => failing = false,
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
