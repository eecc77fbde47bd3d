//! A pass costs what is due and not what there is: the plans of its queries over many leases of which few are due.

use std::time::Duration;

use berth::model::instance::Status;
use berth::store::due;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqliteConnection};

use crate::both;
use crate::harness::client::got;
use crate::harness::{Db, World};

/// How many leases there are. The plan is what counts, so it need not be a million.
const MANY: i64 = 4_000;
/// How many of them are due.
const DUE: i64 = 100;

/// Fills the tables: sandboxes with a running instance and an active lease each, of which few have expired, and as many teardowns due.
fn fill(db: Db, now: i64) -> [String; 5] {
    let (id, text, series) = match db {
        Db::Sqlite => (
            "randomblob(16)",
            "hex(s.id)",
            format!("(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {MANY}) SELECT n FROM n) AS n"),
        ),
        Db::Postgres => ("gen_random_uuid()", "s.id::text", format!("generate_series(1, {MANY}) AS n (n)")),
    };
    let instance = |status: &str, role: &str, name: &str, cleanup: &str, some: &str| {
        format!(
            "INSERT INTO instance (id, organization_id, environment_id, sandbox_id, generation, role, provider, binding, provider_ref, config,
                 fingerprint, status, cleanup_next_at, provision_deadline, used_at, idle_check_at, created_at, updated_at)
             SELECT {id}, s.organization_id, s.environment_id, s.id, {name}, '{role}', 'memory', 'b', {text} || '-{name}', '{{}}', 'f',
                 '{status}', {cleanup}, 0, {now}, {now} + (s.created_at - {DUE}) * 1000000, s.created_at, {now} FROM sandbox s WHERE s.created_at <= {some}"
        )
    };
    [
        format!(
            "INSERT INTO sandbox (id, organization_id, environment_id, created_at, updated_at)
             SELECT {id}, e.organization_id, e.id, n.n, n.n FROM environment e, {series}"
        ),
        instance("running", "current", "2", "NULL", &MANY.to_string()),
        instance("pending_cleanup", "retired", "1", &format!("{now} + (s.created_at - {DUE}) * 1000000"), &MANY.to_string()),
        format!(
            "INSERT INTO lease (id, organization_id, sandbox_id, environment_id, instance_id, generation, status, policy, access, holder, ttl_ms,
                 expires_at, plan, metadata, created_at, updated_at)
             SELECT {id}, i.organization_id, i.sandbox_id, i.environment_id, i.id, 2, 'active', 'ephemeral', 'read_write', 'h', 1000,
                 {now} + (i.created_at - {DUE}) * 1000000, '{{}}', '{{}}', {now}, {now} FROM instance i WHERE i.role = 'current'"
        ),
        "ANALYZE".to_owned(),
    ]
}

both! {
    async fn an_instance_in_use_is_looked_at_again_when_its_lease_ends(world) {
        let put_off = "SELECT CAST(count(*) AS TEXT) FROM instance i JOIN lease l ON l.instance_id = i.id WHERE i.idle_check_at = l.expires_at";
        let lease = world.acquire("run", "s").await.unwrap();
        world.settle().await;
        assert_eq!(world.text(put_off).await, "0", "what changed a moment ago is left as it is");
        world.advance(Duration::from_secs(31));
        world.settle().await;
        assert_eq!(world.text(put_off).await, "1");
        // Time-outs of its environment may be shorter by now.
        let wire = world.serve().await;
        let patched = got(wire.ask("PATCH", "/v1/environments/default").json(&json!({ "idle_timeout_seconds": 10 }))).await;
        assert_eq!((patched.status, world.text(put_off).await), (200, "0".to_owned()), "{patched:?}");
        world.advance(Duration::from_secs(31));
        world.settle().await;
        assert_eq!(world.text(put_off).await, "1");
        world.release(&lease).await.unwrap();
        world.settle().await;
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.status, Status::Stopped);
        assert_eq!(world.text(put_off).await, "0");
    }
}

/// Every node of a plan.
fn nodes<'a>(plan: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(plan);
    for below in plan["Plans"].as_array().into_iter().flatten() {
        nodes(below, found);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_touches_due_rows_only_postgres() {
    let world = World::new(Db::Postgres).await;
    let now = world.berth.store.read().await.unwrap().now().await.unwrap().0;
    let mut conn = PgConnection::connect(&world.url).await.unwrap();
    for statement in fill(Db::Postgres, now) {
        conn.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    for (name, sql) in due::ALL {
        let explain = AssertSqlSafe(format!("EXPLAIN (ANALYZE, FORMAT JSON) {sql}"));
        let plan: Value = sqlx::query_scalar(explain).bind(now).bind(500_i64).fetch_one(&mut conn).await.unwrap();
        let mut all = Vec::new();
        nodes(&plan[0]["Plan"], &mut all);
        let mut touched = 0.0;
        for node in all.iter().filter(|node| ["lease", "instance"].iter().any(|table| node["Relation Name"] == *table)) {
            assert!(node["Node Type"].as_str().unwrap().contains("Index") || node["Node Type"] == "Bitmap Heap Scan", "{name}: {node}");
            let rows = node["Actual Rows"].as_f64().unwrap() + node["Rows Removed by Filter"].as_f64().unwrap_or(0.0);
            touched += rows * node["Actual Loops"].as_f64().unwrap();
        }
        assert!(touched <= 101.0, "{name} touches {touched} rows: {plan}");
    }
    assert_eq!(berth::ops::reap::due(&world.berth).await.unwrap().expired.len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_touches_due_rows_only_sqlite() {
    let world = World::new(Db::Sqlite).await;
    let now = world.berth.store.read().await.unwrap().now().await.unwrap().0;
    let mut conn = SqliteConnection::connect(&world.url).await.unwrap();
    for statement in fill(Db::Sqlite, now) {
        conn.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    for (name, sql) in due::ALL {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps = sqlx::query(explain).bind(now).bind(500_i64).fetch_all(&mut conn).await.unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        // The first table is what is walked through: a search in the index of what may be due, or that whole partial index.
        let first = &steps[0];
        let index = [
            "lease_due (",
            "lease_retained_due (",
            "lease_unsettled",
            "lease_releasing",
            "instance_cleanup_due (",
            "instance_unsettled",
            "instance_idle (",
            "instance_ending (",
        ];
        assert!(index.iter().any(|index| first.contains(&format!("INDEX {index}"))), "{name}: {steps:?}");
        let walked = steps.iter().filter(|step| step.starts_with("SCAN")).count();
        assert!(walked <= 1, "{name}: {steps:?}");
    }
    assert_eq!(berth::ops::reap::due(&world.berth).await.unwrap().expired.len(), 100);
}
