//! Whether this server can do its work.

use super::Berth;
use crate::error::Result;

/// Proves that the database takes a write.
pub async fn writable(berth: &Berth) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.touch().await?;
    Ok(tx.commit().await?)
}
