//! A streamed command tells what it writes as it writes it, waits for its reader, and is kept and settled like any other.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth::ops::view::LeaseView;
use berth::provider::faults::Verb;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::both;
use crate::harness::client::Wire;
use crate::harness::{World, until};

const GENERATION: (&str, &str) = ("berth-generation", "1");

fn path(lease: &LeaseView) -> String {
    format!("/v1/leases/{}/exec/stream", lease.lease.id)
}

fn lines(bytes: &[u8]) -> Vec<Value> {
    String::from_utf8(bytes.to_vec()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn open(wire: &Wire, lease: &LeaseView, body: Value) -> reqwest::Response {
    let response = wire.ask("POST", &path(lease)).header(GENERATION.0, GENERATION.1).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

async fn runs(world: &World, lease: &LeaseView) -> bool {
    !world.berth.store.read().await.unwrap().running_operations(lease.lease.sandbox_id).await.unwrap().is_empty()
}

both! {
    async fn lines_tell_the_whole_story(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let got = wire.post(&path(&lease), &[GENERATION], &json!({ "script": "echo one; cat missing; echo two; exit 3" })).await;
        assert_eq!((got.status, got.header("content-type"), got.header("berth-generation")), (200, "application/x-ndjson", "1"));
        let told = lines(&got.bytes);
        let types: Vec<&str> = told.iter().map(|e| e["type"].as_str().unwrap()).collect();
        assert_eq!((types[0], *types.last().unwrap()), ("start", "exit"), "{told:?}");
        let of = |stream: &str| told.iter().filter(|e| e["type"] == stream).map(|e| e["data"].as_str().unwrap()).collect::<String>();
        assert_eq!(of("stdout"), "one\ntwo\n");
        assert!(!of("stderr").is_empty());
        let seqs: Vec<i64> = told.iter().filter_map(|e| e["seq"].as_i64()).collect();
        assert_eq!(seqs, (1..=i64::try_from(seqs.len()).unwrap()).collect::<Vec<_>>());
        assert_eq!(told.last().unwrap()["exec"]["exit_code"], 3);
        // Kept and settled like any other.
        let id = told[0]["id"].as_str().unwrap();
        let kept = wire.get(&format!("/v1/leases/{}/execs/{id}", lease.lease.id)).await;
        assert_eq!((&kept.json["status"], &kept.json["stdout"]), (&json!("exited"), &json!("one\ntwo\n")), "{kept:?}");
        assert_eq!(world.sandbox(&lease).await.sandbox.workspace_seq, 1);
    }

    async fn the_form_is_negotiated_before_anything_runs(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let body = json!({ "command": "echo", "args": ["hi"] });
        let refused = wire.post(&path(&lease), &[GENERATION, ("accept", "image/png")], &body).await;
        assert_eq!((refused.status, refused.code()), (406, "not_acceptable"));
        assert_eq!(world.memory.calls(Verb::Exec), 0);
        let events = wire.post(&path(&lease), &[GENERATION, ("accept", "text/event-stream")], &body).await;
        assert_eq!(events.header("content-type"), "text/event-stream");
        let text = String::from_utf8(events.bytes).unwrap();
        assert!(text.starts_with("event: start\ndata: {") && text.contains("event: stdout\n") && text.contains("event: exit\n"), "{text}");
        // What is refused before it runs is a problem with its status, and not a stream.
        let stale = wire.post(&path(&lease), &[("berth-generation", "9")], &body).await;
        assert_eq!((stale.status, stale.code()), (409, "stale_generation"));
    }

    async fn a_client_that_leaves_kills_its_command_unless_it_is_kept(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let mut left = open(&wire, &lease, json!({ "command": "sleep", "args": ["25000"] })).await;
        let start = lines(&left.chunk().await.unwrap().unwrap());
        drop(left);
        until("it is dead", async || !runs(&world, &lease).await).await;
        let id = start[0]["id"].as_str().unwrap();
        let kept = wire.get(&format!("/v1/leases/{}/execs/{id}", lease.lease.id)).await;
        assert_eq!(kept.json["status"], "cancelled");
        let body = json!({ "script": "sleep 0.3; echo done", "on_disconnect": "keep" });
        let mut left = open(&wire, &lease, body).await;
        let start = lines(&left.chunk().await.unwrap().unwrap());
        drop(left);
        until("it has ended by itself", async || !runs(&world, &lease).await).await;
        let id = start[0]["id"].as_str().unwrap();
        let kept = wire.get(&format!("/v1/leases/{}/execs/{id}", lease.lease.id)).await;
        assert_eq!((&kept.json["status"], &kept.json["stdout"]), (&json!("exited"), &json!("done\n")));
    }

    async fn a_slow_reader_slows_the_command_and_loses_nothing(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let block = "x".repeat(2 << 20);
        world.put(&lease, "block", &block).await.unwrap();
        let script = vec!["cat block"; 24].join("; ");
        let response = open(&wire, &lease, json!({ "script": script })).await;
        // Nothing is read: what waits on the way is bounded, so the command cannot come to its end.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(runs(&world, &lease).await);
        let (mut body, mut length, mut text) = (response.bytes_stream(), 0, Vec::new());
        let mut last = Value::Null;
        while let Some(chunk) = body.next().await {
            text.extend_from_slice(&chunk.unwrap());
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                last = serde_json::from_slice(&line).unwrap();
                length += last["data"].as_str().map_or(0, str::len);
            }
        }
        assert_eq!((length, &last["type"]), (24 * block.len(), &json!("exit")));
        assert_eq!(last["exec"]["stdout_bytes"], json!(24 * block.len()));
    }

    async fn bytes_are_never_mangled(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let body = json!({ "command": "cat", "stdin": STANDARD.encode(b"\xff\xfe\xc3"), "stdin_encoding": "base64" });
        let told = lines(&wire.post(&path(&lease), &[GENERATION], &body).await.bytes);
        let bytes: Vec<u8> =
            told.iter().filter(|e| e["type"] == "stdout").flat_map(|e| STANDARD.decode(e["data"].as_str().unwrap()).unwrap()).collect();
        assert_eq!(bytes, b"\xff\xfe\xc3", "{told:?}");
    }

    async fn under_a_key_it_runs_once_and_is_told_again(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let (key, body) = (("idempotency-key", "k"), json!({ "command": "echo", "args": ["hi"] }));
        let first = wire.post(&path(&lease), &[GENERATION, key], &body).await;
        let again = wire.post(&path(&lease), &[GENERATION, key], &body).await;
        assert_eq!((first.status, again.status, again.header("idempotency-replayed")), (200, 200, "true"));
        let (first, again) = (lines(&first.bytes), lines(&again.bytes));
        assert_eq!(first, again);
        assert_eq!(world.memory.calls(Verb::Exec), 1);
    }
}
