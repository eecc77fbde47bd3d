//! The traces of the design's page that end at a checkpoint, each driven for real.

use berth::error::Code;
use berth::model::checkpoint::{Consistency, Status as CheckpointStatus};
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::{Disposition, Status};
use berth::ops::input::{ReleaseRequest, Unsaved};
use berth::provider::faults::{Fault, Verb};
use berth::provider::{Kind, Provider};

use super::*;
use crate::both;
use crate::harness::{code, settle, until};

both! {
    async fn h6_a_restore_whose_create_fails_leaves_the_live_instance_and_its_lease(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        for verb in [Verb::Ensure, Verb::Realize] {
            world.faults.next(verb, Fault::FailBefore(Kind::Refused));
            restore(&world, &lease, saved.id, Unsaved::Fail).await.expect_err("the create failed");
            world.settle().await;
            let after = world.lease(&lease).await;
            assert_eq!((after.lease.status, after.lease.generation, after.lease.instance_id), (Status::Active, 1, lease.lease.instance_id));
            assert_eq!(after.instance.as_ref().unwrap().status, InstanceStatus::Running);
            assert_eq!(world.sandbox(&lease).await.sandbox.generation, 1, "a failed successor leaves pointer and generation alone");
            world.put(&lease, "g", "goes on").await.unwrap();
            world.capture(&lease).await.unwrap();
        }
        world.assert_ledger_is_inventory().await;
        assert_at_rest(&world, &lease).await;
    }

    async fn h7_a_failed_successors_generation_is_never_given_again(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        world.faults.next(Verb::WriteTree, Fault::FailBefore(Kind::Refused));
        restore(&world, &lease, saved.id, Unsaved::Fail).await.expect_err("the successor could not be filled");
        world.settle().await;
        let destroy = ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() };
        world.release_with(&lease, destroy).await.unwrap();
        let next = world.acquire("next", "s").await.unwrap();
        let mut generations: Vec<i64> = world.ledger().await.iter().map(|i| i.generation).collect();
        generations.sort_unstable();
        assert_eq!(generations, [1, 2, 3], "one row a generation");
        assert_eq!((next.lease.generation, world.get(&next, "f").await.unwrap().as_str()), (3, "saved"));
        world.assert_ledger_is_inventory().await;
    }

    async fn h8_no_write_is_admitted_between_the_dirty_check_and_the_switch(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        let input = Restore { carried: carried(&lease), checkpoint_id: saved.id, unsaved_changes: Unsaved::Fail, waiting: Waiting::default() };
        let restoring = tokio::spawn(async move { ops::restore::restore(&berth, &caller, id, input).await });
        stuck.reached().await;
        let late = world.running(&lease, &["write", "g", "late"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.memory.calls(Verb::Exec), 0, "it waits at the gate");
        stuck.release();
        let after = restoring.await.unwrap().unwrap().0;
        assert_eq!(after.lease.generation, 2);
        assert_eq!(code(late.await.unwrap()), Code::StaleGeneration, "it was meant for the former instance");
        assert_eq!(code(world.get(&after, "g").await), Code::FileNotFound);
        assert!(!world.sandbox(&after).await.is_dirty());
        world.settle().await;
        world.assert_ledger_is_inventory().await;
    }

    async fn h12_work_whose_writers_kill_is_unconfirmed_is_never_silently_older(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.put(&a, "f", "old").await.unwrap();
        world.capture(&a).await.unwrap();
        world.exec(&a, &["linger", "60000"]).await.unwrap();
        world.put(&a, "f", "new").await.unwrap();
        world.faults.always(Verb::Fence, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&a).await.lease.status, Status::Expired, "no scope is stuck for want of a kill");
        let saved = current(&world, &a).await.expect("attached");
        assert_eq!(saved.consistency, Some(Consistency::Live), "and says what it is");
        assert!(holds(&fetched(&world, &saved).await, "new"));
        assert_eq!(world.row(a.lease.instance_id.unwrap()).await.status, InstanceStatus::Stopped, "the stop is the kill");
        world.faults.clear();
        let b = world.acquire("b", "s").await.unwrap();
        assert_eq!((b.lease.instance_id, world.get(&b, "f").await.unwrap().as_str()), (a.lease.instance_id, "new"));
        assert_eq!(world.memory.processes(&world.provider_ref(&b).await).await.unwrap(), 0);
        assert!(world.sandbox(&b).await.is_dirty(), "what a live capture may have missed is still unsaved");
    }

    async fn h12_with_nothing_to_stop_the_capture_is_attached_before_the_box_goes(world) {
        world.environment("gone", |e| e.policy = Some(berth::model::lease::Policy::Ephemeral)).await;
        let mut input = want("a", Some("s"));
        "gone".clone_into(&mut input.environment);
        let a = world.acquire_with(input.clone()).await.unwrap().0;
        world.exec(&a, &["linger", "60000"]).await.unwrap();
        world.put(&a, "f", "new").await.unwrap();
        world.faults.always(Verb::Fence, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        assert_eq!(world.lease(&a).await.lease.status, Status::Expired);
        world.faults.clear();
        "b".clone_into(&mut input.holder);
        let b = world.acquire_with(input).await.unwrap().0;
        assert_ne!(b.lease.instance_id, a.lease.instance_id);
        assert_eq!(world.get(&b, "f").await.unwrap(), "new");
    }

    async fn a_restore_that_outlives_its_claim_lands_on_nobodys_box(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.release_with(&lease, ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() }).await.unwrap();
        let mut stuck = world.faults.hang(Verb::WriteTree);
        let (berth, caller) = (world.berth.clone(), world.caller.clone());
        let slow = tokio::spawn(async move { ops::acquire::acquire(&berth, &caller, want("next", Some("s"))).await });
        stuck.reached().await;
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let next = ops::acquire::acquire(&other, &world.caller, want("next", Some("s"))).await.unwrap().0;
        assert_eq!((next.lease.status, world.get(&next, "f").await.unwrap().as_str()), (Status::Active, "saved"));
        world.put(&next, "f", "new work").await.unwrap();
        stuck.release();
        slow.await.unwrap().ok();
        until("the slow server's call is over", async || world.berth.work.under_way() == 0).await;
        assert_eq!(world.get(&next, "f").await.unwrap(), "new work", "what came late is nowhere");
        world.settle().await;
        world.assert_ledger_is_inventory().await;
    }

    async fn h13_a_capture_does_not_undo_the_rollback_that_overtook_it(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "good").await.unwrap();
        let good = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "bad").await.unwrap();
        let bad = world.capture(&lease).await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::ReadTree);
        let (berth, caller, id, input) = (world.berth.clone(), world.caller.clone(), lease.lease.id, wish(&lease));
        let capturing = tokio::spawn(async move { ops::capture::capture(&berth, &caller, id, input).await });
        stuck.reached().await;
        // The capturer's claim lapses, so the pointer may move; its bytes come late all the same.
        world.advance(LAPSE);
        let (fallback, moved) = rollback(&world, &lease, 1, bad.id).await.unwrap();
        assert_eq!((fallback.map(|c| c.id), moved), (Some(good.id), true));
        stuck.release();
        capturing.await.unwrap().expect_err("its claim is gone");
        until("the late capturer is done", async || world.berth.work.under_way() == 0).await;
        assert_eq!(current(&world, &lease).await.unwrap().id, good.id, "the rollback stands");
        world.settle().await;
        assert_at_rest(&world, &lease).await;
    }

    async fn h13_a_capture_that_waited_its_turn_is_taken_after_the_rollback(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "bad").await.unwrap();
        let bad = world.capture(&lease).await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::ReadTree);
        let (berth, caller, id, input) = (world.berth.clone(), world.caller.clone(), lease.lease.id, wish(&lease));
        let capturing = tokio::spawn(async move { ops::capture::capture(&berth, &caller, id, input).await });
        stuck.reached().await;
        let rejecting = rollback(&world, &lease, 1, bad.id);
        let released = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stuck.release();
        };
        let (rejected, ()) = tokio::join!(rejecting, released);
        let published = capturing.await.unwrap().unwrap().0;
        let (now, moved) = rejected.unwrap();
        assert!(!moved, "the rollback waited, and the pointer names the later capture by then");
        assert_eq!(now.map(|c| c.id), Some(published.id));
        assert_eq!(row(&world, bad.id).await.unwrap().status, CheckpointStatus::Attached);
    }

    async fn a_rollback_to_nothing_gives_up_what_was_written_until_then_and_no_more(world) {
        for (scope, since, told) in [("given up", false, None), ("written since", true, Some(Code::CheckpointUnavailable))] {
            let lease = world.acquire("run", scope).await.unwrap();
            world.put(&lease, "f", "bad").await.unwrap();
            let bad = world.capture(&lease).await.unwrap();
            rollback(&world, &lease, 1, bad.id).await.unwrap();
            if since {
                world.put(&lease, "f", "better").await.unwrap();
            }
            world.memory.vanish(&world.provider_ref(&lease).await);
            world.get(&lease, "f").await.expect_err("it is gone");
            let input = berth::ops::input::Recover { carried: carried(&lease), ..Default::default() };
            let back = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await;
            assert_eq!(back.err().map(|e| e.code), told, "{scope}");
        }
    }
}
