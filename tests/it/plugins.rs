//! Plugins: registered with a handshake, leased from like any provider, believed only as far as their answers prove.

use std::time::Duration;

use berth::error::Code;
use berth::model::instance::Status;
use berth::ops::input::Acquire;
use berth::ops::view::LeaseView;
use berth::provider::Spec;
use berth::provider::conformance::files::nothing_of_an_older_grant;
use berth::provider::conformance::{Commands, Sandbox, Subject, tag};
use serde_json::{Value, json};

use crate::both;
use crate::harness::worker::{Lie, Worker};
use crate::harness::{World, code, command, until, want};

const VALUE: &str = "the-key-of-a-plugin-77e1";

pub async fn register(world: &World, worker: &Worker) -> Value {
    world.ask("POST", "/v1/plugins", json!({ "name": "boxes", "url": worker.url })).await.ok(201)
}

/// A registered worker and an environment `boxed` of it.
pub async fn boxed(world: &World, config: Value) -> Worker {
    let worker = Worker::start().await;
    register(world, &worker).await;
    make(world, config).await.ok(201);
    worker
}

async fn make(world: &World, driver_config: Value) -> crate::harness::Said {
    let config = json!({ "plugin": "boxes", "driver_key": "box", "driver_config": driver_config });
    world.ask("POST", "/v1/environments", json!({ "name": "boxed", "provider": "plugin", "config": config })).await
}

pub fn wish(holder: &str) -> Acquire {
    let mut wish = want(holder, Some("s"));
    "boxed".clone_into(&mut wish.environment);
    wish
}

pub async fn acquire(world: &World, holder: &str) -> LeaseView {
    world.acquire_with(wish(holder)).await.unwrap().0
}

pub fn reason(lease: &LeaseView) -> Option<&str> {
    lease.lease.acquisition.as_ref().and_then(|how| how.reason.as_deref())
}

