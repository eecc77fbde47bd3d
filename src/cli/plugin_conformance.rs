//! `berth plugin-conformance`: checks a plugin's worker by its URL, without a server, and prints a line for each check.

use clap::Args;
use serde_json::Value;

use crate::app::Result;
use crate::id;
use crate::provider::plugin::conformance::{self, Found};
use crate::provider::plugin::worker::{NotRegistered, Workers};

/// Which worker is checked, and how it is called.
#[derive(Debug, Args)]
pub struct Asked {
    /// The worker's URL, as it would be registered.
    #[arg(long)]
    url: String,
    /// Hosts, with or without a port, that may be on private networks.
    #[arg(long = "allow-host", value_name = "HOST")]
    allowed: Vec<String>,
    /// What the worker is shown as a bearer token.
    #[arg(long, env = "BERTH_PLUGIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// One of its drivers; the first one when absent.
    #[arg(long, value_name = "KEY")]
    driver: Option<String>,
    /// A configuration of the driver that works, as JSON.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
}

/// Prints what holds, what is left out since the worker does not offer it, and what is broken; fails if anything is.
pub async fn run(asked: Asked) -> Result<()> {
    let config: Value = serde_json::from_str(&asked.config).map_err(|_| "--config is no JSON")?;
    let workers = Workers::new(asked.allowed, std::env::temp_dir());
    let worker = workers.at(&asked.url, id::new()).await.map_err(|why| match why {
        NotRegistered::Destination(why) | NotRegistered::Step(_, why) => format!("--url {why}"),
    })?;
    let verdicts = conformance::run(worker, asked.token, asked.driver, config).await;
    let mut ill = 0;
    for verdict in &verdicts {
        match &verdict.found {
            Found::Holds => println!("ok       {}", verdict.check),
            Found::LeftOut => println!("left out {:<15} the worker does not offer it", verdict.check),
            Found::Broken(how) => {
                ill += 1;
                println!("broken   {:<15} {how}", verdict.check);
            }
        }
    }
    if ill == 0 { Ok(()) } else { Err(format!("{ill} of {} checks do not hold", verdicts.len())) }
}
