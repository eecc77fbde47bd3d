//! The named points: one for each breath between a provider's call and the transaction that writes it down.

use reqwest::Method;
use serde_json::{Value, json};

use super::on_both;
use crate::harness::server::{Server, Site};
use crate::harness::until;

/// The server that comes after one that died, half a minute later.
async fn next_server(site: &Site, dead: Server) -> Server {
    dead.died().await;
    site.lapse_claims().await;
    site.serve().await
}

/// The same holder asks again and gets one lease on one instance.
async fn dies_while_acquiring(site: Site, point: &str) {
    let server = site.serve_until(point).await;
    assert!(Server::try_send(server.acquire("run", "s")).await.is_none(), "it died before it answered");
    let server = next_server(&site, server).await;
    let lease = Server::good(server.acquire("run", "s")).await;
    assert_eq!(lease["status"], "active", "{lease}");
    let leases = server.get("/v1/leases").await;
    assert_eq!(leases["items"].as_array().unwrap().len(), 1, "{leases}");
    assert_eq!(leases["items"][0]["id"], lease["id"]);
    let ran = Server::good(server.script(&lease, "echo here > f; cat f")).await;
    assert_eq!(ran["stdout"], "here\n");
    server.at_rest(&site).await;
    let ledger = server.ledger().await;
    assert_eq!(ledger.len(), 1, "made once: {ledger:?}");
    assert_eq!(site.inventory(), [ledger[0]["provider_ref"].as_str().unwrap()]);
    assert_eq!(server.file(&lease, "f").await.unwrap(), "here\n");
    assert_eq!(server.stop().await.code(), Some(0));
}

async fn checkpoints(server: &Server, lease: &Value) -> Vec<Value> {
    let path = format!("/v1/sandboxes/{}/checkpoints", lease["sandbox_id"].as_str().unwrap());
    server.get(&path).await["items"].as_array().unwrap().clone()
}

async fn sandbox(server: &Server, lease: &Value) -> Value {
    server.get(&format!("/v1/sandboxes/{}", lease["sandbox_id"].as_str().unwrap())).await
}

fn capture(server: &Server, lease: &Value) -> reqwest::RequestBuilder {
    server.inside(lease, Method::POST, "/checkpoints").json(&json!({ "kind": "portable_workspace" }))
}

on_both! {
    async fn after_the_intent_is_written(site) {
        dies_while_acquiring(site, "after_intent").await;
    }

    async fn after_the_instance_is_made(site) {
        dies_while_acquiring(site, "after_create").await;
    }

    async fn before_the_lease_is_active(site) {
        dies_while_acquiring(site, "before_activation").await;
    }

    async fn after_a_command_is_admitted_it_is_unknown_and_never_sent_again(site) {
        let server = site.serve_until("after_admit").await;
        let lease = Server::good(server.acquire("run", "s")).await;
        assert!(Server::try_send(server.script(&lease, "echo ran >> f")).await.is_none());
        let server = next_server(&site, server).await;
        let path = format!("/v1/leases/{}/execs", lease["id"].as_str().unwrap());
        until("the command is settled", async || server.get(&path).await["items"][0]["status"] == "unknown").await;
        assert_eq!(server.file(&lease, "f").await, None, "nobody repeats it");
        assert_eq!(sandbox(&server, &lease).await["dirty"], true, "an unknown command may have written");
        assert_eq!(Server::good(server.script(&lease, "echo again")).await["stdout"], "again\n");
    }

    async fn before_a_capture_is_published(site) {
        let server = site.serve_until("before_publish").await;
        let lease = Server::good(server.acquire("run", "s")).await;
        Server::good(server.put(&lease, "f", "precious")).await;
        assert!(Server::try_send(capture(&server, &lease)).await.is_none());
        let server = next_server(&site, server).await;
        until("the dead capture is given up", async || checkpoints(&server, &lease).await.iter().all(|c| c["status"] == "failed")).await;
        assert_eq!(sandbox(&server, &lease).await["current_checkpoint"], Value::Null, "no half checkpoint is current");
        until("its bytes are gone", async || site.archives().is_empty()).await;
        let again = Server::good(capture(&server, &lease)).await;
        assert_eq!((&again["status"], &again["current"]), (&json!("attached"), &json!(true)), "{again}");
        assert_eq!(site.archives().len(), 1);
        assert_eq!(sandbox(&server, &lease).await["dirty"], false);
    }

    async fn before_a_released_instance_rests(site) {
        let server = site.serve_until("before_rest").await;
        let lease = Server::good(server.acquire("run", "s")).await;
        Server::good(server.put(&lease, "f", "precious")).await;
        let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        let release = server.ask(Method::POST, &format!("{path}/release")).json(&json!({ "outcome": "succeeded" }));
        assert!(Server::try_send(release).await.is_none());
        let server = next_server(&site, server).await;
        until("the release is carried out", async || server.get(&path).await["status"] == "released").await;
        server.at_rest(&site).await;
        assert_eq!(server.ledger().await[0]["status"], "stopped");
        let saved = checkpoints(&server, &lease).await;
        assert_eq!(saved.len(), 1, "what was saved is not saved again: {saved:?}");
        assert_eq!(saved[0]["current"], true);
        let next = Server::good(server.acquire("next", "s")).await;
        assert_eq!(next["acquisition"]["outcome"], "resumed");
        assert_eq!(server.file(&next, "f").await.unwrap(), "precious");
    }

    async fn before_a_restore_switches(site) {
        let server = site.serve_until("before_switch").await;
        let lease = Server::good(server.acquire("run", "s")).await;
        Server::good(server.put(&lease, "f", "one")).await;
        let first = Server::good(capture(&server, &lease)).await;
        Server::good(server.put(&lease, "f", "two")).await;
        let wanted = json!({ "checkpoint_id": first["id"], "unsaved_changes": "discard" });
        assert!(Server::try_send(server.inside(&lease, Method::POST, "/restore").json(&wanted)).await.is_none());
        assert_eq!(site.inventory().len(), 2, "the successor was made");
        let server = next_server(&site, server).await;
        until("the successor is gone", async || site.inventory().len() == 1).await;
        server.at_rest(&site).await;
        let now = server.get(&format!("/v1/leases/{}", lease["id"].as_str().unwrap())).await;
        assert_eq!((&now["status"], &now["generation"], &now["instance_id"]), (&json!("active"), &json!(1), &lease["instance_id"]));
        assert_eq!(server.file(&lease, "f").await.unwrap(), "two", "everything is as it was");
        let restored = Server::good(server.inside(&lease, Method::POST, "/restore").json(&wanted)).await;
        assert_eq!(restored["acquisition"]["outcome"], "restored");
        assert_eq!(server.file(&restored, "f").await.unwrap(), "one");
    }
}
