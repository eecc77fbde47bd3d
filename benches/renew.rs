//! Scenario 4: 1000 renewals per second on 10 000 live leases over HTTP on SQLite `FULL`, against one raw writer that updates one row in
//! a transaction of its own at the same rate. Each is timed from the moment it was due, so that waiting in line counts.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::future::Future;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratio::cycle::{CONNECTIONS, connections};
use ratio::raw::{TABLES, body};
use ratio::{Scenario, Server, request};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection as _, Executor, SqliteConnection};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

const LEASES: usize = 10_000;
const PER_SECOND: u32 = 1000;
/// How long one half of a pair lasts; the five make a minute.
const SPAN: Duration = Duration::from_secs(12);
const PAIRS: usize = 5;

#[tokio::main]
async fn main() -> ExitCode {
    let (data, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::berth(data.path(), &[("BERTH_PROVIDERS", "memory")]);
    let mut ours: Vec<_> = connections(&server).await;
    let renewals = Arc::new(live_leases(&mut ours).await);
    let options = SqliteConnectOptions::from_str(&format!("sqlite:{}", beside.path().join("raw.db").display())).unwrap();
    let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut writer = SqliteConnection::connect_with(&options).await.unwrap();
    for table in TABLES {
        writer.execute(table).await.unwrap();
    }
    writer.execute("BEGIN").await.unwrap();
    for id in 0..LEASES {
        sqlx::query("INSERT INTO raw_lease (id, body) VALUES ($1, $2)")
            .bind(id.to_string())
            .bind(body())
            .execute(&mut writer)
            .await
            .unwrap();
    }
    writer.execute("COMMIT").await.unwrap();
    let writer = Arc::new(Mutex::new(writer));
    let mut raw: Vec<_> = (0..CONNECTIONS).map(|_| Arc::clone(&writer)).collect();

    let mut pairs = Vec::new();
    for pair in 0..=PAIRS {
        let asked = Arc::clone(&renewals);
        let our_p99;
        (our_p99, ours) = paced(ours, move |mut connection, n| {
            let asked = Arc::clone(&asked);
            async move {
                let (status, _) = connection.send(&asked[n * 7919 % LEASES]).await;
                assert_eq!(status, 200);
                connection
            }
        })
        .await;
        let raw_p99;
        (raw_p99, raw) = paced(raw, |shared, n| async move {
            let mut writer = shared.lock().await;
            writer.execute("BEGIN IMMEDIATE").await.unwrap();
            let update = sqlx::query("UPDATE raw_lease SET body = $2 WHERE id = $1").bind((n * 7919 % LEASES).to_string()).bind(body());
            update.execute(&mut *writer).await.unwrap();
            writer.execute("COMMIT").await.unwrap();
            drop(writer);
            shared
        })
        .await;
        if pair > 0 {
            pairs.push((our_p99, raw_p99));
        }
    }
    let name = "4 renew, p99 at 1000/s";
    Scenario { name, must: Some(0.25), target: 0.5, unit: "ms", more_is_better: false }.report(&pairs)
}

/// Acquires the leases and returns a renewal of each.
async fn live_leases(connections: &mut Vec<ratio::Connection>) -> Vec<Vec<u8>> {
    let mut making = JoinSet::new();
    for (n, mut connection) in connections.drain(..).enumerate() {
        making.spawn(async move {
            let mut renewals = Vec::new();
            for holder in (n..LEASES).step_by(CONNECTIONS) {
                let wanted = format!(r#"{{"environment":"default","holder":"{holder}"}}"#);
                let lease = connection.json(&request("POST", "/v1/leases", &wanted)).await;
                renewals.push(request("POST", &format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap()), "{}"));
            }
            (connection, renewals)
        });
    }
    let mut all = Vec::new();
    while let Some(made) = making.join_next().await {
        let (connection, renewals) = made.unwrap();
        connections.push(connection);
        all.extend(renewals);
    }
    all
}

/// Begins a step every thousandth of a second, each taken by whichever worker is free; the 99th percentile of how long after it was due
/// each was done, in milliseconds.
async fn paced<T, F>(workers: Vec<T>, step: impl Fn(T, usize) -> F + Clone + Send + 'static) -> (f64, Vec<T>)
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    let (begun, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut running = JoinSet::new();
    for mut worker in workers {
        let (step, next) = (step.clone(), Arc::clone(&next));
        running.spawn(async move {
            let mut took = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let due = begun + Duration::from_secs(1) * u32::try_from(n).unwrap() / PER_SECOND;
                if due >= begun + SPAN {
                    return (worker, took);
                }
                tokio::time::sleep_until(due).await;
                worker = step(worker, n).await;
                took.push(due.elapsed().as_secs_f64() * 1000.0);
            }
        });
    }
    let (mut back, mut took) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (worker, own) = ended.unwrap();
        back.push(worker);
        took.extend(own);
    }
    took.sort_by(f64::total_cmp);
    (took[took.len() * 99 / 100], back)
}