both! {
    async fn a_plugin_is_registered_by_a_whole_handshake(world) {
        let worker = Worker::start().await;
        let plugin = register(&world, &worker).await;
        assert_eq!((plugin["generation"].as_str(), plugin["manifest"]["version"].as_str()), (Some("g-1"), Some("1.0.0")));
        assert!(plugin["methods"].as_array().unwrap().contains(&json!("environmentExecute")), "{plugin}");
        let again = json!({ "name": "boxes", "url": worker.url });
        world.ask("POST", "/v1/plugins", again).await.refused(409, "name_taken");
        let at = format!("/v1/plugins/{}", plugin["id"].as_str().unwrap());
        assert_eq!(world.ask("GET", &at, Value::Null).await.ok(200)["name"], "boxes");
        assert_eq!(world.ask("GET", "/v1/plugins", Value::Null).await.ok(200)["items"].as_array().unwrap().len(), 1);
        for (lie, method, step) in [
            (Lie::Result(json!({ "ok": false })), "initialize", "manifest"),
            (Lie::Result(json!({ "ok": true, "generation": "g-1", "supportedMethods": [], "manifest": {} })), "initialize", "manifest"),
            (Lie::Error(json!({ "code": -32_002, "message": VALUE })), "initialize", "initialize"),
            (Lie::Status(302), "initialize", "initialize"),
            (Lie::WrongId, "initialize", "initialize"),
        ] {
            worker.next(method, lie.clone());
            let told = world.ask("POST", "/v1/plugins", json!({ "name": "other", "url": worker.url })).await.refused(422, "config_invalid");
            assert_eq!(told["step"], step, "{lie:?}: {told}");
            assert!(!told.to_string().contains(VALUE), "{told}");
        }
        let demanding = json!({ "name": "other", "url": worker.url, "fencing": true });
        world.ask("POST", "/v1/plugins", demanding).await.refused(422, "config_invalid");
        let nobody = json!({ "name": "other", "url": "http://127.0.0.1:1" });
        assert_eq!(world.ask("POST", "/v1/plugins", nobody).await.refused(422, "config_invalid")["step"], "healthz");
        for url in ["http://10.0.0.1", "https://10.0.0.1", "https://169.254.169.254", "https://u:p@127.0.0.1", "ftp://127.0.0.1", "http://8.8.8.8"] {
            let told = world.ask("POST", "/v1/plugins", json!({ "name": "other", "url": url })).await.refused(422, "destination_not_allowed");
            assert_eq!(told["errors"][0]["pointer"], "/url");
        }
        assert_eq!(world.ask("DELETE", &at, Value::Null).await.status, 204);
        world.ask("GET", &at, Value::Null).await.refused(404, "not_found");
        register(&world, &worker).await;
    }

    async fn a_worker_is_shown_its_token_and_nobody_else(world) {
        let worker = Worker::start().await;
        worker.with_token(VALUE);
        let without = json!({ "name": "boxes", "url": worker.url });
        world.ask("POST", "/v1/plugins", without).await.refused(422, "config_invalid");
        let with = json!({ "name": "boxes", "url": worker.url, "token": { "secret_ref": { "name": "token" } } });
        let told = world.ask("POST", "/v1/plugins", with.clone()).await.refused(422, "secret_missing");
        assert_eq!(told["errors"][0]["pointer"], "/token");
        world.ask("PUT", "/v1/secrets/token", json!({ "value": VALUE })).await.ok(201);
        let plugin = world.ask("POST", "/v1/plugins", with).await.ok(201);
        assert_eq!(plugin["token"]["secret_ref"]["name"], "token");
        make(&world, json!({})).await.ok(201);
        let lease = acquire(&world, "h").await;
        world.ask("DELETE", "/v1/secrets/token", Value::Null).await.refused(409, "in_use");
        world.delete(&lease).await.unwrap();
        world.settle().await;
        assert!(worker.boxes().is_empty());
        assert!(!crate::harness::client::rows_of(&world.url).await.contains(VALUE));
    }

    async fn a_configuration_is_held_against_the_drivers_schema(world) {
        let worker = boxed(&world, json!({ "size": 2 })).await;
        for (config, place) in [
            (json!({ "plugin": "none", "driver_key": "box" }), "/config/plugin"),
            (json!({ "plugin": "boxes", "driver_key": "none" }), "/config/driver_key"),
            (json!({ "plugin": "boxes", "driver_key": "box", "driver_config": { "size": 0 } }), "/config/driver_config/size"),
            (json!({ "plugin": "boxes", "driver_key": "box", "driver_config": { "more": 1 } }), "/config/driver_config"),
            (json!({ "plugin": "boxes", "driver_key": "box", "driver_config": { "apiKey": "in plain sight" } }), "/config/driver_config/apiKey"),
            (json!({ "plugin": "boxes", "driver_key": "box", "driver_config": { "size": 13 } }), "/config/driver_config"),
            (json!({ "plugin": "boxes", "driver_key": "box", "more": 1 }), "/config"),
            (json!({ "plugin": "boxes" }), "/config"),
        ] {
            let wanted = json!({ "name": "other", "provider": "plugin", "config": config });
            let told = world.ask("POST", "/v1/environments", wanted).await.refused(422, "config_invalid");
            assert_eq!(told["errors"][0]["pointer"], place, "{told}");
        }
        let patch = json!({ "config": { "driver_config": { "size": 0 } } });
        world.ask("PATCH", "/v1/environments/boxed", patch).await.refused(422, "config_invalid");
        assert!(!worker.heard("environmentValidateConfig").is_empty());
    }

    async fn a_plugins_box_is_leased_like_any_other(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run-1").await;
        let ran = world.exec(&lease, &["sh", "-c", "echo out; echo err >&2; exit 3"]).await.unwrap();
        assert_eq!(ran.operation.exit_code, Some(3));
        assert_eq!((String::from_utf8_lossy(&ran.stdout.kept), String::from_utf8_lossy(&ran.stderr.kept)), ("out\n".into(), "err\n".into()));
        let mut input = command(lease.lease.generation, &["sh", "-c", "cat; echo $TONE"]);
        input.stdin = vec![0xff, b'x', b'\n'];
        input.env.insert("TONE".to_owned(), "blue".to_owned());
        let (ran, _) = berth::ops::exec::run(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert!(String::from_utf8_lossy(&ran.stdout.kept).ends_with("x\nblue\n"));
        let native = json!({ "kind": "provider_native" });
        let at = format!("/v1/leases/{}", lease.lease.id);
        let path = format!("{at}/checkpoints");
        let refused = world.ask_with(crate::harness::BOOTSTRAP, "POST", &path, &[("berth-generation", "1")], native).await;
        refused.refused(403, "capability_not_granted");
        // Files, one larger than a piece.
        let large = "0123456789abcdef".repeat(200_000);
        world.put(&lease, "dir/large", &large).await.unwrap();
        assert_eq!(world.get(&lease, "dir/large").await.unwrap(), large);
        world.put(&lease, "dir/empty", "").await.unwrap();
        assert_eq!(world.get(&lease, "dir/empty").await.unwrap(), "");
        assert_eq!(code(world.get(&lease, "dir/none").await), Code::FileNotFound);
        assert_eq!(code(world.get(&lease, "../box").await), Code::InvalidPath);
        world.exec(&lease, &["ln", "-s", "/etc", "out"]).await.unwrap();
        assert_eq!(code(world.get(&lease, "out/passwd").await), Code::InvalidPath);
        let listed = world.ask("GET", &format!("{at}/files/list?path=.&recursive=true"), Value::Null).await.ok(200);
        let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["dir", "dir/empty", "dir/large", "out"], "{listed}");
        assert_eq!(listed["items"][3]["link_target"], "/etc");
        let headers = [("berth-generation", "1")];
        for (method, path, body, status) in [
            ("POST", "/files/mkdir", json!({ "path": "a/b" }), 200),
            ("POST", "/files/move", json!({ "from": "dir/empty", "to": "a/moved" }), 200),
            ("DELETE", "/files?path=a", Value::Null, 409),
            ("DELETE", "/files?path=a&recursive=true", Value::Null, 200),
        ] {
            let said = world.ask_with(crate::harness::BOOTSTRAP, method, &format!("{at}{path}"), &headers, body).await;
            assert!(said.status == status || (status == 200 && said.status < 300), "{method} {path}: {}", said.body);
        }
        // Saved, stopped, and found again by the next run.
        world.release(&lease).await.unwrap();
        until("it is stopped", async || worker.boxes().iter().all(|(_, running)| !running)).await;
        let next = acquire(&world, "run-2").await;
        assert_eq!(next.lease.instance_id, lease.lease.instance_id);
        assert_eq!(world.get(&next, "dir/large").await.unwrap(), large);
        assert!(!world.sandbox(&next).await.sandbox.diverged);
        let granted = world.ask("GET", &format!("/v1/leases/{}/capabilities", next.lease.id), Value::Null).await.ok(200);
        let of = |key: &str| granted["items"].as_array().unwrap().iter().find(|one| one["key"] == key).unwrap().clone();
        assert_eq!(of("reusable_leases")["granted"], true);
        assert_eq!((of("native_sync_in")["granted"].as_bool(), of("native_sync_in")["reason"].is_string()), (Some(false), true));
        world.delete(&next).await.unwrap();
        world.settle().await;
        assert!(worker.boxes().is_empty());
    }

    async fn what_is_sent_under_an_older_grant_changes_nothing(world) {
        let _worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run").await;
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        let provider = world.berth.provider_of(&row).await.unwrap();
        let spec = Spec { config: json!({}).into(), workspace_path: None };
        let subject = Subject { provider: &*provider, spec: &spec, commands: Commands::Shell };
        let (name, workspace) = (row.provider_ref.clone().unwrap(), row.workspace_path.clone().unwrap());
        nothing_of_an_older_grant(&Sandbox { subject, name, tag: tag(), workspace }).await;
    }

    async fn every_call_says_whose_it_is_by_the_row_alone(world) {
        world.ask("PUT", "/v1/secrets/key", json!({ "value": VALUE })).await.ok(201);
        let worker = boxed(&world, json!({ "apiKey": { "secret_ref": { "name": "key" } }, "region": "eu" })).await;
        let holder = uuid::Uuid::now_v7().to_string();
        let lease = acquire(&world, &holder).await;
        world.exec(&lease, &["true"]).await.unwrap();
        let heard = &worker.heard("environmentAcquireLease")[0];
        assert_eq!(heard.params["runId"], holder.as_str());
        assert_eq!(heard.params["config"], json!({ "apiKey": VALUE, "region": "eu" }));
        for method in ["environmentAcquireLease", "environmentRealizeWorkspace", "environmentExecute"] {
            let heard = worker.heard(method).pop().unwrap();
            assert_eq!(heard.params["companyId"], lease.lease.organization_id.to_string());
            assert_eq!(heard.params["environmentId"], lease.lease.environment_id.to_string());
            assert_eq!(heard.params["driverKey"], "box");
            assert_eq!(heard.headers["berth-sandbox"], lease.lease.sandbox_id.to_string().as_str());
            for fence in ["berth-generation", "berth-current-generation"] {
                assert_eq!(heard.headers[fence], "1");
            }
        }
        let execute = worker.heard("environmentExecute").pop().unwrap();
        assert_eq!(execute.params["lease"]["metadata"]["number"], 1);
        assert!(execute.params["lease"]["metadata"]["credentials"].is_null(), "a secret that comes back is stripped");
        assert!(!crate::harness::client::rows_of(&world.url).await.contains(VALUE));
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!(row.binding.unwrap(), format!("plugin:{}", row.plugin_id.unwrap()), "what a plugin says of itself moves no pin");
    }

    async fn a_box_that_is_gone_is_replaced_with_its_work(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run-1").await;
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        worker.vanish(&world.provider_ref(&lease).await);
        let next = acquire(&world, "run-2").await;
        assert_eq!(reason(&next), Some("not_found"));
        assert_eq!((next.lease.generation, world.get(&next, "f").await.unwrap().as_str()), (2, "work"));
        let heard = worker.heard("environmentExecute").pop().unwrap();
        assert_eq!(heard.headers["berth-generation"], "2");
    }

    async fn a_box_that_comes_back_empty_is_not_taken_for_the_one_it_was(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run-1").await;
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        worker.empty(&world.provider_ref(&lease).await, lease.lease.instance_id.unwrap());
        let next = acquire(&world, "run-2").await;
        assert_eq!((reason(&next), world.get(&next, "f").await.unwrap().as_str()), (Some("identity_mismatch"), "work"));
        world.settle().await;
        assert_eq!(worker.boxes().len(), 1, "what came back empty is torn down");
    }

    async fn a_resume_that_fails_preserves_the_box_and_makes_nothing(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run-1").await;
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        let name = world.provider_ref(&lease).await;
        // Another's box, an error that does not pass, something that is no lease: none of them is a replacement.
        for lie in [
            Lie::Result(json!({ "providerLeaseId": "somebody-elses" })),
            Lie::Error(json!({ "code": -32_002, "message": "sandbox not found, says prose" })),
            Lie::Result(json!("nothing")),
        ] {
            worker.next("environmentResumeLease", lie.clone());
            assert_eq!(code(world.acquire_with(wish("run-2")).await), Code::ResumeFailed, "{lie:?}");
            world.settle().await;
        }
        assert_eq!(worker.heard("environmentAcquireLease").len(), 1);
        assert!(worker.heard("environmentDestroyLease").is_empty());
        // What passes is tried again.
        worker.next("environmentResumeLease", Lie::Error(json!({ "code": -32_002, "message": "Request timed out" })));
        let next = acquire(&world, "run-2").await;
        assert_eq!((world.provider_ref(&next).await, world.get(&next, "f").await.unwrap()), (name, "work".to_owned()));
        world.release(&next).await.unwrap();
        // Without the method nothing is reused: what was saved goes on in a new box.
        worker.without("environmentResumeLease");
        let last = acquire(&world, "run-3").await;
        assert_eq!((last.lease.policy.as_str(), world.get(&last, "f").await.unwrap().as_str()), ("ephemeral", "work"));
        assert_eq!(reason(&last), Some("policy"));
    }

    async fn what_a_failed_creation_left_is_recorded_and_torn_down(world) {
        let worker = boxed(&world, json!({})).await;
        let run = uuid::Uuid::now_v7();
        let environment = world.ask("GET", "/v1/environments/boxed", Value::Null).await.ok(200)["id"].as_str().unwrap().to_owned();
        let cleanup = |company: &str| json!({
            "code": -32_002, "message": "creation failed", "data": {
                "schema": "paperclip/environment-creation-cleanup/v1",
                "cleanup": {
                    "providerLeaseId": "left-behind", "companyId": company, "environmentId": environment, "runId": run, "attemptId": "a",
                    "accountFingerprint": "0".repeat(64), "labels": {}
                }
            }
        });
        // Another tenant's is no word: nothing is recorded, nothing destroyed.
        worker.next("environmentAcquireLease", Lie::Error(cleanup(&uuid::Uuid::now_v7().to_string())));
        assert_eq!(code(world.acquire_with(wish(&run.to_string())).await), Code::ProviderError);
        world.settle().await;
        assert!(worker.heard("environmentDestroyLease").is_empty());
        worker.next("environmentAcquireLease", Lie::Error(cleanup(&world.caller.organization.to_string())));
        assert_eq!(code(world.acquire_with(wish(&run.to_string())).await), Code::ProviderError);
        world.settle().await;
        let destroyed = worker.heard("environmentDestroyLease");
        assert_eq!(destroyed.len(), 1);
        assert_eq!(destroyed[0].params["providerLeaseId"], "left-behind");
        assert!(world.ledger().await.iter().all(|row| matches!(row.status, Status::Destroyed)), "{:?}", world.ledger().await);
    }

    async fn a_creation_whose_answer_is_lost_is_never_repeated_nor_forgotten(world) {
        let worker = boxed(&world, json!({})).await;
        for lie in [Lie::Status(502), Lie::WrongId, Lie::After(json!({ "providerLeaseId": null }))] {
            worker.next("environmentAcquireLease", lie);
            assert!(world.acquire_with(wish("h")).await.is_err());
            world.settle().await;
        }
        assert_eq!(worker.heard("environmentAcquireLease").len(), 3, "each was asked once");
        let ledger = world.ledger().await;
        let quarantined = ledger.iter().filter(|row| row.quarantine_reason.as_deref() == Some("unattributable")).count();
        assert_eq!(quarantined, 3, "{ledger:?}");
        acquire(&world, "h").await;
    }

    async fn a_new_life_of_the_worker_is_heard_before_it_is_trusted(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        let before = worker.heard("initialize").len();
        world.exec(&lease, &["true"]).await.unwrap();
        assert_eq!(worker.heard("initialize").len(), before);
        worker.restart();
        world.exec(&lease, &["true"]).await.unwrap();
        assert_eq!(worker.heard("initialize").len(), before + 1);
        worker.run(false);
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::ProviderUnavailable);
        worker.run(true);
        world.exec(&lease, &["true"]).await.unwrap();
        worker.upgrade("1.1.0");
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        let next = acquire(&world, "other").await;
        assert_eq!((reason(&next), world.get(&next, "f").await.unwrap().as_str()), (Some("fingerprint_mismatch"), "work"));
    }

    async fn a_worker_that_dies_in_a_call_is_heard_anew_before_the_next(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        for call in ["exec", "file"] {
            let before = worker.heard("initialize").len();
            worker.next("environmentExecute", Lie::Die);
            let told = if call == "exec" { code(world.exec(&lease, &["true"]).await) } else { code(world.get(&lease, "f").await) };
            assert_eq!(told, Code::ProviderUnavailable, "{call}");
            assert_eq!(code(world.exec(&lease, &["true"]).await), Code::ProviderUnavailable, "{call}");
            assert_eq!(worker.heard("initialize").len(), before);
            worker.run(true);
            assert_eq!(world.exec(&lease, &["true"]).await.unwrap().operation.exit_code, Some(0));
            assert_eq!(worker.heard("initialize").len(), before + 1);
        }
        let plugins = world.ask("GET", "/v1/plugins", Value::Null).await.ok(200);
        assert_eq!(plugins["items"][0]["generation"], "g-3");
    }

    async fn a_command_past_its_time_is_dead_with_what_it_started(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        // Nor does a worker that says nothing keep anybody waiting.
        worker.next("environmentExecute", Lie::Hang(Duration::from_secs(20)));
        let mut input = command(lease.lease.generation, &["true"]);
        input.timeout = Duration::from_millis(300);
        let (ran, _) = berth::ops::exec::run(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!(ran.operation.status.as_str(), "timed_out");
        let mut input = command(lease.lease.generation, &["sh", "-c", "(sleep 60; echo late > late) & sleep 60"]);
        input.timeout = Duration::from_millis(600);
        let (ran, _) = berth::ops::exec::run(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!(ran.operation.status.as_str(), "timed_out");
        assert!(ran.operation.process_tree_killed);
        let script = format!("grep -lz 'BERTH_EXEC={}' /proc/[0-9]*/environ 2>/dev/null | wc -l", lease.lease.instance_id.unwrap());
        let left = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&left.stdout).trim(), "0", "nothing of it runs");
        assert_eq!(world.exec(&lease, &["true"]).await.unwrap().operation.exit_code, Some(0));
    }

    async fn a_plugin_is_kept_while_something_of_it_is(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        let plugins = world.ask("GET", "/v1/plugins", Value::Null).await.ok(200);
        let at = format!("/v1/plugins/{}", plugins["items"][0]["id"].as_str().unwrap());
        world.ask("DELETE", &at, Value::Null).await.refused(409, "in_use");
        // A worker that does not run now costs no attempt; its box ends when it does.
        worker.run(false);
        world.delete(&lease).await.unwrap();
        world.settle().await;
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, row.cleanup_attempts), (Status::PendingCleanup, 0));
        worker.run(true);
        world.advance(Duration::from_secs(10));
        world.settle().await;
        assert!(worker.boxes().is_empty());
        assert_eq!(world.ask("DELETE", &at, Value::Null).await.status, 204);
        assert_eq!(code(world.acquire_with(wish("h")).await), Code::ConfigInvalid);
    }

    async fn a_worker_cannot_send_us_elsewhere_nor_drown_us(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        for lie in [Lie::Status(302), Lie::Huge(80 << 20), Lie::WrongId] {
            worker.next("environmentExecute", lie.clone());
            let told = world.get(&lease, "f").await;
            assert!(told.is_err(), "{lie:?}");
        }
        assert_eq!(code(world.get(&lease, "f").await), Code::FileNotFound);
    }
}
