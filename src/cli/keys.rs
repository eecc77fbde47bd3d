//! `berth keys`: makes an API key beside the service, for whoever holds the database.

use clap::Subcommand;

use super::Configured;
use crate::app::{Result, open_berth};
use crate::model::key::Scope;
use crate::ops;

/// What can be done with keys here.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key and show it, this once.
    Create {
        /// Name or id of the organization.
        #[arg(long, default_value = "default")]
        organization: String,
        /// What the key may do; may be repeated.
        #[arg(long = "scope", required = true, value_parser = scope)]
        scopes: Vec<Scope>,
        /// What people call it.
        #[arg(long, default_value = "cli")]
        name: String,
        #[command(flatten)]
        configured: Configured,
    },
}

fn scope(word: &str) -> std::result::Result<Scope, String> {
    Scope::parse(word).ok_or_else(|| "must be read, write, admin or operator".to_owned())
}

/// Makes the key; the embedded database must not be in use, since only its one server may write to it.
pub async fn run(command: Command) -> Result<()> {
    let Command::Create { organization, scopes, name, configured } = command;
    let config = configured.load()?;
    let (berth, _lock) = open_berth(&config).await?;
    let issued = ops::keys::issue(&berth, &organization, &name, scopes).await;
    let (key, secret) = issued.map_err(|error| error.to_string())?;
    eprintln!("Key {} of organization {}; it is shown this once:", key.id, key.organization_id);
    println!("{secret}");
    Ok(())
}
