//! Whether this server can do its work.

use super::Berth;
use crate::error::Result;

/// A check that failed, by name.
pub type Failing = &'static str;

/// Every check that fails now; none: the service is ready.
pub async fn failing(berth: &Berth) -> Vec<Failing> {
    let mut failing = Vec::new();
    if writable(berth).await.is_err() {
        failing.push("database_write");
    }
    if !berth.store.pending_migrations().await.is_ok_and(|pending| pending.is_empty()) {
        failing.push("migrations");
    }
    if !super::secrets::readable(berth).await.unwrap_or(true) {
        failing.push("secret_key");
    }
    failing
}

/// Proves that the database takes a write.
pub async fn writable(berth: &Berth) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.touch().await?;
    Ok(tx.commit().await?)
}
