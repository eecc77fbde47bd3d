//! `berth serve`: runs the service until it is told to stop.

use std::io::IsTerminal;

use super::Configured;
use crate::app::{App, Result};
use crate::shutdown;

/// Serves; in plain words says where.
pub async fn run(configured: Configured) -> Result<()> {
    let config = configured.load()?;
    let stop = shutdown::listen().map_err(|error| format!("signals: {error}"))?;
    let app = App::open(&config).await?;
    if let Some((path, key)) = &app.made_key {
        println!("The database was empty, so a key was made. It is in {}.", path.display());
        // Where standard output is a file or a collector, showing the key would be logging it.
        if std::io::stdout().is_terminal() {
            println!("KEY={key}");
        }
    }
    println!("Berth listens on http://{}. Its API is described at http://{}/docs.", app.address, app.address);
    if let Some(address) = app.metrics_address {
        println!("Metrics are on http://{address}/metrics.");
    }
    app.serve(stop).await?;
    println!("Berth has stopped.");
    Ok(())
}
