//! Death of the server while a container is being made, and the demo on a real engine.

use std::process::Stdio;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use super::engine::{IMAGE, host, said};
use crate::harness::Db;
use crate::harness::server::{KEY, Server, Site};

const ROUNDS: usize = 20;

fn wanted(environment: &Value, holder: &str) -> Value {
    json!({ "environment": environment["id"], "holder": holder, "policy": "ephemeral", "ttl_seconds": 600 })
}

/// Looks again and again, since a server that was killed leaves the next one things to finish.
async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_mins(1);
    while !so().await {
        assert!(tokio::time::Instant::now() < patience, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_while_it_creates_leaves_no_container_without_a_lease() {
    let site = Site::new(Db::Sqlite).await;
    let host = host();
    let settings = [("BERTH_BOOTSTRAP_KEY", KEY), ("BERTH_PROVIDERS", "docker"), ("BERTH_DOCKER_HOST", host.as_str())];
    let server = site.start(&settings).await;
    let environment = json!({ "name": "boxes", "provider": "docker", "config": { "image": IMAGE } });
    let environment = Server::good(server.ask(Method::POST, "/v1/environments").json(&environment)).await;
    let first = Server::good(server.ask(Method::POST, "/v1/leases").json(&wanted(&environment, "first"))).await;
    let instance = first["instance_id"].as_str().unwrap();
    let label = said(&["inspect", "-f", "{{index .Config.Labels \"berth.deployment\"}}", &format!("berth-{instance}")]);
    let containers = || -> Vec<String> {
        let found = said(&["ps", "-aq", "--no-trunc", "-f", &format!("label=berth.deployment={label}")]);
        found.lines().map(str::to_owned).collect()
    };
    server.kill().await;
    let mut chance = rand::rngs::StdRng::seed_from_u64(20);
    for round in 0..ROUNDS {
        let server = site.start(&settings).await;
        let asked = server.ask(Method::POST, "/v1/leases").json(&wanted(&environment, &format!("run-{round}")));
        let asked = tokio::spawn(Server::try_send(asked));
        tokio::time::sleep(Duration::from_millis(chance.random_range(0..700))).await;
        server.kill().await;
        let _ = asked.await;
    }
    let server = site.start(&settings).await;
    eventually("every container has a lease that is live", async || {
        let ledger = server.ledger().await;
        let mut rows: Vec<&str> =
            ledger.iter().filter(|row| row["status"] == "running").filter_map(|row| row["provider_ref"].as_str()).collect();
        let mut there = containers();
        rows.sort_unstable();
        there.sort_unstable();
        rows == there && ledger.iter().all(|row| ["running", "destroyed"].iter().any(|word| row["status"] == *word))
    })
    .await;
    let leases = server.get("/v1/leases?limit=100").await;
    for lease in leases["items"].as_array().unwrap() {
        Server::send(server.ask(Method::DELETE, &format!("/v1/leases/{}", lease["id"].as_str().unwrap()))).await;
    }
    eventually("nothing is left", async || containers().is_empty()).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_tells_its_story_on_an_engine() {
    let data = tempfile::tempdir().unwrap();
    let mut demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth"));
    demo.args(["demo", "--provider", "docker", "--image", IMAGE]).env("BERTH_DOCKER_HOST", host()).env("BERTH_DATA_DIR", data.path());
    let told = demo.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let (story, errors) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success() && story.contains("Every step held."), "{story}{errors}");
}
