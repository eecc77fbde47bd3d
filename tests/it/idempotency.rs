//! A request that is sent again under its key is answered with what its first call made, and never done twice.

use std::time::Duration;

use berth::ops::idempotency::{self, KeyOf, Turn};
use berth::provider::faults::Verb;
use futures_util::future::join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::both;
use crate::harness::{Db, World, until};

const KEY: (&str, &str) = ("idempotency-key", "k-1");

fn hash(body: &Value) -> String {
    hex::encode(Sha256::digest(body.to_string()))
}

/// Begins a request and dies: its claim is given back, as when a client leaves or a server is stopped.
async fn dies_at_once(world: &World, path: &str, body: &Value) -> uuid::Uuid {
    let key = world.berth.store.read().await.unwrap().keys(world.caller.organization, None, 10).await.unwrap();
    let credential = key.iter().find(|k| k.name == "bootstrap").unwrap().id;
    let of = KeyOf { organization: world.caller.organization, credential, method: "POST", path, key: KEY.1 };
    let Turn::Run(claim, id) = idempotency::begin(&world.berth, &of, &hash(body)).await.unwrap() else { panic!("a fresh key") };
    drop(world.berth.work.hold(claim));
    id
}

both! {
    async fn a_replay_is_the_same_lease_with_the_same_token(world) {
        let wire = world.serve().await;
        let body = json!({ "environment": "default", "holder": "h", "scope": { "session": "s" } });
        let first = wire.post("/v1/leases", &[KEY], &body).await;
        let again = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((first.status, again.status), (201, 201), "{first:?} {again:?}");
        assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
        assert_eq!((first.id(), &first.json["token"]), (again.id(), &again.json["token"]));
        assert!(first.json["token"].is_string());
        let other = wire.post("/v1/leases", &[KEY], &json!({ "environment": "default", "holder": "other" })).await;
        assert_eq!((other.status, other.code()), (422, "idempotency_key_mismatch"));
        // The key belongs to its path and its credential: elsewhere it is another one.
        let path = format!("/v1/leases/{}/renew", first.id());
        let token = wire.with(first.json["token"].as_str().unwrap());
        for who in [&wire, &token] {
            let renewed = who.post(&path, &[KEY], &json!({ "ttl_seconds": 600 })).await;
            assert_eq!((renewed.status, renewed.header("idempotency-replayed")), (200, ""), "{renewed:?}");
        }
    }

    async fn a_replayed_token_of_a_former_holder_stays_fenced_off(world) {
        let wire = world.serve().await;
        let body = json!({ "environment": "default", "holder": "h", "scope": { "session": "s" } });
        let first = wire.post("/v1/leases", &[KEY], &body).await;
        let taken = json!({ "environment": "default", "holder": "h", "scope": { "session": "s" }, "on_same_holder": "take_over" });
        assert_eq!(wire.post("/v1/leases", &[], &taken).await.json["epoch"], 2);
        let again = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((&again.json["epoch"], &again.json["token"]), (&json!(2), &first.json["token"]));
        let zombie = wire.with(again.json["token"].as_str().unwrap());
        let exec = zombie.post(&format!("/v1/leases/{}/exec", first.id()), &[], &json!({ "command": "true" })).await;
        assert_eq!(exec.code(), "lease_taken_over");
    }

    async fn twelve_at_once_with_one_key_make_one_lease(world) {
        let wire = world.serve().await;
        let body = json!({ "environment": "default", "holder": "storm", "policy": "ephemeral" });
        let all = join_all((0..12).map(|_| wire.post("/v1/leases", &[KEY], &body))).await;
        let first = all.iter().find(|a| a.status == 201).expect("one of them").id().to_owned();
        for answer in &all {
            match answer.status {
                200..=202 => assert_eq!(answer.id(), first),
                _ => assert_eq!((answer.status, answer.code()), (409, "idempotency_key_in_use")),
            }
        }
        assert_eq!(world.memory.inventory().len(), 1);
    }

    async fn a_lease_whose_call_died_is_made_under_its_id_or_found_there(world) {
        let wire = world.serve().await;
        let body = json!({ "environment": "default", "holder": "h", "scope": { "session": "s" } });
        let id = dies_at_once(&world, "/v1/leases", &body).await;
        let made = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((made.status, made.id(), made.header("idempotency-replayed")), (201, id.to_string().as_str(), ""), "{made:?}");
        // As if that call had died after its lease was made.
        unfinish(&world).await;
        let found = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((found.status, found.id(), found.header("idempotency-replayed")), (201, made.id(), "true"), "{found:?}");
        assert_eq!(found.json["token"], made.json["token"]);
        assert_eq!(world.memory.inventory().len(), 1);
    }

    async fn a_rotation_whose_call_died_makes_one_key(world) {
        let wire = world.serve().await;
        let old = wire.post("/v1/api-keys", &[], &json!({ "name": "old", "scopes": ["read"] })).await;
        let (path, body) = (format!("/v1/api-keys/{}/rotate", old.id()), json!({}));
        let id = dies_at_once(&world, &path, &body).await;
        let made = wire.post(&path, &[KEY], &body).await;
        assert_eq!((made.status, made.id()), (201, id.to_string().as_str()), "{made:?}");
        unfinish(&world).await;
        let found = wire.post(&path, &[KEY], &body).await;
        assert_eq!((found.status, found.id(), &found.json["secret"]), (201, made.id(), &Value::Null), "{found:?}");
        assert_eq!(world.text("SELECT CAST(count(*) AS TEXT) FROM api_key WHERE name = 'old'").await, "2");
    }

    async fn another_server_goes_on_when_a_claim_has_lapsed(world) {
        let body = json!({ "environment": "default", "holder": "h", "policy": "ephemeral" });
        let key = world.berth.store.read().await.unwrap().keys(world.caller.organization, None, 10).await.unwrap();
        let of = KeyOf { organization: world.caller.organization, credential: key[0].id, method: "POST", path: "/v1/leases", key: KEY.1 };
        let Turn::Run(_, id) = idempotency::begin(&world.berth, &of, &hash(&body)).await.unwrap() else { panic!("a fresh key") };
        let wire = world.serve().await;
        let busy = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((busy.code(), busy.header("retry-after")), ("idempotency_key_in_use", "1"));
        world.advance(Duration::from_secs(31));
        let made = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!((made.status, made.id()), (201, id.to_string().as_str()), "{made:?}");
    }

    async fn a_command_is_never_run_twice(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let path = format!("/v1/leases/{}/exec", lease.lease.id);
        let (body, generation) = (json!({ "command": "echo", "args": ["hi"] }), ("berth-generation", "1"));
        let first = wire.post(&path, &[KEY, generation], &body).await;
        let again = wire.post(&path, &[KEY, generation], &body).await;
        assert_eq!((first.status, again.status, again.id()), (200, 200, first.id()));
        assert_eq!((&again.json["stdout"], again.header("idempotency-replayed")), (&json!("hi\n"), "true"));
        assert_eq!(world.memory.calls(Verb::Exec), 1);
        // Its call died after it was settled: replayed. Had its end never been known: said so, for good.
        unfinish(&world).await;
        assert_eq!(wire.post(&path, &[KEY, generation], &body).await.id(), first.id());
        unfinish(&world).await;
        world.execute("UPDATE operation SET status = 'unknown'").await;
        for _ in 0..2 {
            let unknown = wire.post(&path, &[KEY, generation], &body).await;
            assert_eq!((unknown.status, unknown.code()), (409, "operation_unknown"), "{unknown:?}");
        }
        assert_eq!(world.memory.calls(Verb::Exec), 1);
    }

    async fn a_client_that_left_finds_its_command_where_it_ended(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let path = format!("/v1/leases/{}/exec", lease.lease.id);
        let body = json!({ "command": "sleep", "args": ["30"] });
        let request = wire.ask("POST", &path).header(KEY.0, KEY.1).header("berth-generation", "1").json(&body);
        let left = tokio::task::spawn(request.send());
        until("the command runs", async || world.memory.calls(Verb::Exec) > 0).await;
        left.abort();
        until("it is dead", async || world.berth.store.read().await.unwrap().running_operations(lease.lease.sandbox_id).await.unwrap().is_empty()).await;
        let again = wire.post(&path, &[KEY, ("berth-generation", "1")], &body).await;
        assert_eq!((again.status, &again.json["status"]), (200, &json!("cancelled")), "{again:?}");
        assert_eq!(world.memory.calls(Verb::Exec), 1);
    }

    async fn a_refusal_leaves_the_key_free(world) {
        let wire = world.serve().await;
        let lease = world.acquire("first", "s").await.unwrap();
        let body = json!({ "environment": "default", "holder": "second", "scope": { "session": "s" }, "wait_seconds": 0 });
        assert_eq!(wire.post("/v1/leases", &[KEY], &body).await.code(), "lease_conflict");
        world.release(&lease).await.unwrap();
        assert_eq!(wire.post("/v1/leases", &[KEY], &body).await.status, 201);
    }

    async fn every_kind_of_answer_is_replayed_and_no_secret_is_kept(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        world.put(&lease, "a", "1").await.unwrap();
        let (id, sandbox) = (lease.lease.id, lease.lease.sandbox_id);
        let checkpoint = wire.post(&format!("/v1/leases/{id}/checkpoints"), &[("berth-generation", "1")], &json!({})).await;
        let turned = wire.post("/v1/api-keys", &[], &json!({ "name": "turned", "scopes": ["read"] })).await;
        let requests = [
            (format!("/v1/api-keys/{}/rotate", turned.id()), json!({})),
            ("/v1/leases/renew".to_owned(), json!({ "lease_ids": [id] })),
            ("/v1/leases/release".to_owned(), json!({ "holder": "nobody" })),
            ("/v1/sandboxes/destroy".to_owned(), json!({ "sandbox_ids": [sandbox] })),
            ("/v1/api-keys".to_owned(), json!({ "name": "k", "scopes": ["read"] })),
            ("/v1/organizations".to_owned(), json!({ "name": "o" })),
            ("/v1/environments".to_owned(), json!({ "name": "e", "provider": "memory", "config": {} })),
            ("/v1/sandboxes".to_owned(), json!({ "environment": "default", "scope": { "session": "t" } })),
            (format!("/v1/leases/{id}/files/mkdir"), json!({ "path": "d" })),
            (format!("/v1/leases/{id}/files/move"), json!({ "from": "a", "to": "b" })),
            (format!("/v1/leases/{id}/checkpoints"), json!({})),
            (format!("/v1/leases/{id}/recover"), json!({})),
            (format!("/v1/sandboxes/{sandbox}/checkpoints/{}/attach", checkpoint.id()), json!({ "generation": 1, "move_back": true, "lease_id": id })),
            (format!("/v1/sandboxes/{sandbox}/collect"), json!({ "before": "2020-01-01T00:00:00Z", "limit": 1 })),
            (format!("/v1/leases/{id}/release"), json!({})),
        ];
        for (path, body) in requests {
            let first = wire.post(&path, &[KEY, ("berth-generation", "1")], &body).await;
            let again = wire.post(&path, &[KEY, ("berth-generation", "1")], &body).await;
            assert!(first.status < 300, "{path}: {first:?}");
            assert_eq!((again.status, again.header("idempotency-replayed")), (first.status, "true"), "{path}: {again:?}");
            if path.starts_with("/v1/api-keys") {
                assert!(first.json["secret"].is_string() && again.json["secret"].is_null());
                let known = world.text("SELECT coalesce(string_agg(CAST(answer AS TEXT), ''), '') FROM idempotency").await;
                assert!(!known.contains(first.json["secret"].as_str().unwrap()));
            }
            assert_eq!(again.json["items"].as_array().map(Vec::len), first.json["items"].as_array().map(Vec::len), "{path}");
            let what = |got: &Value| ["id", "workspace_seq", "collected"].map(|name| got[name].clone());
            assert_eq!(what(&again.json), what(&first.json), "{path}");
        }
    }

    async fn after_a_day_a_key_is_forgotten(world) {
        let wire = world.serve().await;
        let body = json!({ "environment": "default", "holder": "h", "policy": "ephemeral" });
        let first = wire.post("/v1/leases", &[KEY], &body).await;
        world.advance(Duration::from_secs(24 * 3600 + 1));
        berth::ops::drive::forget_old(&world.berth).await.unwrap();
        assert_eq!(world.text("SELECT CAST(count(*) AS TEXT) FROM idempotency").await, "0");
        let second = wire.post("/v1/leases", &[KEY], &body).await;
        assert_eq!(second.status, 201);
        assert_ne!(second.id(), first.id());
    }
}

/// As if the calls had died before they wrote down how they ended.
async fn unfinish(world: &World) {
    assert!(matches!(world.db, Db::Sqlite | Db::Postgres));
    world.execute("UPDATE idempotency SET http_status = NULL, finished_at = NULL, resource_kind = NULL").await;
}
