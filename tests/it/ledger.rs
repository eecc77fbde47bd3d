//! A person's word on the ledger, and the lease that waits for it.

use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use serde_json::{Value, json};

use crate::both;
use crate::harness::{BOOTSTRAP, World};

async fn lease(world: &World) -> Value {
    let body = json!({ "environment": "default", "holder": "run", "scope": { "s": "1" } });
    world.ask("POST", "/v1/leases", body).await.ok(201)
}

fn path(lease: &Value) -> String {
    format!("/v1/leases/{}", lease["id"].as_str().unwrap())
}

fn on_instance(lease: &Value, verb: &str) -> String {
    format!("/v1/instances/{}/{verb}", lease["instance_id"].as_str().unwrap())
}

async fn events(world: &World, lease: &Value) -> Vec<String> {
    let explained = world.ask("GET", &format!("/v1/leases/{}/explain", lease["id"].as_str().unwrap()), Value::Null).await.ok(200);
    let mut types: Vec<String> = explained["history"].as_array().unwrap().iter().map(|h| h["type"].as_str().unwrap().to_owned()).collect();
    let mut tx = world.berth.store.read().await.unwrap();
    let instance = lease["instance_id"].as_str().unwrap().parse().unwrap();
    types.extend(tx.history(world.caller.organization, instance, 50).await.unwrap().into_iter().map(|(type_, _, _)| type_));
    types
}

both! {
    async fn a_teardown_that_fails_is_told_retried_and_ends_its_lease(world) {
        let lease = lease(&world).await;
        let because = json!({ "reason": "tested" });
        world.ask("POST", &on_instance(&lease, "retry-cleanup"), because.clone()).await.refused(409, "in_use");
        world.ask("POST", &on_instance(&lease, "forget"), because.clone()).await.refused(409, "in_use");
        world.faults.always(Verb::Destroy, Fault::FailBefore(Kind::Indeterminate));
        let pending = world.ask("DELETE", &path(&lease), Value::Null).await.ok(202);
        assert_eq!(pending["status"], "pending_cleanup");
        let cleanup = &pending["cleanup"];
        assert_eq!((&cleanup["status"], &cleanup["ends_as"], &cleanup["attempts"]), (&json!("failed"), &json!("released"), &json!(1)));
        assert!(cleanup["next_attempt_at"].is_string() && cleanup["last_error_kind"] == "indeterminate", "{cleanup}");
        let again = world.ask("POST", &on_instance(&lease, "retry-cleanup"), because.clone()).await.ok(200);
        assert_eq!((&again["status"], &again["cleanup"]["attempts"]), (&json!("pending_cleanup"), &json!(2)));
        world.faults.clear();
        let gone = world.ask("POST", &on_instance(&lease, "retry-cleanup"), because.clone()).await.ok(200);
        assert_eq!(gone["status"], "destroyed");
        let ended = world.ask("GET", &path(&lease), Value::Null).await.ok(200);
        assert_eq!((&ended["status"], &ended["cleanup"]["status"]), (&json!("released"), &json!("succeeded")));
        world.ask("POST", &on_instance(&lease, "retry-cleanup"), because).await.ok(200);
        let told = events(&world, &lease).await;
        assert_eq!(told.iter().filter(|t| *t == "cleanup.retried").count(), 2, "{told:?}");
    }

    async fn a_forgotten_row_ends_its_lease_and_leaves_an_orphan_to_the_sweeper(world) {
        let lease = lease(&world).await;
        world.faults.always(Verb::Destroy, Fault::FailBefore(Kind::Indeterminate));
        world.ask("DELETE", &path(&lease), Value::Null).await.ok(202);
        let word = json!({ "reason": "the account is closed" });
        let forgotten = world.ask("POST", &on_instance(&lease, "forget"), word.clone()).await.ok(200);
        assert_eq!(forgotten["status"], "destroyed");
        assert_eq!(world.ask("GET", &path(&lease), Value::Null).await.ok(200)["status"], "released");
        world.ask("POST", &on_instance(&lease, "forget"), word).await.ok(200);
        assert!(events(&world, &lease).await.contains(&"instance.forgotten".to_owned()));
        assert_eq!(world.memory.inventory().len(), 1);
        world.faults.clear();
        world.advance(std::time::Duration::from_secs(300));
        assert_eq!(berth::ops::sweep::pass(&world.berth, false).await.unwrap().terminated, 1);
        assert!(world.memory.inventory().is_empty());
    }

    async fn a_marked_loss_is_a_loss_that_can_be_recovered(world) {
        let lease = lease(&world).await;
        world.ask("POST", &on_instance(&lease, "mark-lost"), json!({})).await.refused(422, "invalid_request");
        let lost = world.ask("POST", &on_instance(&lease, "mark-lost"), json!({ "reason": "it is gone" })).await.ok(200);
        assert_eq!((&lost["status"], &lost["retire_reason"]), (&json!("lost"), &json!("marked_lost")));
        world.ask("POST", &on_instance(&lease, "mark-lost"), json!({ "reason": "still" })).await.ok(200);
        let told = events(&world, &lease).await;
        assert_eq!(told.iter().filter(|t| *t == "instance.marked_lost").count(), 1, "{told:?}");
        let recover = format!("{}/recover", path(&lease));
        let recovered = world.ask_with(BOOTSTRAP, "POST", &recover, &[("berth-generation", "2")], json!({})).await;
        assert!(matches!(recovered.status, 200 | 201), "{}", recovered.body);
        assert_eq!((&recovered.body["generation"], &recovered.body["status"]), (&json!(2), &json!("active")));
    }

    async fn only_administrators_have_a_word(world) {
        let lease = lease(&world).await;
        let key = world.ask("POST", "/v1/api-keys", json!({ "name": "w", "scopes": ["write"] })).await.ok(201);
        let key = key["secret"].as_str().unwrap();
        for verb in ["retry-cleanup", "mark-lost", "forget"] {
            world.ask_as(key, "POST", &on_instance(&lease, verb), json!({ "reason": "x" })).await.refused(403, "forbidden");
        }
    }
}
