//! The database goes away and comes back: refused at once, nothing lost, nobody expired for it, and everything goes on by itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth::model::lease::Status;
use berth::ops::Settings;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::harness::client::{Wire, got};
use crate::harness::{World, quick, until};

/// How the database is away.
#[derive(Clone, Copy)]
struct Away {
    /// For how long.
    span: Duration,
    /// How long the lease of the test lives: less.
    ttl_seconds: i64,
    /// What a caller is ready to wait for a refusal.
    quickly: Duration,
}

/// A short one.
const MOMENTS: Away = Away { span: Duration::from_secs(6), ttl_seconds: 4, quickly: Duration::from_secs(8) };
/// What Berth promises to survive, with time for a machine that is busy.
const MINUTE: Away = Away { span: Duration::from_secs(60), ttl_seconds: 45, quickly: Duration::from_secs(20) };

/// What stands between a server and its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Everything passes.
    Up,
    /// Connections are cut, and no new ones taken.
    Cut,
    /// Nothing passes, and nobody is told.
    Silent,
}

/// A line to the test's database that can be cut.
struct Proxy {
    line: watch::Sender<Line>,
    direct: String,
}

impl Proxy {
    /// A world whose server reaches its database through the proxy.
    async fn world() -> (World, Arc<Self>) {
        let mut made = None;
        let way = async |url: &str| {
            let (proxy, through) = Self::before(url).await;
            made = Some(Arc::new(proxy));
            through
        };
        let settings = Settings { reaper_period: Duration::from_millis(300), ..quick() };
        let world = World::reached_by(way, settings).await;
        (world, made.unwrap())
    }

    async fn before(url: &str) -> (Self, String) {
        let (head, tail) = url.split_once('@').unwrap();
        let (address, name) = tail.split_once('/').unwrap();
        let target: SocketAddr = address.parse().expect("the test server is named by its address");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = format!("{head}@{}/{name}", listener.local_addr().unwrap());
        let (line, seen) = watch::channel(Line::Up);
        tokio::task::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::task::spawn(carry(client, target, seen.clone()));
            }
        });
        (Self { line, direct: url.to_owned() }, through)
    }

    fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Does something with the database that its server does not see.
    async fn execute(&self, sql: String) {
        Self::on(&self.direct, sql).await;
    }

    /// Does something with the database from another one of its server.
    async fn execute_beside(&self, sql: String) {
        let (server, _) = self.direct.rsplit_once('/').unwrap();
        Self::on(&format!("{server}/postgres"), sql).await;
    }

    async fn on(url: &str, sql: String) {
        let mut conn = PgConnection::connect(url).await.unwrap();
        conn.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    }

    fn database(&self) -> &str {
        self.direct.rsplit('/').next().unwrap()
    }
}

/// Carries one connection: a cut one is closed, and what a silent one is given comes later.
async fn carry(client: TcpStream, target: SocketAddr, line: watch::Receiver<Line>) {
    if passes(&mut line.clone()).await
        && let Ok(server) = TcpStream::connect(target).await
    {
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::select! {
            () = pump(from_client, to_server, line.clone()) => {}
            () = pump(from_server, to_client, line) => {}
        }
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut buffer = vec![0; 16 << 10];
    let mut cut = line.clone();
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = cut.wait_for(|line| *line == Line::Cut) => return,
        };
        match read {
            Ok(1..) if passes(&mut line).await => {}
            _ => return,
        }
        if to.write_all(&buffer[..read.unwrap_or(0)]).await.is_err() {
            return;
        }
    }
}

/// Waits while the line is silent; false once it is cut.
async fn passes(line: &mut watch::Receiver<Line>) -> bool {
    line.wait_for(|line| *line != Line::Silent).await.is_ok_and(|line| *line == Line::Up)
}

async fn ready(wire: &Wire) -> u16 {
    got(wire.ask("GET", "/readyz")).await.status
}

/// Everything that a caller may ask, while the database is away.
async fn refused_quickly(wire: &Wire, lease: &str, quickly: Duration) {
    // What /readyz saw a moment ago it says for a second.
    sleep(Duration::from_millis(1100)).await;
    let asked = Instant::now();
    let (renew, nothing) = (format!("{lease}/renew"), json!({}));
    let acquire = json!({ "environment": "default", "holder": "other" });
    let (read, write, new, readyz, alive) = tokio::join!(
        wire.get(lease),
        wire.post(&renew, &[], &nothing),
        wire.post("/v1/leases", &[], &acquire),
        wire.get("/readyz"),
        wire.get("/healthz")
    );
    for refused in [&read, &write, &new, &readyz] {
        assert_eq!((refused.status, refused.code()), (503, "storage_unavailable"), "{refused:?}");
        assert!(!refused.header("retry-after").is_empty(), "{refused:?}");
    }
    assert_eq!(alive.status, 200);
    assert!(asked.elapsed() < quickly, "it took {:?}", asked.elapsed());
}

