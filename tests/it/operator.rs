//! What an operator sees and steers: limits and rates, background, maintenance with reasons, draining, orphans.

use std::sync::Arc;
use std::time::Duration;

use berth::ops::{Settings, sweep};
use berth::provider::faults::{Fault, Faults, Verb};
use berth::provider::{Kind, OwnerTag, Provider, Spec};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::both;
use crate::harness::{World, quick, until};

/// An object of this deployment that no row names.
async fn orphan(world: &World) -> OwnerTag {
    let tag = OwnerTag {
        deployment: world.berth.deployment.id,
        organization: world.caller.organization,
        sandbox: Uuid::now_v7(),
        instance: Uuid::now_v7(),
        generation: 1,
    };
    world.memory.ensure(&Spec { config: json!({}).into(), workspace_path: None }, &tag).await.unwrap();
    tag
}

async fn lease(world: &World, holder: &str) -> Value {
    let body = json!({ "environment": "default", "holder": holder, "scope": { "s": holder }, "ttl_seconds": 60 });
    world.ask("POST", "/v1/leases", body).await.ok(201)
}

fn reasons(report: &Value) -> Vec<(String, String)> {
    let word = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    let mut told: Vec<_> = report["items"].as_array().unwrap().iter().map(|i| (word(i, "action"), word(i, "reason"))).collect();
    told.sort();
    told
}

both! {
    async fn limits_are_told_with_value_usage_and_source(world) {
        world.environment("small", |e| e.max_live_instances = Some(2)).await;
        let body = json!({ "environment": "small", "holder": "run", "scope": { "s": "1" } });
        world.ask("POST", "/v1/leases", body).await.ok(201);
        let told = world.ask("GET", "/v1/limits", Value::Null).await.ok(200);
        let find = |name: &str| told["items"].as_array().unwrap().iter().find(|l| l["name"] == name).unwrap().clone();
        let quota = find("environment.small.max_live_instances");
        assert_eq!((&quota["value"], &quota["usage"], &quota["source"]), (&json!(2), &json!(1), &json!("environment")));
        assert_eq!(find("live_leases")["usage"], 1);
        assert_eq!(find("requests_per_second")["source"], "default");
        let who = world.ask("GET", "/v1/whoami", Value::Null).await.ok(200);
        assert_eq!((&who["organization_name"], &who["name"]), (&json!("default"), &json!("bootstrap")));
    }

    async fn the_background_tells_what_it_did(world) {
        world.start_background();
        until("every task has run", async || {
            let told = world.ask("GET", "/v1/background", Value::Null).await.ok(200);
            let tasks = told["items"].as_array().unwrap();
            tasks.len() == 10 && tasks.iter().all(|t| t["runs"].as_u64() > Some(0))
        }).await;
        let told = world.ask("GET", "/v1/background", Value::Null).await.ok(200);
        let sweeper = told["items"].as_array().unwrap().iter().find(|t| t["name"] == "orphan_sweeper").unwrap();
        assert_eq!((&sweeper["report"]["orphaned"], &sweeper["last_error_code"]), (&json!(0), &Value::Null));
        assert!(sweeper["last_run_at"].as_str() < sweeper["next_run_at"].as_str());
        world.berth.work.stop(Duration::from_secs(5)).await;
    }

    async fn an_orphan_is_ended_after_its_grace_and_an_owned_object_never(world) {
        let own = lease(&world, "run").await;
        let tag = orphan(&world).await;
        let young = world.ask("POST", "/v1/maintenance/sweep", json!({ "dry_run": false })).await.ok(200);
        assert_eq!(reasons(&young), [("skipped".to_owned(), "younger_than_the_grace".to_owned())]);
        world.advance(Duration::from_secs(121));
        let dry = world.ask("POST", "/v1/maintenance/sweep", json!({})).await.ok(200);
        assert_eq!((&dry["dry_run"], reasons(&dry)), (&json!(true), vec![("would_destroy".to_owned(), "no_row_names_it".to_owned())]));
        assert_eq!(world.memory.inventory().len(), 2);
        let report = sweep::pass(&world.berth, false).await.unwrap();
        assert_eq!((report.seen, report.owned, report.orphaned, report.terminated), (2, 1, 1, 1));
        let left: Vec<_> = world.memory.inventory().into_iter().map(|(_, tag, _)| tag.instance.to_string()).collect();
        assert_eq!(left, [own["instance_id"].as_str().unwrap()]);
        let told = world.berth.store.read().await.unwrap().history(world.caller.organization, tag.instance, 5).await.unwrap();
        assert_eq!(told[0].0, "orphan.destroyed");
    }

    async fn whatever_cannot_be_told_is_left_alone(world) {
        orphan(&world).await;
        world.advance(Duration::from_secs(121));
        world.faults.next(Verb::List, Fault::FailBefore(Kind::Transient));
        let unknown = sweep::pass(&world.berth, false).await.unwrap();
        assert_eq!((unknown.errors, unknown.items[0].reason), (1, "inventory_unknown"));
        world.faults.next(Verb::Destroy, Fault::FailBefore(Kind::Transient));
        let failed = sweep::pass(&world.berth, false).await.unwrap();
        assert_eq!((failed.errors, failed.terminated, failed.items[0].reason), (1, 0, "the_provider_failed"));
        // Another deployment's object at the same provider is none of ours.
        let tag = OwnerTag { deployment: Uuid::now_v7(), ..orphan(&world).await };
        world.memory.ensure(&Spec { config: json!({}).into(), workspace_path: None }, &tag).await.unwrap();
        world.advance(Duration::from_secs(300));
        assert_eq!(sweep::pass(&world.berth, false).await.unwrap().terminated, 2);
        assert_eq!(world.memory.inventory().len(), 1);
    }

    async fn one_pass_ends_at_most_fifty(world) {
        for _ in 0..=sweep::MOST_KILLS {
            orphan(&world).await;
        }
        world.advance(Duration::from_secs(121));
        let report = sweep::pass(&world.berth, false).await.unwrap();
        assert_eq!((report.orphaned, report.terminated), (51, 50));
        assert_eq!(sweep::pass(&world.berth, false).await.unwrap().terminated, 1);
    }

    async fn a_reap_says_what_it_would_begin_and_then_begins_it(world) {
        let lease = lease(&world, "run").await;
        world.advance(Duration::from_secs(61));
        let expected = vec![("expire".to_owned(), "its time to live has passed".to_owned())];
        let dry = world.ask("POST", "/v1/maintenance/reap", json!({})).await.ok(200);
        assert_eq!((reasons(&dry), &dry["items"][0]["id"]), (expected.clone(), &lease["id"]));
        let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        assert_eq!(world.ask("GET", &path, Value::Null).await.ok(200)["status"], "active");
        let done = world.ask("POST", "/v1/maintenance/reap", json!({ "dry_run": false })).await.ok(200);
        assert_eq!(reasons(&done), expected);
        world.settle().await;
        assert_eq!(world.ask("GET", &path, Value::Null).await.ok(200)["status"], "expired");
    }

    async fn a_draining_deployment_takes_no_new_work_and_lets_go_of_what_it_has(world) {
        let first = lease(&world, "one").await;
        let second = lease(&world, "two").await;
        let path = |l: &Value| format!("/v1/leases/{}", l["id"].as_str().unwrap());
        let on = world.ask("POST", "/v1/maintenance/drain", json!({ "enabled": true, "reason": "moving" })).await.ok(200);
        assert_eq!((&on["enabled"], &on["reason"]), (&json!(true), &json!("moving")));
        let body = json!({ "environment": "default", "holder": "new", "scope": { "s": "9" } });
        let refused = world.ask("POST", "/v1/leases", body.clone()).await;
        assert!(!refused.header("retry-after").is_empty());
        assert_eq!(refused.refused(503, "draining")["reason"], "moving");
        world.ask("POST", "/v1/environments/default/probe", Value::Null).await.refused(503, "draining");
        // Another server of the deployment refuses it too.
        let other = world.another().await;
        let acquire = berth::ops::acquire::acquire(&other, &world.caller, crate::harness::want("new", Some("9"))).await;
        assert_eq!(crate::harness::code(acquire), berth::error::Code::Draining);
        world.ask("POST", &format!("{}/renew", path(&first)), json!({})).await.ok(200);
        world.ask("POST", &format!("{}/release", path(&first)), json!({})).await.ok(200);
        world.ask("DELETE", &path(&second), Value::Null).await.ok(204);
        let off = world.ask("POST", "/v1/maintenance/drain", json!({ "enabled": false, "reason": "moved" })).await.ok(200);
        assert_eq!((&off["enabled"], &off["since"]), (&json!(false), &Value::Null));
        world.ask("POST", "/v1/leases", body).await.ok(201);
    }

    async fn only_operators_steer_the_deployment(world) {
        let key = world.ask("POST", "/v1/api-keys", json!({ "name": "a", "scopes": ["admin"] })).await.ok(201);
        let key = key["secret"].as_str().unwrap();
        world.ask_as(key, "GET", "/v1/background", Value::Null).await.refused(403, "forbidden");
        for pass in ["reap", "sweep", "collect"] {
            world.ask_as(key, "POST", &format!("/v1/maintenance/{pass}"), json!({})).await.refused(403, "forbidden");
            world.ask("POST", &format!("/v1/maintenance/{pass}"), json!({})).await.ok(200);
        }
        let drain = json!({ "enabled": true, "reason": "x" });
        world.ask_as(key, "POST", "/v1/maintenance/drain", drain).await.refused(403, "forbidden");
    }
}

