//! Whether this server can do its work.

use super::Berth;
use crate::error::Result;

/// A check that failed, by name.
pub type Failing = &'static str;

/// Every check that fails now; none: the service is ready.
pub async fn failing(berth: &Berth) -> Vec<Failing> {
    let mut failing = Vec::new();
    // At once: a database that does not answer keeps each of them waiting.
    let (writable, pending, secrets) = tokio::join!(writable(berth), berth.store.pending_migrations(), super::secrets::readable(berth));
    if writable.is_err() {
        failing.push("database_write");
    }
    if !pending.is_ok_and(|pending| pending.is_empty()) {
        failing.push("migrations");
    }
    if !secrets.unwrap_or(true) {
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

/// Waits until whatever a refusal may rest on is durable; an error if it never became so.
pub async fn settled(berth: &Berth) -> Result<()> {
    Ok(berth.store.settled().await?)
}
