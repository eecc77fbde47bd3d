//! How many of each there are, for an operator's metrics: only what lives, so that partial indexes answer.

use super::{Result, Tx};

impl Tx {
    /// Leases that have not ended, by status.
    pub async fn lease_counts(&mut self) -> Result<Vec<(String, i64)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT status, count(*) FROM lease WHERE status = 'active' GROUP BY status
             UNION ALL SELECT status, count(*) FROM lease WHERE status IN ('pending', 'pending_cleanup') GROUP BY status
             UNION ALL SELECT status, count(*) FROM lease WHERE status = 'retained' GROUP BY status").fetch_all(c).await)?)
    }

    /// Instances that may exist, by status.
    pub async fn instance_counts(&mut self) -> Result<Vec<(String, i64)>> {
        Ok(on!(self, c => sqlx::query_as(
            "SELECT status, count(*) FROM instance WHERE status = 'pending_cleanup' GROUP BY status
             UNION ALL SELECT status, count(*) FROM instance WHERE status IN ('creating', 'starting', 'stopping', 'draining') GROUP BY status
             UNION ALL SELECT status, count(*) FROM instance WHERE status IN ('running', 'stopped') GROUP BY status").fetch_all(c).await)?)
    }

    /// Instances whose teardown needs a person's eye.
    pub async fn quarantined_count(&mut self, attempts: i64) -> Result<i64> {
        Ok(on!(self, c => sqlx::query_scalar(
            "SELECT count(*) FROM instance WHERE status = 'pending_cleanup' AND (cleanup_attempts >= $1 OR quarantine_reason IS NOT NULL)")
            .bind(attempts).fetch_one(c).await)?)
    }

    /// Claims that are held, by kind.
    pub async fn claim_counts(&mut self) -> Result<Vec<(String, i64)>> {
        Ok(on!(self, c => sqlx::query_as("SELECT kind, count(*) FROM claim GROUP BY kind").fetch_all(c).await)?)
    }
}
