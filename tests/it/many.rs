//! Sandboxes deleted, destroyed by scope, and leases treated many at once: each on its own, and never what a live lease holds.

use berth::ops;
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use serde_json::{Value, json};

use crate::both;
use crate::harness::{BOOTSTRAP, World};

async fn lease(world: &World, holder: &str, scope: Value) -> Value {
    world.ask("POST", "/v1/leases", json!({ "environment": "default", "holder": holder, "scope": scope, "wait_seconds": 0 })).await.ok(201)
}

async fn write(world: &World, lease: &Value) {
    let path = format!("/v1/leases/{}/exec", id(lease));
    let generation = lease["generation"].to_string();
    world.ask_with(BOOTSTRAP, "POST", &path, &[("berth-generation", &generation)], json!({ "script": "echo x" })).await.ok(200);
}

fn id(thing: &Value) -> String {
    thing["id"].as_str().unwrap().to_owned()
}

both! {
    async fn a_deleted_sandbox_is_gone_with_its_work_and_its_scope_is_free(world) {
        let first = lease(&world, "run", json!({ "s": "1" })).await;
        let path = format!("/v1/sandboxes/{}", first["sandbox_id"].as_str().unwrap());
        write(&world, &first).await;
        world.ask("DELETE", &path, Value::Null).await.refused(409, "sandbox_in_use");
        world.ask("POST", &format!("/v1/leases/{}/release", id(&first)), json!({})).await.ok(200);
        let checkpoint = world.ask("GET", &format!("{path}/checkpoints/current"), Value::Null).await.ok(200);
        world.ask("DELETE", &path, Value::Null).await.ok(204);
        for gone in [path.clone(), format!("{path}/explain"), format!("{path}/checkpoints"), format!("{path}/checkpoints/{}", id(&checkpoint))] {
            world.ask("GET", &gone, Value::Null).await.refused(404, "not_found");
        }
        world.ask("DELETE", &path, Value::Null).await.refused(404, "not_found");
        assert_eq!(world.ask("GET", "/v1/sandboxes", Value::Null).await.ok(200)["items"], json!([]));
        world.settle().await;
        assert!(world.memory.inventory().is_empty());
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 1);
        // The history of its lease and the ledger stay.
        assert_eq!(world.ask("GET", &format!("/v1/leases/{}", id(&first)), Value::Null).await.ok(200)["scope"], json!({ "s": "1" }));
        assert_eq!(world.ledger().await.len(), 1);
        let next = lease(&world, "run", json!({ "s": "1" })).await;
        assert_ne!(next["sandbox_id"], first["sandbox_id"]);
        assert_eq!(next["acquisition"]["outcome"], "created");
    }

    async fn a_scoped_destroy_ends_what_nobody_holds(world) {
        let held = lease(&world, "held", json!({ "team": "a", "s": "1" })).await;
        for (holder, scope) in [("r1", json!({ "team": "a", "s": "2" })), ("r2", json!({ "team": "b", "s": "3" }))] {
            let lease = lease(&world, holder, scope).await;
            write(&world, &lease).await;
            world.ask("POST", &format!("/v1/leases/{}/release", id(&lease)), json!({})).await.ok(200);
        }
        world.ask("POST", "/v1/sandboxes/destroy", json!({})).await.refused(422, "invalid_request");
        let team = json!({ "scope": { "team": "a" }, "environment": "default" });
        let dry = world.ask("POST", "/v1/sandboxes/destroy", json!({ "scope": { "team": "a" }, "dry_run": true })).await.ok(200);
        assert_eq!((&dry["destroyed"], &dry["skipped_live"]), (&json!(1), &json!(1)));
        assert_eq!(world.memory.inventory().len(), 3, "a dry run changes nothing");
        let done = world.ask("POST", "/v1/sandboxes/destroy", team.clone()).await.ok(200);
        assert_eq!((&done["destroyed"], &done["failed"], &done["skipped_live"]), (&json!(1), &json!(0), &json!(1)), "{done}");
        let skipped = done["items"].as_array().unwrap().iter().find(|i| i["status"] == "skipped_live").unwrap();
        assert_eq!(skipped["sandbox_id"], held["sandbox_id"]);
        assert_eq!(world.memory.inventory().len(), 2);
        let unknown = json!({ "sandbox_ids": ["0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e02"] });
        let none = world.ask("POST", "/v1/sandboxes/destroy", unknown).await.ok(200);
        assert_eq!((&none["failed"], &none["items"][0]["problem"]["code"]), (&json!(1), &json!("not_found")));
    }

    async fn a_scoped_destroy_keeps_unsaved_work_unless_it_may_be_lost(world) {
        let one = lease(&world, "run", json!({ "s": "1" })).await;
        write(&world, &one).await;
        world.ask("POST", &format!("/v1/leases/{}/release", id(&one)), json!({ "disposition": "keep_running", "checkpoint": "none" })).await.ok(200);
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Refused));
        let ids = json!({ "sandbox_ids": [one["sandbox_id"]] });
        let kept = world.ask("POST", "/v1/sandboxes/destroy", ids).await.ok(200);
        assert_eq!((&kept["failed"], &kept["items"][0]["problem"]["code"]), (&json!(1), &json!("capture_failed")), "{kept}");
        let lost = json!({ "sandbox_ids": [one["sandbox_id"]], "discard_workspace": true });
        assert_eq!(world.ask("POST", "/v1/sandboxes/destroy", lost).await.ok(200)["destroyed"], 1);
        assert!(world.memory.inventory().is_empty());
    }

    async fn all_leases_of_a_holder_are_released_and_one_failure_stops_nothing(world) {
        let mut leases = Vec::new();
        for s in ["1", "2", "3"] {
            leases.push(lease(&world, "run", json!({ "s": s })).await);
        }
        let other = lease(&world, "other", json!({ "s": "4" })).await;
        write(&world, &leases[1]).await;
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Refused));
        let body = json!({ "holder": "run", "outcome": "succeeded" });
        let told = world.ask("POST", "/v1/leases/release", body.clone()).await.ok(200);
        let of = |id: &Value| told["items"].as_array().unwrap().iter().find(|i| i["lease_id"] == *id).unwrap().clone();
        assert_eq!(of(&leases[0]["id"])["status"], "released");
        assert_eq!(of(&leases[1]["id"])["problem"]["code"], "capture_failed");
        assert_eq!(of(&leases[2]["id"])["status"], "released");
        world.faults.clear();
        let rest = world.ask("POST", "/v1/leases/release", body).await.ok(200);
        assert_eq!(rest["items"].as_array().unwrap().len(), 1);
        assert_eq!(world.ask("GET", &format!("/v1/leases/{}", id(&other)), Value::Null).await.ok(200)["status"], "active");
    }

    async fn many_leases_are_renewed_in_one_call(world) {
        let one = lease(&world, "a", json!({ "s": "1" })).await;
        let two = lease(&world, "b", json!({ "s": "2" })).await;
        world.ask("DELETE", &format!("/v1/leases/{}", id(&two)), Value::Null).await.ok(204);
        world.advance(std::time::Duration::from_secs(60));
        let unknown = "0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e02";
        let told = world.ask("POST", "/v1/leases/renew", json!({ "lease_ids": [one["id"], two["id"], unknown] })).await.ok(200);
        let items = told["items"].as_array().unwrap();
        assert_eq!(items[0]["lease_id"], one["id"]);
        assert!(items[0]["lease"]["expires_at"].as_str() > one["expires_at"].as_str());
        assert!(items[0]["lease"]["token"].is_string());
        assert_eq!((&items[1]["problem"]["code"], &items[2]["problem"]["code"]), (&json!("lease_not_active"), &json!("not_found")));
        let twice = json!({ "lease_ids": [unknown, unknown] });
        assert_eq!(world.ask("POST", "/v1/leases/renew", twice).await.refused(422, "invalid_request")["errors"][0]["pointer"], "/lease_ids/1");
        assert_eq!(world.ask("POST", "/v1/leases/renew", json!({ "lease_ids": [] })).await.status, 422);
    }
}
