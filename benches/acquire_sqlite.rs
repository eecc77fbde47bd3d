//! Scenario 2: acquire and release over HTTP on SQLite `FULL` from 32 connections, against one raw writer that does the writes of
//! the same transactions, each with its own commit.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::str::FromStr;

use ratio::raw::{TABLES, round};
use ratio::{PAIRS, Scenario, Server, cycle, per_second};
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Executor, SqliteConnection};

#[tokio::main]
async fn main() -> ExitCode {
    let (data, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::berth(data.path(), &[("BERTH_PROVIDERS", "memory")]);
    let mut ours = cycle::connections(&server).await;
    let options = SqliteConnectOptions::from_str(&format!("sqlite:{}", beside.path().join("raw.db").display())).unwrap();
    let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut writer = SqliteConnection::connect_with(&options).await.unwrap();
    for table in TABLES {
        writer.execute(table).await.unwrap();
    }
    let mut writers = vec![writer];
    let (mut pairs, mut slowest) = (Vec::new(), std::time::Duration::ZERO);
    for pair in 0..=PAIRS {
        let (our_rate, kept, slow) = cycle::rate(ours).await;
        let step = |mut writer: SqliteConnection| async move {
            round!(writer, "BEGIN IMMEDIATE");
            writer
        };
        let (raw_rate, also_kept, _) = per_second(writers, cycle::SPAN, step).await;
        (ours, writers) = (kept, also_kept);
        if pair > 0 {
            pairs.push((our_rate, raw_rate));
            slowest = slowest.max(slow);
        }
    }
    let scenario = Scenario { name: "2 acquire + release, SQLite FULL", must: None, target: 0.70, unit: "cycles/s", more_is_better: true };
    scenario.report_with(&pairs, &json!({ "slowest_ms": slowest.as_millis(), "must_later": 0.50 }))
}
