//! What an operator's dashboard shows of the state: counts of what lives, claims, the background's lag, the pool. No tenant is a label.

use super::Berth;
use crate::error::Result;
use crate::model::instance::QUARANTINE_ATTEMPTS;

/// A gauge: its name, the label its series are told apart by (empty if it is alone), and the series that are not 0.
#[derive(Clone, Debug)]
pub struct Gauge {
    /// The metric's name.
    pub name: &'static str,
    /// The label's name.
    pub label: &'static str,
    /// Value of the label, value of the gauge.
    pub series: Vec<(String, f64)>,
}

fn gauge(name: &'static str, label: &'static str, series: Vec<(String, f64)>) -> Gauge {
    Gauge { name, label, series }
}

/// Every gauge as it is now. While the database does not answer, `berth_database_up` is 0 and the counts are left out.
pub async fn read(berth: &Berth) -> Vec<Gauge> {
    let counted = counted(berth).await;
    let up = if counted.is_ok() { 1.0 } else { 0.0 };
    let (open, idle) = berth.store.pool();
    let lags = berth.tasks.lags().into_iter().map(|(task, lag)| (task.to_owned(), lag.as_secs_f64())).collect();
    let connections = [("idle", idle), ("used", open.saturating_sub(idle))];
    let mut gauges = vec![
        gauge("berth_database_up", "", vec![(String::new(), up)]),
        gauge("berth_database_connections", "state", connections.map(|(state, count)| (state.to_owned(), f64::from(count))).to_vec()),
        gauge("berth_background_lag_seconds", "task", lags),
        gauge("berth_refs_unrecorded", "", precise(vec![(String::new(), i64::try_from(berth.spool.waiting()).unwrap_or(i64::MAX))])),
    ];
    gauges.extend(counted.unwrap_or_default());
    gauges
}

async fn counted(berth: &Berth) -> Result<Vec<Gauge>> {
    let mut tx = berth.store.read().await?;
    let quarantined = tx.quarantined_count(QUARANTINE_ATTEMPTS).await?;
    Ok(vec![
        gauge("berth_leases", "status", precise(tx.lease_counts().await?)),
        gauge("berth_instances", "status", precise(tx.instance_counts().await?)),
        gauge("berth_claims", "kind", precise(tx.claim_counts().await?)),
        gauge("berth_instances_quarantined", "", precise(vec![(String::new(), quarantined)])),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "no count comes near 2^52")]
fn precise(counts: Vec<(String, i64)>) -> Vec<(String, f64)> {
    counts.into_iter().map(|(value, count)| (value, count as f64)).collect()
}
