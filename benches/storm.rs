//! Scenario 14: 32 holders storm one scope for 30 s on three servers over one PostgreSQL. Nobody may hold it beside another, and nobody
//! may be told anything but that it is taken. `BERTH_BENCH_SECONDS` makes it shorter.
#![allow(clippy::allow_attributes, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ratio::{Connection, Scenario, Server, request};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor, PgConnection};
use tokio::task::JoinSet;

const HOLDERS: usize = 32;
const SERVERS: usize = 3;
const SECONDS: u64 = 30;
/// How long a holder keeps what it got.
const KEPT: Duration = Duration::from_millis(2);

/// What happened to everybody.
#[derive(Default)]
struct Seen {
    inside: AtomicU32,
    doubles: AtomicU32,
    conflicts: AtomicU32,
    errors: AtomicU32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Ok(postgres) = std::env::var("BERTH_TEST_POSTGRES") else {
        eprintln!("storm: skipped; BERTH_TEST_POSTGRES names no server");
        return ExitCode::SUCCESS;
    };
    let name = format!("berth_bench_{}", std::process::id());
    let mut admin = PgConnection::connect(&format!("{postgres}/postgres")).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let told = storm(&format!("{postgres}/{name}")).await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
    told
}

async fn storm(url: &str) -> ExitCode {
    let data = tempfile::tempdir().unwrap();
    // What one server made the others have to find.
    let settings = [("BERTH_PROVIDERS", "local"), ("BERTH_LOCAL_ISOLATION", "none"), ("BERTH_DATABASE_URL", url)];
    let servers: Vec<_> = (0..SERVERS).map(|_| Server::berth(data.path(), &settings)).collect();
    let span = Duration::from_secs(std::env::var("BERTH_BENCH_SECONDS").map_or(SECONDS, |seconds| seconds.parse().unwrap()));
    let (seen, until) = (Arc::new(Seen::default()), Instant::now() + span);
    let mut holders = JoinSet::new();
    for n in 0..HOLDERS {
        let (connection, seen) = (Connection::open(servers[n % SERVERS].address).await, Arc::clone(&seen));
        holders.spawn(async move { hold(connection, n, &seen, until).await });
    }
    let mut grants = Vec::new();
    while let Some(granted) = holders.join_next().await {
        grants.push(granted.unwrap());
    }
    let of = |count: &AtomicU32| count.load(Ordering::SeqCst);
    let faults = of(&seen.doubles) + of(&seen.errors);
    let (most, least) = (grants.iter().max().unwrap(), grants.iter().min().unwrap());
    let told = json!({
        "grants": grants.iter().sum::<u32>(), "double_grants": of(&seen.doubles), "errors": of(&seen.errors),
        "conflicts": of(&seen.conflicts), "most_for_one": most, "least_for_one": least,
    });
    let scenario = Scenario { name: "14 storm of one scope", must: Some(1.0), target: 1.0, unit: "1 + faults", more_is_better: false };
    scenario.report_with(&[(f64::from(1 + faults), 1.0)], &told)
}

/// Acquires and releases again and again; how often it got it.
async fn hold(mut connection: Connection, n: usize, seen: &Seen, until: Instant) -> u32 {
    let wanted = format!(r#"{{"environment":"default","holder":"{n}","scope":{{"session":"storm"}},"wait_seconds":5}}"#);
    let acquire = request("POST", "/v1/leases", &wanted);
    let mut granted = 0;
    while Instant::now() < until {
        let (status, body) = connection.send(&acquire).await;
        let lease: Value = serde_json::from_slice(&body).unwrap();
        match status {
            201 if lease["status"] == "active" => {}
            409 if matches!(lease["code"].as_str(), Some("lease_conflict" | "transition_in_progress")) => {
                seen.conflicts.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            _ => {
                eprintln!("holder {n}: {status} {lease}");
                seen.errors.fetch_add(1, Ordering::SeqCst);
                continue;
            }
        }
        if seen.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            seen.doubles.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::sleep(KEPT).await;
        granted += 1;
        seen.inside.fetch_sub(1, Ordering::SeqCst);
        let release = request("POST", &format!("/v1/leases/{}/release", lease["id"].as_str().unwrap()), "{}");
        let (status, body) = connection.send(&release).await;
        if status != 200 {
            eprintln!("holder {n}: {status} {}", String::from_utf8_lossy(&body));
            seen.errors.fetch_add(1, Ordering::SeqCst);
        }
    }
    granted
}
