//! Scenarios 5, 7, 8, 12 and 16: Berth over a Docker engine (`BERTH_TEST_DOCKER`) against the same work by the Engine API alone.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::{RngCore, SeedableRng};
use ratio::{KEY, PAIRS, Scenario, Server};
use reqwest::{Client, Method};
use serde_json::{Value, json};

const IMAGE: &str = "berth-test:1";
/// At most 15 % slower than the engine alone.
const MUST: f64 = 0.87;
const TARGET: f64 = 0.95;
const FILE: usize = 64 * 1024;
/// What a snapshot takes along: a workspace that somebody worked in.
const WORKED: usize = 64 << 20;
/// The longest that a metadata read may take while the engine is saturated, by the 99th percentile.
const READ_MS: f64 = 50.0;

/// The engine alone.
struct Raw {
    client: Client,
}

impl Raw {
    fn new(host: &str) -> Self {
        let path = std::path::Path::new(host.strip_prefix("unix://").expect("an engine on a unix socket"));
        Self { client: Client::builder().no_proxy().unix_socket(path).build().unwrap() }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.client.request(method, format!("http://engine/v1.41{path}"));
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let response = request.send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or(Value::Null)
    }

    async fn container(&self) -> String {
        let host = json!({
            "Init": true, "NetworkMode": "none", "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges:true"], "PidsLimit": 512,
            "Memory": 1_u64 << 30, "MemorySwap": 1_u64 << 30, "NanoCpus": 1_000_000_000, "LogConfig": { "Type": "none" }
        });
        let wanted = json!({
            "Image": IMAGE, "Entrypoint": ["/bin/sh", "-c", "while read -r _; do :; done"], "OpenStdin": true, "WorkingDir": "/workspace",
            "HostConfig": host
        });
        let made = self.call(Method::POST, "/containers/create", Some(wanted)).await;
        let id = made["Id"].as_str().unwrap().to_owned();
        self.call(Method::POST, &format!("/containers/{id}/start"), None).await;
        id
    }

    async fn exec(&self, id: &str) {
        let wanted = json!({ "AttachStdout": true, "AttachStderr": true, "Cmd": ["true"] });
        let made = self.call(Method::POST, &format!("/containers/{id}/exec"), Some(wanted)).await;
        let exec = made["Id"].as_str().unwrap();
        self.call(Method::POST, &format!("/exec/{exec}/start"), Some(json!({ "Detach": false }))).await;
        let ended = self.call(Method::GET, &format!("/exec/{exec}/json"), None).await;
        assert_eq!(ended["ExitCode"], 0);
    }

    async fn put(&self, id: &str, tar: &[u8]) {
        let url = format!("http://engine/v1.41/containers/{id}/archive?path=/workspace");
        let put = self.client.put(url).body(tar.to_vec()).send().await.unwrap();
        assert!(put.status().is_success());
    }

    async fn get(&self, id: &str) {
        let url = format!("http://engine/v1.41/containers/{id}/archive?path=/workspace/file");
        let got = self.client.get(url).send().await.unwrap().bytes().await.unwrap();
        assert!(got.len() > FILE);
    }

    async fn commit(&self, id: &str) -> String {
        let path = format!("/commit?container={id}&repo=berth-bench&pause=true");
        self.call(Method::POST, &path, Some(json!({}))).await["Id"].as_str().unwrap().to_owned()
    }

    async fn remove(&self, id: &str) {
        self.call(Method::DELETE, &format!("/containers/{id}?force=true&v=true"), None).await;
    }
}

/// Berth over the engine.
struct Ours {
    client: Client,
    url: String,
    environment: String,
}

impl Ours {
    async fn new(server: &Server) -> Self {
        let client = Client::builder().no_proxy().build().unwrap();
        let mut ours = Self { client, url: format!("http://{}", server.address), environment: String::new() };
        let wanted = json!({ "name": "boxes", "provider": "docker", "config": { "image": IMAGE } });
        let made = ours.call(Method::POST, "/v1/environments", Some(wanted)).await;
        ours.environment.push_str(made["id"].as_str().unwrap());
        ours
    }

    fn ask(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(KEY).header("Berth-Generation", "1")
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.ask(method, path);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let response = request.send().await.unwrap();
        let status = response.status();
        let bytes = response.bytes().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).unwrap_or(Value::Null)
    }

    async fn acquire(&self, holder: &str) -> String {
        let wanted = json!({ "environment": self.environment, "holder": holder, "policy": "ephemeral" });
        self.call(Method::POST, "/v1/leases", Some(wanted)).await["id"].as_str().unwrap().to_owned()
    }

    async fn exec(&self, lease: &str) {
        let ran = self.call(Method::POST, &format!("/v1/leases/{lease}/exec"), Some(json!({ "command": "true" }))).await;
        assert_eq!(ran["exit_code"], 0, "{ran}");
    }

    async fn put(&self, lease: &str, content: &[u8]) {
        let put = self.ask(Method::PUT, &format!("/v1/leases/{lease}/files?path=file")).body(content.to_vec()).send().await.unwrap();
        assert!(put.status().is_success());
    }

    async fn get(&self, lease: &str) {
        let got = self.ask(Method::GET, &format!("/v1/leases/{lease}/files?path=file")).send().await.unwrap().bytes().await.unwrap();
        assert_eq!(got.len(), FILE);
    }

    async fn snapshot(&self, lease: &str) {
        let wanted = json!({ "kind": "provider_native" });
        let taken = self.call(Method::POST, &format!("/v1/leases/{lease}/checkpoints"), Some(wanted)).await;
        assert_eq!(taken["kind"], "provider_native", "{taken}");
    }

    async fn end(&self, lease: &str) {
        self.call(Method::DELETE, &format!("/v1/leases/{lease}"), None).await;
    }
}

