//! `berth doctor`: looks at what the service stands on, beside a running server or without one, and says what is wrong.

use std::path::Path;

use super::Configured;
use crate::app::{self, Result};
use crate::config::Config;
use crate::ops::{self, Berth, spool};
use crate::store::Store;

/// What was found of one thing.
type Found = std::result::Result<String, String>;

/// The lines of a report.
#[derive(Default)]
struct Report {
    ill: usize,
}

impl Report {
    fn say(&mut self, what: &str, found: Found) {
        match found {
            Ok(well) => println!("ok    {what:<15} {well}"),
            Err(wrong) => {
                self.ill += 1;
                println!("wrong {what:<15} {wrong}");
            }
        }
    }
}

/// Prints one line for each thing that was looked at; fails if one of them is not well. Changes nothing.
pub async fn run(configured: Configured) -> Result<()> {
    let config = configured.load()?;
    let mut report = Report::default();
    report.say("configuration", Ok(format!("listens on {}, data in {}", config.listen, config.data_dir.display())));
    report.say("data directory", data_directory(&config.data_dir));
    report.say("spool", spooled(&app::spool_directory(&config)));
    match open(&config).await {
        Ok(store) => {
            report.say("schema", schema(&store).await);
            match app::look(&config, store).await {
                Ok(berth) => examine(&mut report, &berth).await,
                Err(wrong) => report.say("database", Err(wrong)),
            }
        }
        Err(wrong) => report.say("database", Err(wrong)),
    }
    if report.ill == 0 { Ok(()) } else { Err(format!("{} of these are not well", report.ill)) }
}

async fn examine(report: &mut Report, berth: &Berth) {
    report.say("database", ops::health::writable(berth).await.map(|()| "a write works".to_owned()).map_err(|error| error.detail));
    match ops::examine::examine(berth).await {
        Ok(examined) => {
            let ledger = format!("{} instances, {} of them quarantined", examined.instances, examined.quarantined);
            let retry = "; see GET /v1/instances?quarantined=true";
            report.say("ledger", if examined.quarantined == 0 { Ok(ledger) } else { Err(ledger + retry) });
            report.say("invariants", all_hold(&examined.broken, "all hold"));
            report.say("background", all_hold(&examined.overdue, "nothing is overdue"));
        }
        Err(error) => report.say("invariants", Err(error.detail)),
    }
    match ops::provider::list(berth).await {
        Ok(providers) => {
            for provider in providers {
                let why = provider.not_ready_reason.unwrap_or_else(|| "not ready".to_owned());
                let well = format!("ready, isolation {}", provider.isolation);
                report.say(&provider.kind, if provider.ready { Ok(well) } else { Err(why) });
            }
        }
        Err(error) => report.say("providers", Err(error.detail)),
    }
    let archive = berth.blobs.list("doctor").await;
    report.say("archive", archive.map(|_| "it answers".to_owned()).map_err(|_| "it does not answer".to_owned()));
}

fn all_hold(broken: &[(&str, i64)], well: &str) -> Found {
    if broken.is_empty() {
        return Ok(well.to_owned());
    }
    Err(broken.iter().map(|(what, rows)| format!("not so for {rows}: {what}")).collect::<Vec<_>>().join("; "))
}

/// Opens the database if there is one; looking makes none.
async fn open(config: &Config) -> Result<Store> {
    let url = config.database_url.reveal();
    let file = url.strip_prefix("sqlite:").map(|path| path.split('?').next().unwrap_or(path));
    if let Some(file) = file
        && !Path::new(file).exists()
    {
        return Err(format!("BERTH_DATABASE_URL: there is no database {file} yet; `berth serve` makes it"));
    }
    app::open_store(config).await
}

fn data_directory(directory: &Path) -> Found {
    if !directory.is_dir() {
        return Err("BERTH_DATA_DIR: it does not exist yet; `berth serve` makes it".to_owned());
    }
    takes_files(directory).map(|()| "it can be written".to_owned()).map_err(|error| format!("BERTH_DATA_DIR: {error}"))
}

/// Proves that files can be made, and leaves none.
fn takes_files(directory: &Path) -> std::io::Result<()> {
    let path = directory.join(format!("doctor-{}", crate::id::new()));
    std::fs::write(&path, b"")?;
    std::fs::remove_file(path)
}

fn spooled(directory: &Path) -> Found {
    let waiting = spool::waiting_in(directory);
    if waiting.is_empty() {
        return Ok("empty".to_owned());
    }
    let names = waiting.iter().map(|w| format!("{} {} of instance {}", w.provider, w.provider_ref, w.instance_id));
    Err(format!(
        "{} objects wait to be recorded by the next server that reaches the database: {}",
        waiting.len(),
        names.collect::<Vec<_>>().join(", ")
    ))
}

async fn schema(store: &Store) -> Found {
    match store.pending_migrations().await {
        Ok(pending) if pending.is_empty() => Ok("of this version".to_owned()),
        Ok(pending) => Err(format!("migrations to apply: {}; `berth migrate` does it", pending.join(", "))),
        Err(error) => Err(error.to_string()),
    }
}
