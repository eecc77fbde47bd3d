//! `berth migrate`: brings the database to this version's schema.

use super::Configured;
use crate::app::{self, DataLock, Result};

/// Migrates; with `check` only says what is to be done, and fails if that is something.
pub async fn run(configured: Configured, check: bool) -> Result<()> {
    let config = configured.load()?;
    if check {
        let pending = app::open_store(&config).await?.pending_migrations().await.map_err(|error| error.to_string())?;
        return match pending.as_slice() {
            [] => {
                println!("The database is up to date.");
                Ok(())
            }
            pending => Err(format!("migrations to apply: {}", pending.join(", "))),
        };
    }
    std::fs::create_dir_all(&config.data_dir).map_err(|error| format!("BERTH_DATA_DIR {}: {error}", config.data_dir.display()))?;
    let _lock = if config.is_embedded() { Some(DataLock::take(&config.data_dir)?) } else { None };
    let store = app::open_store(&config).await?;
    let applied = store.pending_migrations().await.map_err(|error| error.to_string())?;
    store.migrate().await.map_err(|error| format!("the schema cannot be brought up to date: {error}"))?;
    match applied.as_slice() {
        [] => println!("The database was up to date."),
        applied => println!("Applied: {}.", applied.join(", ")),
    }
    Ok(())
}