async fn millis(work: impl Future<Output = ()>) -> f64 {
    let begun = Instant::now();
    work.await;
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Interleaved pairs, the first of which warms both up.
async fn pairs(ours: impl AsyncFn(usize) -> f64, theirs: impl AsyncFn() -> f64) -> Vec<(f64, f64)> {
    let mut pairs = Vec::new();
    for pair in 0..=PAIRS {
        let measured = (ours(pair).await, theirs().await);
        if pair > 0 {
            pairs.push(measured);
        }
    }
    pairs
}

fn scenario(name: &'static str) -> Scenario {
    Scenario { name, must: Some(MUST), target: TARGET, unit: "ms", more_is_better: false }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Ok(host) = std::env::var("BERTH_TEST_DOCKER") else {
        eprintln!("BERTH_TEST_DOCKER names no engine: nothing is measured");
        return ExitCode::SUCCESS;
    };
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let data = tempfile::tempdir().unwrap();
    let server = Server::berth(data.path(), &[("BERTH_DOCKER_HOST", &host)]);
    let (raw, ours) = (Raw::new(&host), Ours::new(&server).await);
    let mut codes = Vec::new();

    let cold_ours = async |pair: usize| {
        let begun = Instant::now();
        let lease = ours.acquire(&format!("cold-{pair}")).await;
        ours.exec(&lease).await;
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        ours.end(&lease).await;
        took
    };
    let cold_theirs = async || {
        let begun = Instant::now();
        let id = raw.container().await;
        raw.exec(&id).await;
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        raw.remove(&id).await;
        took
    };
    codes.push(scenario("5 docker acquire to first exec").report(&pairs(cold_ours, cold_theirs).await));

    let (lease, id) = (ours.acquire("warm").await, raw.container().await);
    let (lease, id) = (lease.as_str(), id.as_str());
    let one = pairs(async |_| millis(ours.exec(lease)).await, async || millis(raw.exec(id)).await).await;
    codes.push(scenario("7 docker exec, c=1").report(&one));
    let eight = pairs(
        async |_| millis(async { drop(join_all((0..8).map(|_| ours.exec(lease))).await) }).await,
        async || millis(async { drop(join_all((0..8).map(|_| raw.exec(id))).await) }).await,
    );
    codes.push(scenario("7 docker exec, c=8").report(&eight.await));

    let content = vec![7; FILE];
    let tar = packed(&content);
    let put = pairs(async |_| millis(ours.put(lease, &content)).await, async || millis(raw.put(id, &tar)).await).await;
    codes.push(scenario("8 docker file put").report(&put));
    let get = pairs(async |_| millis(ours.get(lease)).await, async || millis(raw.get(id)).await).await;
    codes.push(scenario("8 docker file get").report(&get));

    codes.push(snapshots(&ours, lease, &raw, id).await);
    codes.push(reads(&ours, lease).await);
    ours.end(lease).await;
    raw.remove(id).await;
    if codes.iter().all(|code| *code == ExitCode::SUCCESS) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A snapshot of a container in which both sides' workspaces hold the same bytes.
async fn snapshots(ours: &Ours, lease: &str, raw: &Raw, id: &str) -> ExitCode {
    let mut content = vec![0; WORKED];
    rand::rngs::StdRng::seed_from_u64(12).fill_bytes(&mut content);
    ours.put(lease, &content).await;
    raw.put(id, &packed(&content)).await;
    let theirs = async || {
        let begun = Instant::now();
        let image = raw.commit(id).await;
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        raw.call(Method::DELETE, &format!("/images/{image}"), None).await;
        took
    };
    scenario("12 docker native snapshot, 64 MiB").report(&pairs(async |_| millis(ours.snapshot(lease)).await, theirs).await)
}

/// A tar of one file.
fn packed(content: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "file", content).unwrap();
    tar.into_inner().unwrap()
}

/// Metadata reads while eight clients keep the engine busy.
async fn reads(ours: &Ours, lease: &str) -> ExitCode {
    let path = format!("/v1/leases/{lease}");
    let mut rounds = Vec::new();
    for _ in 0..PAIRS {
        let until = Instant::now() + Duration::from_secs(3);
        let busy = join_all((0..8).map(|_| async {
            while Instant::now() < until {
                ours.exec(lease).await;
            }
        }));
        let read = async {
            let mut took = Vec::new();
            while Instant::now() < until {
                took.push(millis(async { drop(ours.call(Method::GET, &path, None).await) }).await);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            took.sort_by(f64::total_cmp);
            took[took.len() * 99 / 100]
        };
        let (_, worst) = tokio::join!(busy, read);
        rounds.push((worst, READ_MS));
    }
    Scenario { name: "16 reads, docker saturated (p99)", must: Some(1.0), target: 5.0, unit: "ms", more_is_better: false }.report(&rounds)
}