async fn slow_down(db: crate::harness::Db) {
    let memory = berth::provider::memory::Memory::new();
    let settings = Settings { rate_limit_per_second: 1, rate_limit_burst: 3, ..quick() };
    let world = World::over(db, settings, memory.clone(), Arc::new(Faults::new(Arc::new(memory)))).await;
    let lease = lease(&world, "run").await;
    let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
    // At once, so that a slow machine refills nothing between them.
    let asked = futures_util::future::join_all((0..40).map(|_| world.ask("GET", &path, Value::Null))).await;
    let refused = asked.into_iter().find(|said| said.status == 429).expect("forty at once are too many");
    assert!(!refused.header("retry-after").is_empty());
    refused.refused(429, "rate_limited");
    for _ in 0..5 {
        world.ask("POST", &format!("{path}/renew"), json!({})).await.ok(200);
        world.ask("POST", "/v1/leases/renew", json!({ "lease_ids": [lease["id"]] })).await.ok(200);
    }
    world.ask("POST", &format!("{path}/release"), json!({})).await.ok(200);
    world.ask("DELETE", &path, Value::Null).await.ok(204);
    // The lease's token has a bucket of its own.
    world.ask_as(lease["token"].as_str().unwrap(), "GET", &path, Value::Null).await.ok(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_credential_is_slowed_and_may_always_let_go_sqlite() {
    slow_down(crate::harness::Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_credential_is_slowed_and_may_always_let_go_postgres() {
    slow_down(crate::harness::Db::Postgres).await;
}
