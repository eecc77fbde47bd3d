//! Death at any time, with several leases at work: acknowledged files are there, and no command of the dead server runs on.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use super::on_both;
use crate::harness::server::{KEY, Server, parent, processes};
use crate::harness::until;

const ROUNDS: usize = 8;
const HOLDERS: [&str; 3] = ["a", "b", "c"];

/// A word that only commands of this test have among their arguments.
fn marker() -> String {
    let id = uuid::Uuid::now_v7().as_u128();
    format!("98765.{id}")
}

/// A file's content in a round: long enough to be written in several pieces.
fn content(round: usize) -> String {
    format!("round {round}\n").repeat(8000)
}

/// Starts a command that outlives its request, and a descendant that left its session.
async fn sleeping(server: &Server, lease: &Value, word: &str) {
    let script = format!("setsid sleep {word} & exec sleep {word}");
    let wanted = json!({ "script": script, "on_disconnect": "keep", "wait_seconds": 0, "timeout_ms": 3_600_000 });
    Server::try_send(server.inside(lease, Method::POST, "/exec").json(&wanted)).await;
}

/// One holder's work until the server dies; says whether the round's file was acknowledged.
async fn work(server: &Server, holder: &str, round: usize, word: &str) -> bool {
    let Some((_, lease)) = Server::try_send(server.acquire(holder, holder)).await else { return false };
    sleeping(server, &lease, word).await;
    let written = Server::try_send(server.put(&lease, "f", &content(round))).await;
    let acknowledged = written.is_some_and(|(status, _)| status < 300);
    let mut command = 0;
    while let Some((status, body)) = Server::try_send(server.script(&lease, &format!("echo {command} > g; cat g"))).await {
        assert_eq!((status, &body["stdout"]), (200, &json!(format!("{command}\n"))), "{body}");
        command += 1;
    }
    acknowledged
}

async fn nothing_runs(word: &str) {
    until("no command of the dead server runs", async || processes(word).is_empty()).await;
}

on_both! {
    async fn whenever_the_server_dies_files_stay_and_commands_end(site) {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let word = marker();
        let mut held: [Option<String>; HOLDERS.len()] = [const { None }; HOLDERS.len()];
        let mut last = [None; HOLDERS.len()];
        for round in 0..ROUNDS {
            let server = site.serve().await;
            let life = Duration::from_millis(random.random_range(20..500));
            let at_work = HOLDERS.map(|holder| work(&server, holder, round, &word));
            let death = async {
                tokio::time::sleep(life).await;
                let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            };
            let (acknowledged, ()) = tokio::join!(futures_util::future::join_all(at_work), death);
            server.died().await;
            nothing_runs(&word).await;
            site.lapse_claims().await;

            let server = site.serve().await;
            for (n, holder) in HOLDERS.into_iter().enumerate() {
                let lease = Server::good(server.acquire(holder, holder)).await;
                let id = lease["id"].as_str().unwrap().to_owned();
                assert_eq!(*held[n].get_or_insert(id.clone()), id, "{holder} keeps its lease");
                let found = server.file(&lease, "f").await;
                let before = last[n].map(content);
                if acknowledged[n] {
                    last[n] = Some(round);
                    assert_eq!(found, Some(content(round)), "{holder} was told that its file is written");
                } else if found == Some(content(round)) {
                    last[n] = Some(round);
                } else {
                    assert_eq!(found, before, "{holder}'s file is the former one, whole");
                }
            }
            server.at_rest(&site).await;
            assert_eq!(site.inventory().len(), HOLDERS.len(), "one instance for each of them");
            assert!(processes(&word).is_empty());
            server.kill().await;
            site.lapse_claims().await;
        }
    }

    async fn a_command_of_a_dead_lease_is_dead_even_if_its_keeper_died_first(site) {
        let word = marker();
        // In namespaces of its own a command ends with its keeper.
        let plainly = [("BERTH_BOOTSTRAP_KEY", KEY), ("BERTH_LOCAL_ISOLATION", "none")];
        let server = site.start(&plainly).await;
        let lease = Server::good(server.acquire_for("run", "s", 2)).await;
        sleeping(&server, &lease, &word).await;
        until("both commands run", async || processes(&word).len() == 2).await;
        // Nobody is left who could end them: server and keeper die at once, as under a kernel that lacks memory.
        let keepers: BTreeSet<u32> = processes(&word).into_iter().filter_map(parent).filter(|pid| !processes(&word).contains(pid)).collect();
        let pids = std::iter::once(server.pid()).chain(keepers).filter_map(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()));
        let pids: Vec<_> = pids.collect();
        for pid in &pids {
            rustix::process::kill_process(*pid, rustix::process::Signal::STOP).unwrap();
        }
        for pid in &pids {
            rustix::process::kill_process(*pid, rustix::process::Signal::KILL).unwrap();
        }
        server.died().await;
        assert_eq!(processes(&word).len(), 2, "they run on, as nobody's");
        site.lapse_claims().await;
        let server = site.start(&plainly).await;
        let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        until("the lease is over", async || server.get(&path).await["status"] == "expired").await;
        nothing_runs(&word).await;
        server.at_rest(&site).await;
        assert_eq!(server.stop().await.code(), Some(0));
    }

    async fn a_polite_stop_ends_commands_and_exits_with_zero(site) {
        let word = marker();
        let server = site.serve().await;
        let lease = Server::good(server.acquire("run", "s")).await;
        sleeping(&server, &lease, &word).await;
        until("both commands run", async || processes(&word).len() == 2).await;
        assert_eq!(server.stop().await.code(), Some(0));
        nothing_runs(&word).await;
        let server = site.serve().await;
        let again = Server::good(server.acquire("run", "s")).await;
        assert_eq!(again["id"], lease["id"]);
        let execs = server.get(&format!("/v1/leases/{}/execs", lease["id"].as_str().unwrap())).await;
        assert_eq!(execs["items"][0]["status"], "cancelled", "it is known how the command ended: {execs}");
    }
}