/// A lease with work in it, the outage, and what is left of both.
async fn comes_back(line: Line, away: Away) {
    let (world, proxy) = Proxy::world().await;
    let wire = world.serve().await;
    let lease = world.acquire("run", "kept").await.unwrap();
    world.put(&lease, "f", "kept").await.unwrap();
    let lease = world.renew(&lease, 3600).await.unwrap();
    proxy.execute(format!("UPDATE lease SET expires_at = expires_at - {}", (3600 - away.ttl_seconds) * 1000)).await;
    let path = format!("/v1/leases/{}", lease.lease.id);
    world.start_background();
    assert_eq!(ready(&wire).await, 200);
    proxy.set(line);
    let back = Instant::now() + away.span;
    refused_quickly(&wire, &path, away.quickly).await;
    while back > Instant::now() + away.quickly {
        refused_quickly(&wire, &path, away.quickly).await;
    }
    tokio::time::sleep_until(back).await;
    proxy.set(Line::Up);
    until("it is ready again", async || ready(&wire).await == 200).await;
    // Several passes of the reaper, by which the lease would have ended.
    sleep(Duration::from_secs(1)).await;
    let after = world.lease(&lease).await;
    assert_eq!(after.lease.status, Status::Active, "nobody expires for an outage");
    assert!(world.exec(&after, &["true"]).await.is_ok());
    assert_eq!(world.get(&after, "f").await.unwrap(), "kept");
    world.renew(&after, 60).await.unwrap();
    let next = world.acquire("next", "another").await.unwrap();
    world.delete(&next).await.unwrap();
    world.delete(&after).await.unwrap();
    until("everything is torn down", async || world.memory.inventory().is_empty()).await;
    until("nothing is under way", async || world.ledger().await.iter().all(|row| !row.status.is_live())).await;
    world.berth.work.stop(Duration::from_secs(5)).await;
    world.assert_ledger_is_inventory().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_expires_for_a_database_that_was_cut_off() {
    comes_back(Line::Cut, MOMENTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_expires_for_a_database_that_fell_silent() {
    comes_back(Line::Silent, MOMENTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_an_outage_caught_decides_nothing_by_the_time_after_it() {
    let (world, proxy) = Proxy::world().await;
    let lease = world.acquire("run", "kept").await.unwrap();
    for line in [Line::Up, Line::Silent] {
        let mut tx = world.berth.store.begin().await.unwrap();
        tx.now().await.unwrap();
        proxy.set(line);
        let told = tokio::task::spawn(async move { tx.now().await });
        sleep(Duration::from_secs(3)).await;
        proxy.set(Line::Up);
        assert_eq!(told.await.unwrap().is_ok(), line == Line::Up);
    }
    // Nobody else met the outage, and it is made up for all the same.
    let was = lease.lease.expires_at.unwrap();
    world.berth.keep_claims().await.unwrap();
    assert!(world.lease(&lease).await.lease.expires_at.unwrap().since(was) >= Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_an_outage_held_up_does_not_hide_it() {
    let (world, proxy) = Proxy::world().await;
    let lease = world.acquire("run", "kept").await.unwrap();
    let mut tx = world.berth.store.begin().await.unwrap();
    tx.touch().await.unwrap();
    proxy.set(Line::Silent);
    let held = tokio::task::spawn(tx.commit());
    assert!(world.berth.keep_claims().await.is_err(), "somebody noticed");
    proxy.set(Line::Up);
    held.await.unwrap().unwrap();
    until("it writes again", async || world.berth.keep_claims().await.is_ok()).await;
    let was = lease.lease.expires_at.unwrap();
    assert!(world.lease(&lease).await.lease.expires_at.unwrap().since(was) >= Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_had_expired_before_stays_expired_and_the_others_get_no_more_than_the_outage() {
    let (world, proxy) = Proxy::world().await;
    let over = world.acquire("run", "over").await.unwrap();
    let live = world.acquire("run", "live").await.unwrap();
    proxy.execute(format!("UPDATE lease SET expires_at = expires_at - 3700000 WHERE id = '{}'", over.lease.id)).await;
    let other = world.another().await;
    world.berth.keep_claims().await.unwrap();
    proxy.set(Line::Cut);
    assert!(world.berth.keep_claims().await.is_err() && other.keep_claims().await.is_err());
    sleep(Duration::from_secs(3)).await;
    proxy.set(Line::Up);
    until("it writes again", async || world.berth.keep_claims().await.is_ok()).await;
    let back = Instant::now();
    world.settle().await;
    assert_eq!(world.lease(&over).await.lease.status, Status::Expired);
    let (was, is) = (live.lease.expires_at.unwrap(), world.lease(&live).await.lease.expires_at.unwrap());
    let added = is.since(was);
    assert!(added >= Duration::from_secs(3) && added < Duration::from_secs(20), "{added:?}");
    // A second server that saw the same outage adds no more than the time since the first came back.
    until("it writes too", async || other.keep_claims().await.is_ok()).await;
    let again = world.lease(&live).await.lease.expires_at.unwrap().since(is);
    assert!(again <= back.elapsed() + Duration::from_secs(1), "{again:?} were added again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_turned_read_only_is_left_for_the_one_that_takes_writes() {
    let (world, proxy) = Proxy::world().await;
    let wire = world.serve().await;
    let lease = world.acquire("run", "s").await.unwrap();
    let database = proxy.database().to_owned();
    let break_all = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'");
    proxy.execute(format!("ALTER DATABASE {database} SET default_transaction_read_only = on")).await;
    proxy.execute_beside(break_all).await;
    until("it is not ready", async || ready(&wire).await == 503).await;
    let refused = wire.post(&format!("/v1/leases/{}/renew", lease.lease.id), &[], &json!({})).await;
    assert_eq!((refused.status, refused.code()), (503, "storage_unavailable"), "{refused:?}");
    // The connections of now lead to a server that takes no writes for ever; the next ones do not.
    proxy.execute_beside(format!("ALTER DATABASE {database} RESET default_transaction_read_only")).await;
    until("it is ready again", async || ready(&wire).await == 200).await;
    world.renew(&lease, 60).await.unwrap();
    assert!(world.exec(&lease, &["true"]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_nobody_expires_for_a_database_that_was_silent_for_a_minute() {
    comes_back(Line::Silent, MINUTE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_met_no_outage_does_not_hide_anothers() {
    let (world, proxy) = Proxy::world().await;
    let lease = world.acquire("run", "kept").await.unwrap();
    world.berth.keep_claims().await.unwrap();
    proxy.set(Line::Cut);
    assert!(world.berth.keep_claims().await.is_err());
    sleep(Duration::from_secs(3)).await;
    // Another server writes all the while, as it does every few seconds.
    proxy.execute("UPDATE deployment SET alive_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint".to_owned()).await;
    proxy.set(Line::Up);
    until("it writes again", async || world.berth.keep_claims().await.is_ok()).await;
    let was = lease.lease.expires_at.unwrap();
    assert!(world.lease(&lease).await.lease.expires_at.unwrap().since(was) >= Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_replaces_its_connections_does_not_hide_an_outage() {
    let (world, proxy) = Proxy::world().await;
    let lease = world.acquire("run", "kept").await.unwrap();
    // Over before anybody asks for anything.
    proxy.set(Line::Cut);
    sleep(Duration::from_secs(3)).await;
    proxy.set(Line::Up);
    let is = world.lease(&lease).await.lease.expires_at.unwrap();
    assert!(is.since(lease.lease.expires_at.unwrap()) >= Duration::from_secs(3), "a read makes up for it as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_no_outage() {
    let (world, _proxy) = Proxy::world().await;
    let one = world.acquire("run", "one").await.unwrap();
    let two = world.acquire("run", "two").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let (mut first, mut second) = (world.berth.store.begin().await.unwrap(), world.berth.store.begin().await.unwrap());
    first.lock_sandbox(one.lease.sandbox_id).await.unwrap();
    second.lock_sandbox(two.lease.sandbox_id).await.unwrap();
    let (a, b) = tokio::join!(async { first.lock_sandbox(two.lease.sandbox_id).await.map(|_| drop(first)) }, async {
        second.lock_sandbox(one.lease.sandbox_id).await.map(|_| drop(second))
    });
    let refused: Vec<berth::error::Error> = [a.err(), b.err()].into_iter().flatten().map(Into::into).collect();
    assert_eq!(refused.iter().map(|e| e.code).collect::<Vec<_>>(), [berth::error::Code::StorageUnavailable], "one gives way");
    world.berth.keep_claims().await.unwrap();
    let is = world.lease(&one).await.lease.expires_at.unwrap();
    assert_eq!(is, one.lease.expires_at.unwrap(), "nothing is made up for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_database_that_is_silent() {
    let (world, proxy) = Proxy::world().await;
    let held = world.berth.store.begin().await.unwrap();
    proxy.set(Line::Silent);
    let closed = tokio::time::timeout(Duration::from_secs(30), world.berth.store.close()).await;
    proxy.set(Line::Up);
    assert!(closed.is_ok(), "it still waits");
    drop(held);
}
