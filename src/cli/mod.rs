//! What can be asked on the command line, one file a command.

mod demo;
mod doctor;
mod keys;
mod migrate;
mod plugin_conformance;
mod serve;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::app::Result;
use crate::config::{Config, Settings};
use crate::http::openapi;
use crate::telemetry;

/// Leases sandboxes to agent runs and keeps the work inside them safe.
#[derive(Debug, Parser)]
#[command(name = "berth", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service.
    Serve(Configured),
    /// Bring the database to this version's schema.
    Migrate {
        /// Change nothing; fail if something is to be done.
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        configured: Configured,
    },
    /// Tell the whole story against a real sandbox, and check it.
    Demo {
        /// Whose sandbox: local, or docker.
        #[arg(long, default_value = "local")]
        provider: String,
        /// The image of a docker sandbox.
        #[arg(long, default_value = "debian:stable-slim")]
        image: String,
        #[command(flatten)]
        configured: Configured,
    },
    /// Print the API description.
    Openapi,
    /// Manage API keys.
    Keys {
        #[command(subcommand)]
        command: keys::Command,
    },
    /// Check configuration, database and providers.
    Doctor(Configured),
    /// Check a plugin's worker by its URL; makes a few sandboxes there and ends them.
    PluginConformance(plugin_conformance::Asked),
}

/// Flags over `BERTH_*` over the file.
#[derive(Clone, Debug, Args)]
struct Configured {
    /// A TOML file with settings, named as the flags are with `_` for `-`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl Configured {
    fn settings(self) -> Result<Settings> {
        let below = self.config.as_deref().map(Settings::from_file).transpose()?;
        Ok(self.settings.over(below.unwrap_or_default()))
    }

    /// The complete configuration; logging has begun when this returns.
    fn load(self) -> Result<Config> {
        let config = Config::new(self.settings()?)?;
        telemetry::start(&config.log, config.log_format)?;
        Ok(config)
    }
}

/// Runs the command that the arguments name.
pub async fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(configured) => serve::run(configured).await,
        Command::Migrate { check, configured } => migrate::run(configured, check).await,
        Command::Demo { provider, image, configured } => demo::run(configured, &provider, &image).await,
        Command::Openapi => {
            print!("{}", openapi::text());
            Ok(())
        }
        Command::Keys { command } => keys::run(command).await,
        Command::Doctor(configured) => doctor::run(configured).await,
        Command::PluginConformance(asked) => plugin_conformance::run(asked).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("berth: {told}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
