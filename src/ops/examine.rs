//! Examine: whether what the database says can be true, and whether somebody does the work that is due.

use std::time::Duration;

use super::Berth;
use crate::error::Result;
use crate::model::instance::QUARANTINE_ATTEMPTS;

/// What an examination found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// What should always hold and does not, with the number of rows that break it.
    pub broken: Vec<(&'static str, i64)>,
    /// What should have happened long ago and has not, with the number of rows.
    pub overdue: Vec<(&'static str, i64)>,
    /// Instances that may exist.
    pub instances: i64,
    /// Those whose teardown needs a person's eye.
    pub quarantined: i64,
}

/// Reads the database and changes nothing. Work is overdue a quarter of an hour after the longest deadline that it may have.
pub async fn examine(berth: &Berth) -> Result<Examined> {
    let of = &berth.settings;
    let patience = of.provision_deadline.max(of.capture_timeout * 2) + Duration::from_secs(900);
    let mut tx = berth.store.read().await?;
    let now = tx.now().await?;
    Ok(Examined {
        broken: tx.broken_always().await?,
        overdue: tx.overdue_since(now.before(patience)).await?,
        instances: tx.instance_counts().await?.iter().map(|(_, count)| count).sum(),
        quarantined: tx.quarantined_count(QUARANTINE_ATTEMPTS).await?,
    })
}
