//! Three servers on one PostgreSQL, with clocks that are wrong, killed and paused at random: what their clients saw proves that a scope
//! had one writer at a time.
//!
//! The clients share a clock, so their own histories can be compared: a holder surely has the scope from the answer to its acquire until
//! it sends its release, or until its time to live has passed since it asked. `BERTH_TEST_SEED=<seed>` repeats the unrest and what the
//! clients want, though not the machine's own timing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use chrono::DateTime;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::{Client, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep, sleep_until};

use crate::harness::Db;
use crate::harness::server::{KEY, Server, Site};

const SPAN: Duration = Duration::from_secs(18);
const TTL_SECONDS: u64 = 3;
const SCOPES: usize = 8;
const CLIENTS: usize = 6;
const REPLICAS: usize = 3;
/// How far a server's clock may be off, either way.
const SKEW_SECONDS: i64 = 600;

/// What one client surely had.
#[derive(Clone, Debug)]
struct Held {
    scope: usize,
    holder: String,
    lease: String,
    generation: i64,
    epoch: i64,
    from: Instant,
    until: Instant,
}

/// What the clients share.
struct Stage {
    urls: RwLock<Vec<String>>,
    over: AtomicBool,
    http: Client,
}

impl Stage {
    async fn ask(&self, random: &mut StdRng, method: Method, path: &str) -> RequestBuilder {
        let urls = self.urls.read().await;
        let url = &urls[random.random_range(0..urls.len())];
        self.http.request(method, format!("{url}{path}")).bearer_auth(KEY)
    }

    /// An answer, or nothing from a server that is dead or paused; no failure but that of the database may be told.
    async fn send(&self, request: RequestBuilder) -> Option<(u16, Value)> {
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.ok()?;
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        assert!(status < 500 || status == 503, "{status}: {body}");
        Some((status, body))
    }

    async fn script(&self, random: &mut StdRng, lease: &Value, script: &str, more: Value) -> Option<(u16, Value)> {
        let path = format!("/v1/leases/{}/exec", lease["id"].as_str().unwrap());
        let mut body = json!({ "script": script });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let request = self.ask(random, Method::POST, &path).await.header("Berth-Generation", lease["generation"].to_string());
        self.send(request.json(&body)).await
    }
}

/// One client: acquires, works, leaves a command behind that writes for as long as it lives, and releases or forgets.
async fn client(stage: Arc<Stage>, number: usize, seed: u64) -> Vec<Held> {
    let mut random = StdRng::seed_from_u64(seed + number as u64);
    let mut history = Vec::new();
    for round in 0.. {
        if stage.over.load(Ordering::SeqCst) {
            return history;
        }
        let scope = random.random_range(0..SCOPES);
        let holder = format!("client-{number}-{round}");
        let wanted = json!({ "environment": "default", "holder": holder, "scope": { "s": scope.to_string() }, "ttl_seconds": TTL_SECONDS,
            "wait_seconds": 1 });
        let asked = Instant::now();
        let request = stage.ask(&mut random, Method::POST, "/v1/leases").await.json(&wanted);
        let Some((201, lease)) = stage.send(request).await else { continue };
        let from = Instant::now();
        let limit = asked + Duration::from_secs(TTL_SECONDS);
        // Nothing of a former writer writes any more.
        let still = "a=$(wc -c <beat 2>/dev/null); sleep 0.1; b=$(wc -c <beat 2>/dev/null); [ \"$a\" = \"$b\" ] && echo still";
        if let Some((200, said)) = stage.script(&mut random, &lease, still, json!({})).await
            && said["status"] == "exited"
            && Instant::now() < limit
        {
            assert_eq!(said["stdout"], "still\n", "a former writer's command runs beside {holder}: {said}");
        }
        let beat = format!("while :; do echo {holder} >>beat; sleep 0.02; done");
        let kept = json!({ "on_disconnect": "keep", "wait_seconds": 0, "timeout_ms": 600_000 });
        stage.script(&mut random, &lease, &beat, kept).await;
        sleep(Duration::from_millis(random.random_range(0..400))).await;
        let until = Instant::now().min(limit);
        if until > from {
            history.push(Held {
                scope,
                holder,
                lease: lease["id"].as_str().unwrap().to_owned(),
                generation: lease["generation"].as_i64().unwrap(),
                epoch: lease["epoch"].as_i64().unwrap(),
                from,
                until,
            });
        }
        if random.random_bool(0.7) {
            let path = format!("/v1/leases/{}/release", lease["id"].as_str().unwrap());
            let request = stage.ask(&mut random, Method::POST, &path).await.json(&json!({ "cancel_active_work": true }));
            stage.send(request).await;
        }
    }
    history
}

