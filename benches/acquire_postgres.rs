//! Scenario 1: acquire and release over HTTP on PostgreSQL from 32 connections, against 32 connections that do the writes of the
//! same transactions, one statement a round trip as pgbench does.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;

use ratio::raw::{TABLES, round};
use ratio::{PAIRS, Scenario, Server, cycle, per_second};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

#[tokio::main]
async fn main() -> ExitCode {
    let Ok(postgres) = std::env::var("BERTH_TEST_POSTGRES") else {
        eprintln!("acquire_postgres: skipped; BERTH_TEST_POSTGRES names no server");
        return ExitCode::SUCCESS;
    };
    let name = format!("berth_bench_{}", std::process::id());
    let mut admin = PgConnection::connect(&format!("{postgres}/postgres")).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let told = measure(&format!("{postgres}/{name}")).await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
    told
}

async fn measure(url: &str) -> ExitCode {
    let data = tempfile::tempdir().unwrap();
    let connections = cycle::CONNECTIONS.to_string();
    let settings = [("BERTH_PROVIDERS", "memory"), ("BERTH_DATABASE_URL", url), ("BERTH_DATABASE_MAX_CONNECTIONS", &connections)];
    let server = Server::berth(data.path(), &settings);
    let mut ours = cycle::connections(&server).await;
    let mut writers = Vec::new();
    for _ in 0..cycle::CONNECTIONS {
        writers.push(PgConnection::connect(url).await.unwrap());
    }
    for table in TABLES {
        writers[0].execute(table).await.unwrap();
    }
    let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut writers[0]).await.unwrap();
    let (mut pairs, mut slowest) = (Vec::new(), std::time::Duration::ZERO);
    for pair in 0..=PAIRS {
        let (our_rate, kept, slow) = cycle::rate(ours).await;
        let step = |mut writer: PgConnection| async move {
            round!(writer, "BEGIN");
            writer
        };
        let (raw_rate, also_kept, _) = per_second(writers, cycle::SPAN, step).await;
        (ours, writers) = (kept, also_kept);
        if pair > 0 {
            pairs.push((our_rate, raw_rate));
            slowest = slowest.max(slow);
        }
    }
    let scenario = Scenario { name: "1 acquire + release, PostgreSQL", must: None, target: 1.5, unit: "cycles/s", more_is_better: true };
    let layers = layers_share(ours, pairs[0].0).await;
    scenario.report_with(&pairs, &json!({ "slowest_ms": slowest.as_millis(), "must_later": 0.70, "fsync": fsync, "layers_share": layers }))
}

/// What the layers around the handlers cost a cycle of two requests at most, as a part of it: a whoami passes all of them and does
/// nothing else.
async fn layers_share(connections: Vec<ratio::Connection>, cycles_per_second: f64) -> f64 {
    let step = |mut connection: ratio::Connection| async move {
        let (status, _) = connection.send(&ratio::request("GET", "/v1/whoami", "")).await;
        assert_eq!(status, 200);
        connection
    };
    let (whoamis_per_second, _, _) = per_second(connections, cycle::SPAN, step).await;
    2.0 * cycles_per_second / whoamis_per_second
}
