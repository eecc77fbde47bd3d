//! Scenario 13: what one pass of the reaper looks at, over a million live leases of which a hundred are due, against the one query that
//! finds those, on a connection of its own. `BERTH_BENCH_LEASES` makes it smaller.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use berth::archive::Blobs;
use berth::ops::{Berth, Settings, reap};
use berth::provider::registry::Registry;
use berth::store::Store;
use berth::store::due::EXPIRED;
use ratio::{PAIRS, Scenario, Server};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};
use uuid::Uuid;

const LEASES: i64 = 1_000_000;
const DUE: i64 = 100;
/// Looks in one half of a pair.
const LOOKS: u32 = 20;

/// A connection of one of the two databases, and what they say differently.
macro_rules! measured {
    ($berth:expr, $connect:ty, $url:expr, $id:literal, $text:literal, $series:expr, $name:literal) => {{
        let (berth, mut raw) = ($berth, <$connect>::connect($url).await.unwrap());
        let now = berth.store.read().await.unwrap().now().await.unwrap().0;
        for statement in fill(now, $id, $text, &$series) {
            raw.execute(AssertSqlSafe(statement)).await.unwrap();
        }
        let mut pairs = Vec::new();
        for pair in 0..=PAIRS {
            let begun = Instant::now();
            for _ in 0..LOOKS {
                assert_eq!(reap::due(&berth).await.unwrap().expired.len(), usize::try_from(DUE).unwrap());
            }
            let (ours, begun) = (begun.elapsed(), Instant::now());
            for _ in 0..LOOKS {
                let due: Vec<Uuid> = sqlx::query_scalar(EXPIRED).bind(now).bind(reap::BATCH).fetch_all(&mut raw).await.unwrap();
                assert_eq!(due.len(), usize::try_from(DUE).unwrap());
            }
            if pair > 0 {
                pairs.push((milliseconds(ours), milliseconds(begun.elapsed())));
            }
        }
        Scenario { name: $name, must: Some(0.25), target: 0.5, unit: "ms", more_is_better: false }.report(&pairs)
    }};
}

#[tokio::main]
async fn main() -> ExitCode {
    let data = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", data.path().join("berth.db").display());
    let berth = over(data.path(), &url, &[("BERTH_PROVIDERS", "memory")]).await;
    let count = leases();
    let series = format!("(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT n FROM n) AS n");
    let sqlite = measured!(berth, SqliteConnection, &url, "randomblob(16)", "hex(s.id)", series, "13 reaper pass, SQLite");
    let Ok(postgres) = std::env::var("BERTH_TEST_POSTGRES") else { return sqlite };
    let name = format!("berth_bench_{}", std::process::id());
    let mut admin = PgConnection::connect(&format!("{postgres}/postgres")).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let url = format!("{postgres}/{name}");
    let berth = over(data.path(), &url, &[("BERTH_PROVIDERS", "memory"), ("BERTH_DATABASE_URL", &url)]).await;
    let series = format!("generate_series(1, {count}) AS n (n)");
    let told = measured!(berth, PgConnection, &url, "gen_random_uuid()", "s.id::text", series, "13 reaper pass, PostgreSQL");
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
    if sqlite == ExitCode::SUCCESS { told } else { sqlite }
}

/// The verbs over a database that a server has made, and left.
async fn over(data: &Path, url: &str, settings: &[(&str, &str)]) -> Arc<Berth> {
    drop(Server::berth(data, settings));
    let store = Store::connect(url, 4).await.unwrap();
    let blobs = Blobs::open(&format!("file:{}", data.join("archives").display())).unwrap();
    Berth::beside(store, Registry::new(Vec::new()).unwrap(), blobs, Settings::default()).await.unwrap()
}

fn leases() -> i64 {
    std::env::var("BERTH_BENCH_LEASES").map_or(LEASES, |count| count.parse().unwrap())
}

fn milliseconds(took: std::time::Duration) -> f64 {
    took.as_secs_f64() * 1000.0 / f64::from(LOOKS)
}

/// Sandboxes with a running instance and an active lease each, of which few have expired. When an instance is worth a look is what the
/// passes before have left: the end of its lease.
fn fill(now: i64, id: &str, text: &str, series: &str) -> [String; 4] {
    let ends = format!("{now} + (s.created_at - {DUE}) * 1000000");
    [
        format!(
            "INSERT INTO sandbox (id, organization_id, environment_id, created_at, updated_at)
             SELECT {id}, e.organization_id, e.id, n.n, n.n FROM environment e, {series}"
        ),
        format!(
            "INSERT INTO instance (id, organization_id, environment_id, sandbox_id, generation, role, provider, binding, provider_ref, config,
                 fingerprint, status, provision_deadline, used_at, idle_check_at, created_at, updated_at)
             SELECT {id}, s.organization_id, s.environment_id, s.id, 1, 'current', 'memory', 'b', {text}, '{{}}', 'f', 'running', 0, {now},
                 {ends}, s.created_at, {now} FROM sandbox s"
        ),
        format!(
            "INSERT INTO lease (id, organization_id, sandbox_id, environment_id, instance_id, generation, status, policy, access, holder, ttl_ms,
                 expires_at, plan, metadata, created_at, updated_at)
             SELECT {id}, s.organization_id, s.sandbox_id, s.environment_id, s.id, 1, 'active', 'ephemeral', 'read_write', 'h', 1000,
                 {ends}, '{{}}', '{{}}', {now}, {now} FROM instance s"
        ),
        "ANALYZE".to_owned(),
    ]
}
