//! Environments: changed by version, archived only when nothing lives, probed through the ledger.

use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use serde_json::{Value, json};

use crate::both;
use crate::harness::BOOTSTRAP;

both! {
    async fn a_patch_is_merged_checked_whole_and_is_the_next_version(world) {
        let made = world.ask("POST", "/v1/environments", json!({ "name": "e", "provider": "memory", "config": { "label": "a" }, "ttl_seconds": 60,
            "checkpoint_policy": { "keep_last": 3, "on_release": "none" } })).await;
        assert_eq!(made.header("etag"), "\"1\"");
        let read = world.ask("GET", "/v1/environments/e", Value::Null).await;
        assert_eq!(read.header("etag"), "\"1\"");
        let change = json!({ "ttl_seconds": 90, "config": { "label": null }, "checkpoint_policy": { "on_release": "auto" } });
        let merge = [("content-type", "application/merge-patch+json"), ("if-match", "\"1\"")];
        let changed = world.ask_with(BOOTSTRAP, "PATCH", "/v1/environments/e", &merge, change.clone()).await;
        assert_eq!(changed.header("etag"), "\"2\"");
        let changed = changed.ok(200);
        assert_eq!((&changed["version"], &changed["ttl_seconds"], &changed["config"]), (&json!(2), &json!(90), &json!({})));
        assert_eq!((&changed["checkpoint_policy"]["keep_last"], &changed["checkpoint_policy"]["on_release"]), (&json!(3), &json!("auto")));
        let stale = world.ask_with(BOOTSTRAP, "PATCH", "/v1/environments/e", &merge, change).await.refused(412, "precondition_failed");
        assert_eq!(stale["current"], 2);
        let back = world.ask("PATCH", "/v1/environments/e", json!({ "ttl_seconds": null })).await.ok(200);
        assert_eq!((&back["version"], &back["ttl_seconds"]), (&json!(3), &json!(3600)));
        world.ask_with(BOOTSTRAP, "PATCH", "/v1/environments/e", &[("content-type", "text/plain")], json!({})).await
            .refused(415, "unsupported_media_type");
    }

    async fn everything_wrong_with_a_patch_is_told_at_once(world) {
        let wrong = json!({ "name": "", "ttl_seconds": 10_000_000, "nmae": 1, "provider": "none-such", "version": 9 });
        let problem = world.ask("PATCH", "/v1/environments/default", wrong).await.refused(422, "invalid_request");
        let mut pointers: Vec<_> = problem["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
        pointers.sort_unstable();
        assert_eq!(pointers, ["/name", "/nmae", "/provider", "/ttl_seconds", "/version"]);
        world.ask("PATCH", "/v1/environments/default", json!({ "config": { "label": 7 } })).await.refused(422, "config_invalid");
        world.ask("PATCH", "/v1/environments/default", json!({ "config": null })).await.refused(422, "invalid_request");
        world.ask("POST", "/v1/environments", json!({ "name": "e", "provider": "memory", "config": {} })).await.ok(201);
        world.ask("PATCH", "/v1/environments/e", json!({ "name": "default" })).await.refused(409, "name_taken");
        assert_eq!(world.ask("GET", "/v1/environments/default", Value::Null).await.ok(200)["version"], 1);
    }

    async fn an_environment_with_life_is_not_archived_unless_it_is_destroyed_first(world) {
        world.environment("e", |_| {}).await;
        let acquire = |holder: &str| json!({ "environment": "e", "holder": holder, "scope": { "s": holder } });
        let id = world.ask("GET", "/v1/environments/e", Value::Null).await.ok(200)["id"].as_str().unwrap().to_owned();
        let live = world.ask("POST", "/v1/leases", acquire("live")).await.ok(201);
        let stopped = world.ask("POST", "/v1/leases", acquire("stopped")).await.ok(201);
        let lease = |l: &Value| format!("/v1/leases/{}", l["id"].as_str().unwrap());
        let exec = format!("{}/exec", lease(&stopped));
        world.ask_with(BOOTSTRAP, "POST", &exec, &[("berth-generation", "1")], json!({ "script": "echo x" })).await.ok(200);
        world.ask("POST", &format!("{}/release", lease(&stopped)), json!({})).await.ok(200);
        let refused = world.ask("DELETE", "/v1/environments/e", Value::Null).await.refused(409, "environment_in_use");
        assert_eq!((&refused["live_instances"], &refused["live_leases"]), (&json!(2), &json!(1)));
        world.ask("DELETE", "/v1/environments/e?destroy=true", Value::Null).await.ok(204);
        world.ask("DELETE", &format!("/v1/environments/{id}"), Value::Null).await.ok(204);
        world.settle().await;
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.ask("GET", &lease(&live), Value::Null).await.ok(200)["status"], "released");
        let by_id = json!({ "environment": id, "holder": "h", "scope": { "s": "late" } });
        world.ask("POST", "/v1/leases", by_id).await.refused(409, "environment_archived");
        world.ask("PATCH", &format!("/v1/environments/{id}"), json!({ "ttl_seconds": 9 })).await.refused(409, "environment_archived");
        let kept = format!("/v1/sandboxes/{}/checkpoints/current", stopped["sandbox_id"].as_str().unwrap());
        world.ask("GET", &kept, Value::Null).await.ok(200);
        world.environment("e", |_| {}).await;
    }

    async fn unsaved_work_that_cannot_be_saved_keeps_its_environment(world) {
        world.environment("e", |_| {}).await;
        let lease = world.ask("POST", "/v1/leases", json!({ "environment": "e", "holder": "h", "scope": { "s": "1" } })).await.ok(201);
        let exec = format!("/v1/leases/{}/exec", lease["id"].as_str().unwrap());
        world.ask_with(BOOTSTRAP, "POST", &exec, &[("berth-generation", "1")], json!({ "script": "echo x" })).await.ok(200);
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Refused));
        world.ask("DELETE", "/v1/environments/e?destroy=true", Value::Null).await.refused(409, "environment_in_use");
        assert_eq!(world.memory.inventory().len(), 1);
        world.faults.clear();
        world.ask("DELETE", "/v1/environments/e?destroy=true", Value::Null).await.ok(204);
    }

    async fn a_probe_makes_runs_and_destroys(world) {
        let probed = world.ask("POST", "/v1/environments/default/probe", Value::Null).await.ok(200);
        assert_eq!(probed["ok"], true, "{probed}");
        let names: Vec<_> = probed["steps"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["create", "run", "destroy"]);
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.ledger().await.len(), 1, "a probe is a row like any other");
        world.faults.always(Verb::Ensure, Fault::FailBefore(Kind::Refused));
        let failed = world.ask("POST", "/v1/environments/default/probe", Value::Null).await.ok(200);
        assert_eq!((&failed["ok"], &failed["steps"][0]["ok"]), (&json!(false), &json!(false)));
        assert_eq!(failed["steps"][0]["problem"]["code"], "provider_unavailable");
        world.settle().await;
        world.assert_ledger_is_inventory().await;
    }
}