/// Says what cannot be true of all histories together.
fn check(history: &[Held]) -> Result<(), String> {
    for (n, one) in history.iter().enumerate() {
        for other in &history[n + 1..] {
            if one.lease == other.lease && (one.holder != other.holder || one.epoch != other.epoch) {
                return Err(format!("one lease has two holders: {one:?} and {other:?}"));
            }
            if one.scope != other.scope {
                continue;
            }
            let (first, second) = if one.from <= other.from { (one, other) } else { (other, one) };
            if first.until > second.from {
                return Err(format!("two writers at once: {first:?} and {second:?}"));
            }
            if first.generation > second.generation {
                return Err(format!("a generation went back: {first:?} and {second:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_history_with_two_writers_is_told_from_one_with_a_writer_at_a_time() {
    let start = Instant::now();
    let held = |lease: &str, generation, from, until| Held {
        scope: 0,
        holder: format!("of {lease}"),
        lease: lease.to_owned(),
        generation,
        epoch: 1,
        from: start + Duration::from_millis(from),
        until: start + Duration::from_millis(until),
    };
    assert_eq!(check(&[held("b", 2, 10, 20), held("a", 1, 0, 10), Held { scope: 1, ..held("c", 1, 5, 15) }]), Ok(()));
    for broken in [
        [held("a", 1, 0, 10), held("b", 1, 9, 20)],
        [held("a", 2, 0, 10), held("b", 1, 10, 20)],
        [held("a", 1, 0, 10), Held { epoch: 2, ..held("a", 1, 10, 20) }],
    ] {
        assert!(check(&broken).is_err(), "{broken:?}");
    }
}

/// A server whose clock is off, by a library that lies to it about the time of day; it says so itself in every answer.
async fn skewed(site: &Site, random: &mut StdRng) -> Server {
    let library = std::env::var("BERTH_TEST_FAKETIME").expect("BERTH_TEST_FAKETIME names libfaketime, as tests/run.sh sets it");
    let skew = random.random_range(-SKEW_SECONDS..=SKEW_SECONDS);
    let wrong = [
        ("BERTH_BOOTSTRAP_KEY", KEY),
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", &format!("{skew:+}s")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ];
    let server = site.start(&wrong).await;
    // Nobody else removes what the library shares with no one: its servers do not come to an orderly end.
    for shared in [format!("/dev/shm/faketime_shm_{0}", server.pid()), format!("/dev/shm/sem.faketime_sem_{0}", server.pid())] {
        std::fs::remove_file(shared).ok();
    }
    let answer = server.ask(Method::GET, "/healthz").send().await.unwrap();
    let says = DateTime::parse_from_rfc2822(answer.headers()["date"].to_str().unwrap()).unwrap().timestamp();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let off = says - i64::try_from(now).unwrap();
    assert!((off - skew).abs() < 10, "its clock is off by {off} s instead of {skew} s");
    server
}

fn signal(server: &Server, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap(), signal).unwrap();
}

/// Kills, and starts again, and pauses servers until the span is over.
async fn unrest(site: &Site, servers: &mut Vec<Server>, stage: &Stage, random: &mut StdRng) -> (usize, usize) {
    let (mut killed, mut paused) = (0, 0);
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(500..2500))).await;
        let which = random.random_range(0..servers.len());
        if random.random_bool(0.4) {
            servers.remove(which).kill().await;
            let next = skewed(site, random).await;
            let mut urls = stage.urls.write().await;
            urls.remove(which);
            urls.push(next.url.clone());
            servers.push(next);
            killed += 1;
        } else {
            signal(&servers[which], Signal::STOP);
            sleep_until(end.min(Instant::now() + Duration::from_millis(random.random_range(100..2500)))).await;
            signal(&servers[which], Signal::CONT);
            paused += 1;
        }
    }
    (killed, paused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_under_fire_with_wrong_clocks_give_a_scope_to_one_writer_at_a_time_postgres() {
    let seed: u64 = std::env::var("BERTH_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("BERTH_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let site = Site::new(Db::Postgres).await;
    let mut servers = Vec::new();
    for _ in 0..REPLICAS {
        servers.push(skewed(&site, &mut random).await);
    }
    let stage = Arc::new(Stage {
        urls: RwLock::new(servers.iter().map(|server| server.url.clone()).collect()),
        over: AtomicBool::new(false),
        http: Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap(),
    });
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::task::spawn(client(Arc::clone(&stage), number, seed))).collect();
    let (killed, paused) = unrest(&site, &mut servers, &stage, &mut random).await;
    stage.over.store(true, Ordering::SeqCst);
    let mut history = Vec::new();
    for client in clients {
        history.extend(client.await.unwrap());
    }
    println!("{} holds under {killed} kills and {paused} pauses", history.len());
    assert!(history.len() > CLIENTS, "there was something to compare");
    check(&history).unwrap();
    // Then there is peace: what is left ends by itself, and everything that exists is accounted for.
    let one = servers.pop().unwrap();
    for server in servers {
        server.kill().await;
    }
    site.lapse_claims().await;
    crate::harness::until("every lease is over", async || {
        let live = one.get("/v1/leases?status=pending,active&limit=100").await;
        live["items"].as_array().unwrap().is_empty()
    })
    .await;
    one.at_rest(&site).await;
    one.kill().await;
}
