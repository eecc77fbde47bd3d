//! The end of a lease: asked for, repeated, raced for, or come by time; unsaved work outlives each of them.

use std::time::Duration;

use berth::error::Code;
use berth::model::checkpoint::Status as CheckpointStatus;
use berth::model::instance::{HoldReason, Status as InstanceStatus};
use berth::model::lease::{Disposition, How, Outcome, Save, Status};
use berth::model::operation::Status as OperationStatus;
use berth::ops;
use berth::ops::input::ReleaseRequest;
use berth::ops::view::Answered;
use berth::provider::faults::{Fault, Verb};
use berth::provider::{Kind, Provider};

use crate::both;
use crate::harness::{Db, World, code, quick, until, want};

const TTL: Duration = Duration::from_secs(3601);

fn destroy() -> ReleaseRequest {
    ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() }
}

both! {
    async fn a_release_whose_capture_fails_changes_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        for input in [ReleaseRequest::default(), destroy()] {
            assert_eq!(code(world.release_with(&lease, input).await), Code::CaptureFailed);
            let still = world.lease(&lease).await;
            assert_eq!((still.lease.status, still.lease.release.is_none()), (Status::Active, true));
            assert_eq!(still.instance.unwrap().status, InstanceStatus::Running);
            assert_eq!(world.exec(&lease, &["cat", "f"]).await.unwrap().stdout.kept, b"unsaved", "the lease is as usable as before");
            world.put(&lease, "g", "more").await.unwrap();
        }
        assert_eq!((world.faults.count(Verb::Destroy), world.faults.count(Verb::Stop)), (0, 0));
        assert!(world.checkpoints(&lease).await.iter().all(|c| c.status == CheckpointStatus::Failed && !c.current));
        world.faults.clear();
        assert_eq!(world.release(&lease).await.unwrap().lease.status, Status::Released);
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "g").await.unwrap(), "more");
    }

    async fn discard_workspace_is_the_consent(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        let input = ReleaseRequest { discard_workspace: true, ..destroy() };
        let (view, answered) = world.release_with(&lease, input).await.unwrap();
        assert_eq!((view.lease.status, answered), (Status::Released, Answered::Existing));
        assert_eq!(view.instance.unwrap().status, InstanceStatus::Destroyed);
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.acquire("next", "s").await.unwrap().lease.acquisition.as_ref().unwrap().outcome, How::Created, "it was consented to");
    }

    async fn an_expiry_whose_capture_fails_holds_the_box_for_ever(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&lease).await.lease.status, Status::Expired);
        for _ in 0..3 {
            world.advance(Duration::from_secs(8 * 86_400));
            world.settle().await;
            let row = world.row(lease.lease.instance_id.unwrap()).await;
            assert_eq!((row.status, row.hold_reason), (InstanceStatus::Stopped, Some(HoldReason::CaptureFailed)));
        }
        world.faults.always(Verb::Start, Fault::FailBefore(Kind::Refused));
        assert_eq!(code(world.acquire("unlucky", "s").await), Code::ResumeFailed);
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, row.hold_reason), (InstanceStatus::Stopped, Some(HoldReason::CaptureFailed)), "held until somebody has it");
        world.faults.clear();
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!((next.lease.instance_id, next.lease.generation), (lease.lease.instance_id, 1));
        assert_eq!(world.get(&next, "f").await.unwrap(), "unsaved");
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.hold_reason, None);
    }

    async fn a_held_box_is_given_up_by_its_owners_word_only(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(code(world.delete(&lease).await), Code::CaptureFailed);
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.hold_reason, Some(HoldReason::CaptureFailed));
        assert_eq!(world.memory.inventory().len(), 1);
        let (_, answered) = ops::release::delete(&world.berth, &world.caller, lease.lease.id, true).await.unwrap();
        assert_eq!(answered, Answered::Existing);
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.lease(&lease).await.lease.status, Status::Expired, "nothing leaves an end");
    }

    async fn an_anonymous_sandbox_is_exempt(world) {
        let lease = world.acquire_with(want("run", None)).await.unwrap().0;
        world.put(&lease, "f", "nobody asks for it").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&lease).await.lease.status, Status::Expired);
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.memory.calls(Verb::ReadTree), 0, "not even tried");
    }

    async fn cancel_active_work_kills_what_runs(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let running = world.started(&lease, &["sh", "-c", "write f x; sleep 60000"]).await;
        let input = ReleaseRequest { cancel_active_work: true, ..Default::default() };
        assert_eq!(world.release_with(&lease, input).await.unwrap().0.lease.status, Status::Released);
        let told = running.await.unwrap().unwrap().operation;
        assert_eq!(told.status, OperationStatus::Cancelled);
        assert!(told.process_tree_killed);
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "x");
        assert_eq!(world.memory.processes(&world.provider_ref(&next).await).await.unwrap(), 0);
    }

    async fn a_release_waits_for_what_runs(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let running = world.started(&lease, &["sh", "-c", "sleep 300; write f done"]).await;
        assert_eq!(world.release(&lease).await.unwrap().lease.status, Status::Released);
        assert_eq!(running.await.unwrap().unwrap().operation.exit_code, Some(0));
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "done");
    }

    async fn a_release_repeated_answers_the_same_end(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let failed = ReleaseRequest { outcome: Some(Outcome::Failed), ..Default::default() };
        let first = world.release_with(&lease, failed).await.unwrap().0;
        assert_eq!(first.lease.status, Status::Failed);
        let again = world.release(&lease).await.unwrap();
        assert_eq!((again.lease.status, again.lease.released_at), (Status::Failed, first.lease.released_at));
        world.settle().await;
        assert_eq!(world.release(&lease).await.unwrap().lease.released_at, first.lease.released_at);
        assert_eq!(world.faults.count(Verb::Stop), 1);
    }

    async fn two_releases_at_once_end_it_once(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let release = || {
            let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
            tokio::task::spawn(async move { ops::release::release(&berth, &caller, id, ReleaseRequest::default()).await })
        };
        for release in [release(), release(), release(), release()] {
            assert_eq!(release.await.unwrap().unwrap().0.lease.status, Status::Released);
        }
        assert_eq!((world.memory.calls(Verb::ReadTree), world.faults.count(Verb::Stop)), (1, 1));
        assert_eq!(world.checkpoints(&lease).await.len(), 1);
    }

    async fn delete_works_from_every_status(world) {
        // Pending, in the middle of a create.
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let mut input = want("pending", Some("pending"));
        input.waiting.respond_async = true;
        let pending = world.acquire_with(input).await.unwrap().0;
        stuck.reached().await;
        let answered = world.delete(&pending).await.unwrap();
        stuck.release();
        until("the maker is done", async || world.berth.work.under_way() == 0).await;
        world.settle().await;
        assert_eq!(world.lease(&pending).await.lease.status, Status::Released, "{answered:?}");
        // Active.
        let active = world.acquire("active", "active").await.unwrap();
        assert_eq!(world.delete(&active).await.unwrap(), Answered::Existing);
        assert_eq!(world.lease(&active).await.lease.status, Status::Released);
        // Retained.
        let retained = world.acquire("retained", "retained").await.unwrap();
        let keep = ReleaseRequest { disposition: Some(Disposition::KeepRunning), ..Default::default() };
        world.release_with(&retained, keep).await.unwrap();
        assert_eq!(world.lease(&retained).await.lease.status, Status::Retained);
        assert_eq!(world.delete(&retained).await.unwrap(), Answered::Existing);
        assert_eq!(world.lease(&retained).await.lease.status, Status::Released);
        // Released: its stopped instance goes too.
        let released = world.acquire("released", "released").await.unwrap();
        world.put(&released, "f", "x").await.unwrap();
        world.release(&released).await.unwrap();
        assert_eq!(world.delete(&released).await.unwrap(), Answered::Existing);
        assert_eq!(world.lease(&released).await.instance.unwrap().status, InstanceStatus::Destroyed);
        // Expired and failed.
        let failed = world.acquire("failed", "failed").await.unwrap();
        world.release_with(&failed, ReleaseRequest { outcome: Some(Outcome::Failed), ..Default::default() }).await.unwrap();
        assert_eq!(world.delete(&failed).await.unwrap(), Answered::Existing);
        assert_eq!(world.lease(&failed).await.lease.status, Status::Failed);
        let expired = world.acquire("expired", "expired").await.unwrap();
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&expired).await.lease.status, Status::Expired);
        assert_eq!(world.delete(&expired).await.unwrap(), Answered::Existing);
        assert_eq!(world.lease(&expired).await.lease.status, Status::Expired);
        assert!(world.memory.inventory().is_empty(), "each took its instance with it");
        world.assert_ledger_is_inventory().await;
        // What was saved is still there for the scope's next lease.
        let next = world.acquire("next", "released").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "x");
    }

    async fn delete_of_an_ended_lease_leaves_its_successors_box_alone(world) {
        let first = world.acquire("first", "s").await.unwrap();
        world.release(&first).await.unwrap();
        let second = world.acquire("second", "s").await.unwrap();
        assert_eq!(second.lease.instance_id, first.lease.instance_id);
        assert_eq!(world.delete(&first).await.unwrap(), Answered::Existing);
        assert!(world.exec(&second, &["true"]).await.is_ok());
        world.release(&second).await.unwrap();
        world.delete(&first).await.unwrap();
        assert_eq!(world.memory.inventory().len(), 1, "the second's, although it is over too");
    }

    async fn a_release_of_a_pending_resume_preserves_the_box(world) {
        let first = world.acquire("first", "s").await.unwrap();
        world.put(&first, "f", "kept").await.unwrap();
        world.release(&first).await.unwrap();
        let mut stuck = world.faults.hang(Verb::Start);
        let mut input = want("second", Some("s"));
        input.waiting.respond_async = true;
        let second = world.acquire_with(input).await.unwrap().0;
        stuck.reached().await;
        assert_eq!(world.release(&second).await.unwrap().lease.status, Status::Released);
        stuck.release();
        until("the start is over", async || world.berth.work.under_way() == 0).await;
        world.settle().await;
        assert_eq!(world.faults.count(Verb::Destroy), 0);
        let row = world.row(first.lease.instance_id.unwrap()).await;
        assert_eq!(row.status == InstanceStatus::Running, world.memory.inventory()[0].2, "the late start is seen: {}", row.status);
        let third = world.acquire("third", "s").await.unwrap();
        assert_eq!((third.lease.instance_id, world.get(&third, "f").await.unwrap().as_str()), (first.lease.instance_id, "kept"));
    }

    async fn delete_of_a_pending_resume_is_done_when_it_is_confirmed(world) {
        let first = world.acquire("first", "s").await.unwrap();
        world.put(&first, "f", "kept").await.unwrap();
        world.release(&first).await.unwrap();
        let mut stuck = world.faults.hang(Verb::Start);
        let mut input = want("second", Some("s"));
        input.waiting.respond_async = true;
        let second = world.acquire_with(input).await.unwrap().0;
        stuck.reached().await;
        assert_eq!(world.delete(&second).await.unwrap(), Answered::Pending, "202: it may be running");
        stuck.release();
        until("the start is over", async || world.berth.work.under_way() == 0).await;
        world.settle().await;
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.delete(&second).await.unwrap(), Answered::Existing);
        let third = world.acquire("third", "s").await.unwrap();
        assert_eq!(world.get(&third, "f").await.unwrap(), "kept", "from its checkpoint");
    }

    async fn a_stopped_box_whose_capture_fails_at_the_end_is_held_and_the_lease_over(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        world.memory.stop_behind(&world.provider_ref(&lease).await);
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&lease).await.lease.status, Status::Expired);
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, row.hold_reason), (InstanceStatus::Stopped, Some(HoldReason::CaptureFailed)));
        world.faults.clear();
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "unsaved");
    }

    async fn a_release_races_admissions_and_nothing_is_lost(world) {
        for round in 0..6 {
            let session = format!("s{round}");
            let lease = world.acquire("run", &session).await.unwrap();
            let writers: Vec<_> = (0..6).map(|i| world.running(&lease, &["write", &format!("f{i}"), "x"])).collect();
            let release = {
                let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
                tokio::task::spawn(async move { ops::release::release(&berth, &caller, id, ReleaseRequest::default()).await })
            };
            let mut written = Vec::new();
            for (i, writer) in writers.into_iter().enumerate() {
                match writer.await.unwrap() {
                    Ok(view) => {
                        assert_eq!(view.operation.exit_code, Some(0));
                        written.push(i);
                    }
                    Err(error) => assert!(matches!(error.code, Code::TransitionInProgress | Code::LeaseNotActive), "{error}"),
                }
            }
            assert_eq!(release.await.unwrap().unwrap().0.lease.status, Status::Released);
            let sandbox = world.sandbox(&lease).await;
            assert!(!sandbox.is_dirty(), "round {round}: everything admitted is in the checkpoint");
            let next = world.acquire("next", &session).await.unwrap();
            for i in written {
                assert_eq!(world.get(&next, &format!("f{i}")).await.unwrap(), "x");
            }
        }
    }

    async fn an_expiry_waits_for_a_running_capture(world) {
        let mut input = want("run", Some("s"));
        input.ttl_seconds = Some(5);
        let lease = world.acquire_with(input).await.unwrap().0;
        world.put(&lease, "f", "x").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let capture = {
            let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
            let input = ops::input::Capture {
                carried: crate::harness::carried(&lease),
                kind: None,
                attach: true,
                source_turn_id: None,
                source_tool_call_id: None,
                waiting: ops::input::Waiting::default(),
            };
            tokio::task::spawn(async move { ops::capture::capture(&berth, &caller, id, input).await })
        };
        stuck.reached().await;
        world.advance(Duration::from_secs(6));
        ops::reap::pass(&world.berth).await.unwrap();
        assert_eq!(world.lease(&lease).await.lease.status, Status::Active);
        assert_eq!(code(world.acquire("next", "s").await), Code::TransitionInProgress);
        stuck.release();
        assert!(capture.await.unwrap().unwrap().0.current);
        world.settle().await;
        let over = world.lease(&lease).await;
        assert_eq!((over.lease.status, over.instance.unwrap().status), (Status::Expired, InstanceStatus::Stopped));
        assert_eq!(world.checkpoints(&lease).await.len(), 1, "it was clean, so nothing was captured again");
    }

    async fn a_loss_met_by_a_release_ends_it_and_frees_the_scope(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.exec(&lease, &["true"]).await.unwrap();
        world.memory.vanish(&world.provider_ref(&lease).await);
        let over = world.release(&lease).await.unwrap();
        assert_eq!(over.lease.status, Status::Released);
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(next.lease.generation, 2);
        assert_eq!(world.get(&next, "f").await.unwrap(), "saved");
    }

    async fn a_release_that_a_crash_cut_off_is_carried_on(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        let cut_off = tokio::task::spawn(async move { ops::release::release(&berth, &caller, id, ReleaseRequest::default()).await });
        stuck.reached().await;
        world.advance(Duration::from_secs(31));
        let other = world.another().await;
        crate::harness::settle(&other).await;
        let over = world.lease(&lease).await;
        assert_eq!((over.lease.status, over.instance.unwrap().status), (Status::Released, InstanceStatus::Stopped));
        stuck.release();
        cut_off.await.unwrap().ok();
        until("the former server is done", async || world.berth.work.under_way() == 0).await;
        let attached: Vec<_> = world.checkpoints(&lease).await.into_iter().filter(|c| c.status == CheckpointStatus::Attached).collect();
        assert_eq!(attached.len(), 1, "published once");
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "x");
    }

    async fn none_as_checkpoint_is_consent(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let input = ReleaseRequest { checkpoint: Some(Save::None), ..destroy() };
        assert_eq!(world.release_with(&lease, input).await.unwrap().0.lease.status, Status::Released);
        assert_eq!(world.memory.calls(Verb::ReadTree), 0);
        assert_eq!(world.acquire("next", "s").await.unwrap().lease.acquisition.as_ref().unwrap().outcome, How::Created);
    }
}

/// The bound of a release's patience, made small.
async fn impatient(db: Db) {
    let world = World::with(db, ops::Settings { drain_wait: Duration::from_millis(300), ..quick() }).await;
    let lease = world.acquire("run", "s").await.unwrap();
    let running = world.started(&lease, &["sh", "-c", "sleep 60000"]).await;
    assert_eq!(code(world.release(&lease).await), Code::OperationsInProgress);
    assert_eq!(world.lease(&lease).await.lease.status, Status::Active);
    assert!(world.exec(&lease, &["true"]).await.is_ok(), "all is as before");
    assert_eq!(world.memory.processes(&world.provider_ref(&lease).await).await.unwrap(), 1, "the command runs on");
    let input = ReleaseRequest { cancel_active_work: true, ..Default::default() };
    assert_eq!(world.release_with(&lease, input).await.unwrap().0.lease.status, Status::Released);
    assert_eq!(running.await.unwrap().unwrap().operation.status, OperationStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_with_commands_running_answers_operations_in_progress_sqlite() {
    impatient(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_with_commands_running_answers_operations_in_progress_postgres() {
    impatient(Db::Postgres).await;
}
