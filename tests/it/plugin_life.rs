//! The life of a plugin's box: made in its own time, looked at without being woken, lost and recovered, moved, stopped by a receipt.

use std::time::Duration;

use berth::clock::Time;
use berth::error::Code;
use berth::model::instance::Status;
use berth::model::lease::{Disposition, How};
use berth::ops::input::{Recover, ReleaseRequest, Waiting};
use berth::ops::view::LeaseView;
use berth::ops::{self, Settings};
use berth::provider::Observation;
use berth::store::Carried;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::both;
use crate::harness::worker::{Lie, Worker};
use crate::harness::{World, carried, code, command, until};
use crate::plugins::{acquire, boxed, reason, wish};

const TOKEN: &str = "what-a-worker-is-shown-5c1d";

async fn status(world: &World, lease: &LeaseView) -> Status {
    world.row(lease.lease.instance_id.unwrap()).await.status
}

fn recover() -> Recover {
    Recover { carried: Carried::default(), restore_checkpoint_id: None, on_unavailable: None, waiting: Waiting::default() }
}

/// Everything runs, by its boxes.
fn running(worker: &Worker) -> Vec<bool> {
    worker.boxes().iter().map(|(_, running)| *running).collect()
}

both! {
    async fn a_box_that_takes_long_to_make_is_waited_for(world) {
        let worker = boxed(&world, json!({})).await;
        let hasty = world.another_with(Settings { call_timeout: Duration::from_secs(3), ..world.berth.settings.clone() }).await;
        worker.next("environmentAcquireLease", Lie::Late(Duration::from_secs(4)));
        let (lease, _) = ops::acquire::acquire(&hasty, &world.caller, wish("h")).await.unwrap();
        assert_eq!((worker.boxes().len(), status(&world, &lease).await), (1, Status::Running));
    }

    async fn a_command_that_ends_in_the_workers_queue_never_starts(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        worker.next("environmentExecute", Lie::Late(Duration::from_millis(2500)));
        let mut input = command(lease.lease.generation, &["sh", "-c", "echo late > late"]);
        input.timeout = Duration::from_millis(200);
        let (ran, _) = ops::exec::run(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!((ran.operation.status.as_str(), ran.operation.process_tree_killed), ("timed_out", true));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(code(world.get(&lease, "late").await), Code::FileNotFound);
    }

    async fn what_a_worker_is_shown_is_written_down_nowhere(world) {
        world.ask("PUT", "/v1/secrets/token", json!({ "value": TOKEN })).await.ok(201);
        let worker = Worker::start().await;
        worker.with_token(TOKEN);
        let named = |name: &str| json!({ "name": name, "url": worker.url, "token": { "secret_ref": { "name": "token" } } });
        worker.upgrade(TOKEN);
        let told = world.ask("POST", "/v1/plugins", named("boxes")).await.refused(422, "config_invalid");
        assert!(told["step"] == "manifest" && !told.to_string().contains(TOKEN), "{told}");
        worker.upgrade("1.0.0");
        world.ask("POST", "/v1/plugins", named("boxes")).await.ok(201);
        let config = json!({ "plugin": "boxes", "driver_key": "box" });
        world.ask("POST", "/v1/environments", json!({ "name": "boxed", "provider": "plugin", "config": config })).await.ok(201);
        let said = json!({ "providerLeaseId": "no-box", "metadata": { "note": format!("Bearer {TOKEN}"), "fine": 1 } });
        worker.next("environmentAcquireLease", Lie::Result(said));
        assert!(world.acquire_with(wish("h")).await.is_err());
        assert_eq!(world.ledger().await[0].provider_metadata.as_ref().unwrap().0, json!({ "fine": 1 }));
        worker.next("environmentAcquireLease", Lie::Result(json!({ "providerLeaseId": format!("box-{TOKEN}") })));
        assert!(world.acquire_with(wish("h")).await.is_err());
        world.settle().await;
        let lease = acquire(&world, "h").await;
        worker.upgrade(TOKEN);
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::ProviderUnavailable);
        assert!(!crate::harness::client::rows_of(&world.url).await.contains(TOKEN));
    }

    async fn before_a_worker_ends_its_box_the_work_moves_to_one_that_lives_longer(world) {
        let worker = boxed(&world, json!({})).await;
        let run = Uuid::now_v7().to_string();
        let now = world.berth.store.read().await.unwrap().now().await.unwrap();
        let mut wanted = wish(&run);
        (wanted.ttl_seconds, wanted.harness) = (Some(20_000), Some("claude".to_owned()));
        wanted.requested_expires_at = Some(now.after(Duration::from_secs(7200)));
        let (lease, _) = world.acquire_with(wanted).await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        world.advance(Duration::from_secs(7200 - 899));
        assert_eq!(ops::rotate::pass(&world.berth).await.unwrap().due, 1);
        until("the rotation is over", async || world.berth.work.under_way() == 0).await;
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.generation, world.get(&after, "f").await.unwrap().as_str()), (2, "work"));
        world.settle().await;
        assert_eq!(worker.boxes().len(), 1);
        let made = worker.heard("environmentAcquireLease");
        let ends = |index: usize| made[index].params["requestedExpiresAt"].as_str().and_then(Time::parse).unwrap();
        assert_eq!(ends(1), lease.lease.expires_at.unwrap(), "as long as its lease");
        assert!(ends(1) > ends(0));
        for key in ["runId", "adapterType"] {
            assert_eq!(made[1].params[key], made[0].params[key], "{key}");
        }
        assert_eq!(made[1].params["runId"], run.as_str());
    }

    async fn a_look_wakes_nothing_that_is_stopped(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        world.release(&lease).await.unwrap();
        world.settle().await;
        assert_eq!(running(&worker), [false]);
        world.advance(Duration::from_secs(120));
        assert_eq!(ops::observe::pass(&world.berth).await.unwrap().due, 0);
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        let provider = world.berth.provider_of(&row).await.unwrap();
        let seen = provider.observe(row.binding.as_deref().unwrap(), row.provider_ref.as_deref().unwrap()).await;
        assert_eq!((seen, running(&worker)), (Observation::Unknown, vec![false]));
        assert!(worker.heard("environmentResumeLease").is_empty());
    }

    async fn what_is_lost_between_calls_is_noticed_and_recovered_with_its_work(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        world.put(&lease, "f", "work").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.advance(Duration::from_secs(61));
        let seen = ops::observe::pass(&world.berth).await.unwrap();
        assert_eq!((seen.due, seen.unchanged), (1, 1), "{seen:?}");
        // A worker that does not answer, or says something else, proves nothing.
        world.advance(Duration::from_secs(61));
        worker.run(false);
        assert_eq!(ops::observe::pass(&world.berth).await.unwrap().unknown, 1);
        worker.run(true);
        worker.next("environmentResumeLease", Lie::Error(json!({ "code": -32_002, "message": "sandbox not found" })));
        assert_eq!(ops::observe::pass(&world.berth).await.unwrap().unknown, 1);
        worker.vanish(&world.provider_ref(&lease).await);
        assert_eq!(ops::observe::pass(&world.berth).await.unwrap().lost, 1);
        assert_eq!(code(world.get(&lease, "f").await), Code::InstanceLost);
        let input = Recover { carried: carried(&lease), ..recover() };
        let (back, _) = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!((back.lease.id, back.lease.generation, world.get(&back, "f").await.unwrap().as_str()), (lease.lease.id, 2, "work"));
        assert_eq!(back.lease.acquisition.as_ref().unwrap().outcome, How::Restored);
        let made = worker.heard("environmentAcquireLease");
        assert_eq!(made[1].headers["berth-generation"], "2");
        assert_eq!(worker.boxes().len(), 1);
    }

    async fn a_stop_of_its_own_is_over_with_its_receipt_alone(world) {
        let worker = boxed(&world, json!({})).await;
        worker.with("environmentStopLease");
        let lease = acquire(&world, "h").await;
        let name = world.provider_ref(&lease).await;
        for wrong in [Value::Null, json!({ "providerLeaseId": name, "state": "destroyed" }), json!({ "providerLeaseId": "other", "state": "stopped" })] {
            worker.next("environmentStopLease", Lie::Result(wrong));
        }
        world.release(&lease).await.unwrap();
        assert_eq!(status(&world, &lease).await, Status::Stopping);
        until("it is stopped", async || {
            world.advance(Duration::from_secs(60));
            world.settle().await;
            status(&world, &lease).await == Status::Stopped
        })
        .await;
        let stops = worker.heard("environmentStopLease");
        assert_eq!((stops.len(), running(&worker)), (4, vec![false]));
        assert_eq!((&stops[0].params["cancelActiveWork"], &stops[0].params["resourceDisposition"]), (&json!(true), &json!("stop_and_retain")));
        assert!(worker.heard("environmentReleaseLease").is_empty() && worker.heard("environmentDestroyLease").is_empty());
    }

    async fn without_a_stop_of_its_own_a_release_is_one_and_a_wish_needs_a_receipt(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        world.put(&lease, "f", "work").await.unwrap();
        // Nobody asked for a stop: what the worker does not confirm, the next resume finds out.
        worker.next("environmentReleaseLease", Lie::After(Value::Null));
        world.release(&lease).await.unwrap();
        assert_eq!(status(&world, &lease).await, Status::Stopped);
        let lease = acquire(&world, "h").await;
        assert_eq!((lease.lease.acquisition.as_ref().unwrap().outcome, world.get(&lease, "f").await.unwrap().as_str()), (How::Resumed, "work"));
        // Somebody did.
        worker.next("environmentReleaseLease", Lie::After(Value::Null));
        let wish = ReleaseRequest { disposition: Some(Disposition::StopAndRetain), ..ReleaseRequest::default() };
        world.release_with(&lease, wish).await.unwrap();
        assert_eq!(status(&world, &lease).await, Status::Stopping);
        world.advance(Duration::from_secs(60));
        world.settle().await;
        assert_eq!(status(&world, &lease).await, Status::Stopped);
        let lease = acquire(&world, "h").await;
        // A worker that ends instead of stopping has lost it.
        let name = world.provider_ref(&lease).await;
        worker.vanish(&name);
        worker.next("environmentReleaseLease", Lie::Result(json!({ "providerLeaseId": name, "state": "destroyed" })));
        world.put(&lease, "f", "more").await.unwrap_err();
        world.release(&lease).await.ok();
        world.settle().await;
        assert_eq!(status(&world, &lease).await, Status::Lost);
    }

    async fn a_worker_that_loses_its_resume_at_the_last_moment_keeps_its_box(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "h").await;
        world.release(&lease).await.unwrap();
        world.settle().await;
        worker.without_from("environmentResumeLease", 2);
        assert_eq!(code(world.acquire_with(wish("next")).await), Code::ResumeUnavailable);
        world.settle().await;
        assert_eq!(status(&world, &lease).await, Status::Stopped);
        assert_eq!((worker.heard("environmentAcquireLease").len(), worker.heard("environmentDestroyLease").len()), (1, 0));
        worker.with("environmentResumeLease");
        let next = acquire(&world, "next").await;
        assert_eq!(next.lease.instance_id, lease.lease.instance_id);
    }

    async fn a_box_is_handed_to_one_run_at_a_time_and_outlives_who_was_refused(world) {
        let worker = boxed(&world, json!({})).await;
        let lease = acquire(&world, "run").await;
        assert_eq!(acquire(&world, "run").await.lease.id, lease.lease.id, "the same run has it already");
        assert_eq!(code(world.acquire_with(wish("another")).await), Code::LeaseConflict);
        world.release(&lease).await.unwrap();
        world.settle().await;
        // The same run again, and then two that want it at once.
        let again = acquire(&world, "run").await;
        assert_eq!((again.lease.instance_id, again.lease.acquisition.as_ref().unwrap().outcome), (lease.lease.instance_id, How::Resumed));
        world.release(&again).await.unwrap();
        world.settle().await;
        let (one, other) = tokio::join!(world.acquire_with(wish("one")), world.acquire_with(wish("other")));
        let (won, refused) = if one.is_ok() { (one, other) } else { (other, one) };
        let won = won.unwrap().0;
        assert_eq!(won.lease.instance_id, lease.lease.instance_id);
        assert!(refused.is_err());
        world.release(&won).await.unwrap();
        world.settle().await;
        // Resumed and then refused all the same: it is an earlier lease's, and stays.
        let mut strict = wish("strict");
        strict.require_provider_expiry = true;
        assert_eq!(code(world.acquire_with(strict).await), Code::ProviderExpiryUnattested);
        world.settle().await;
        assert_eq!((worker.boxes().len(), worker.heard("environmentDestroyLease").len()), (1, 0));
        // What fits no more is retired: ended, with its work in the next one.
        let last = acquire(&world, "last").await;
        world.put(&last, "f", "work").await.unwrap();
        world.release(&last).await.unwrap();
        let patch = json!({ "config": { "plugin": "boxes", "driver_key": "box", "driver_config": { "region": "eu" } } });
        world.ask("PATCH", "/v1/environments/boxed", patch).await.ok(200);
        let next = acquire(&world, "next").await;
        assert_eq!((reason(&next), world.get(&next, "f").await.unwrap().as_str()), (Some("fingerprint_mismatch"), "work"));
        world.settle().await;
        assert_eq!(worker.boxes().len(), 1, "the former one is over");
    }
}
