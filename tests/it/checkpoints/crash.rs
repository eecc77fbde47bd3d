//! A server that dies between any two lines of a capture, a drain or a collection: what was promised still holds afterwards.

use berth::error::Code;
use berth::model::checkpoint::Status as CheckpointStatus;
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::{How, Status};
use berth::ops::view::Answered;
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};

use super::*;
use crate::both;
use crate::harness::{World, code, quick, settle, until};

/// A capture that hangs once its provider has given the bytes; it belongs to a server that then counts as dead.
async fn stuck_capture(
    world: &World,
    lease: &LeaseView,
) -> (berth::provider::faults::Release, tokio::task::JoinHandle<Result<Checkpoint>>) {
    let mut stuck = world.faults.hang_after(Verb::ReadTree);
    let (berth, caller, id, input) = (world.berth.clone(), world.caller.clone(), lease.lease.id, wish(lease));
    let capturing = tokio::spawn(async move { ops::capture::capture(&berth, &caller, id, input).await.map(|(c, _)| c) });
    stuck.reached().await;
    (stuck, capturing)
}

both! {
    async fn before_a_byte_is_stored_its_row_says_what_will_become_of_it(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        let (stuck, capturing) = stuck_capture(&world, &lease).await;
        let row = world.checkpoints(&lease).await.remove(0);
        assert_eq!((row.status, row.workspace_revision.is_none()), (CheckpointStatus::Capturing, true));
        let key = row.object_key.clone().expect("registered before publication");
        assert!(world.berth.store.read().await.unwrap().is_ledgered(&key).await.unwrap());
        stuck.release();
        assert_eq!(capturing.await.unwrap().unwrap().object_key, Some(key));
    }

    async fn a_capturer_that_died_is_marked_by_the_driver_and_nothing_of_it_stays(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        let (stuck, capturing) = stuck_capture(&world, &lease).await;
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let row = world.checkpoints(&lease).await.remove(0);
        assert_eq!((row.status, row.failure_code.as_deref()), (CheckpointStatus::Failed, Some("capturer_lost")));
        // The dead server's bytes land all the same, and cannot be published any more.
        stuck.release();
        capturing.await.unwrap().expect_err("its claim is gone");
        until("it is done", async || world.berth.work.under_way() == 0).await;
        assert!(current(&world, &lease).await.is_none());
        let saved = capture_at(&other, &world, &lease, wish(&lease)).await.unwrap();
        other.store.offset().advance(DAY * 2);
        ops::collect::delete_artifacts(&other).await.unwrap();
        ops::collect::sweep_unledgered(&other).await.unwrap();
        assert_eq!(objects(&world).await, 1, "only the published bytes are left");
        assert!(object(&world, &saved).exists());
    }

    async fn bytes_that_land_after_their_deletion_was_confirmed_are_swept(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        let stray = format!("{}/{}/stray.tar.zst", world.caller.organization, lease.lease.sandbox_id);
        let path = world.path().join("archives").join(&stray);
        std::fs::copy(object(&world, &saved), &path).unwrap();
        assert_eq!(ops::collect::sweep_unledgered(&world.berth).await.unwrap(), 0, "it may be on its way to a row");
        world.advance(DAY * 2);
        assert_eq!(ops::collect::sweep_unledgered(&world.berth).await.unwrap(), 1);
        assert!(!path.exists() && object(&world, &saved).exists());
    }

    async fn after_the_bytes_before_the_record_the_previous_one_stays_current(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let other = world.acquire("other", "elsewhere").await.unwrap();
        world.put(&other, "f", "made elsewhere").await.unwrap();
        let made = world.capture(&other).await.unwrap();
        let stored = upload(&world, &lease, fetched(&world, &made).await).await.unwrap();
        assert_eq!(current(&world, &lease).await.unwrap().id, first.id);
        world.advance(DAY / 2);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!(objects(&world).await, 3, "it may still be recorded");
        world.advance(DAY);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!(objects(&world).await, 2, "nobody recorded it");
        world.settle().await;
        let lease = world.acquire("run", "s").await.unwrap();
        let late = entry(&lease, berth::model::checkpoint::Kind::PortableWorkspace, &stored.workspace_revision);
        assert_eq!(code(record(&world, &lease, late).await), Code::CheckpointUnavailable);
    }

    async fn after_the_record_before_the_attach_it_can_be_attached_or_collected(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        let loose = unattached(&world, &lease).await;
        assert_eq!((loose.status, loose.current), (CheckpointStatus::Recorded, false));
        assert_eq!(current(&world, &lease).await.unwrap().id, first.id);
        assert!(world.sandbox(&lease).await.is_dirty(), "an unattached capture saves nothing by itself");
        let other = world.another().await;
        let input = Attach { generation: 1, move_back: false, lease_id: Some(lease.lease.id) };
        let attached = ops::attach::attach(&other, &world.caller, lease.lease.sandbox_id, loose.id, input).await.unwrap();
        assert!(attached.current);
        let sandbox = world.sandbox(&lease).await;
        assert!(!sandbox.is_dirty() && !sandbox.sandbox.diverged, "it is exactly what is live");
    }

    async fn after_the_attach_before_the_callers_own_commit_it_is_found_and_rolled_back(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        let named = Capture { source_tool_call_id: Some("call-7".to_owned()), source_turn_id: Some("turn-1".to_owned()), ..wish(&lease) };
        capture_at(&world.berth, &world, &lease, named).await.unwrap();
        // The caller died before it wrote its own result down; its successor asks by the tool call it knows.
        let query = ops::input::ListQuery { limit: 10, source_tool_call_id: Some("call-7".to_owned()), ..Default::default() };
        let found = ops::checkpoint::list(&world.berth, &world.caller, lease.lease.sandbox_id, query).await.unwrap().items;
        assert_eq!((found.len(), found[0].source_turn_id.as_deref()), (1, Some("turn-1")));
        let (now, moved) = rollback(&world, &lease, 1, found[0].id).await.unwrap();
        assert_eq!((now.unwrap().id, moved), (first.id, true));
        assert_at_rest(&world, &lease).await;
    }

    async fn after_publication_before_the_stop_no_second_capture_is_taken(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        world.advance(TTL);
        let mut stuck = world.faults.hang(Verb::Stop);
        ops::reap::pass(&world.berth).await.unwrap();
        stuck.reached().await;
        let saved = current(&world, &lease).await.expect("published");
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, world.lease(&lease).await.lease.status), (InstanceStatus::Stopped, Status::Expired));
        assert_eq!(world.memory.calls(Verb::ReadTree), 1, "saved once");
        assert_eq!(current(&world, &lease).await.unwrap().id, saved.id);
        stuck.release();
        until("the dead server's call is over", async || world.berth.work.under_way() == 0).await;
        assert_at_rest(&world, &lease).await;
    }

    async fn after_the_stop_before_the_row_says_so_the_row_catches_up(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        world.advance(TTL);
        let mut stuck = world.faults.hang_after(Verb::Stop);
        ops::reap::pass(&world.berth).await.unwrap();
        stuck.reached().await;
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.status, InstanceStatus::Stopping);
        assert!(!world.memory.inventory()[0].2, "it is stopped already");
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.status, InstanceStatus::Stopped);
        stuck.release();
        until("the dead server's call is over", async || world.berth.work.under_way() == 0).await;
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!((next.lease.acquisition.as_ref().unwrap().outcome, world.get(&next, "f").await.unwrap().as_str()), (How::Resumed, "work"));
    }

    async fn after_the_collect_before_the_delete_and_with_a_deleter_that_died_the_bytes_go(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let loose = unattached(&world, &lease).await;
        let kept = world.capture(&lease).await.unwrap();
        let now = world.berth.store.read().await.unwrap().now().await.unwrap();
        ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, now.after(DAY), 10).await.unwrap();
        assert!(row(&world, loose.id).await.is_none() && object(&world, &loose).exists(), "a crash here leaves bytes, and a row that is due");
        // A deleter that dies after its claim: what it began is due again by itself.
        let mut tx = world.berth.store.begin().await.unwrap();
        let now = tx.now().await.unwrap();
        let due = tx.artifacts_to_delete(now, 10).await.unwrap();
        assert_eq!(due.len(), 1);
        assert!(tx.begin_deletion(due[0].id, now.after(Duration::from_secs(5)), now).await.unwrap());
        tx.commit().await.unwrap();
        let other = world.another().await;
        assert_eq!(ops::collect::delete_artifacts(&other).await.unwrap(), 0, "somebody is at it");
        other.store.offset().advance(Duration::from_secs(6));
        assert_eq!(ops::collect::delete_artifacts(&other).await.unwrap(), 1);
        assert!(!object(&world, &loose).exists() && object(&world, &kept).exists());
        assert_eq!(ops::collect::delete_artifacts(&other).await.unwrap(), 0);
    }

    async fn bytes_that_are_gone_already_count_as_deleted(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let loose = unattached(&world, &lease).await;
        let now = world.berth.store.read().await.unwrap().now().await.unwrap();
        ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, now.after(DAY), 10).await.unwrap();
        std::fs::remove_file(object(&world, &loose)).unwrap();
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 1);
        world.advance(DAY * 31);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        let ledgered = world.berth.store.read().await.unwrap().is_ledgered(loose.object_key.as_ref().unwrap()).await.unwrap();
        assert!(!ledgered, "the tombstone is forgotten in the end");
    }

    async fn a_deletion_that_was_begun_cannot_be_published_over(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        let (stuck, capturing) = stuck_capture(&world, &lease).await;
        // The server was asleep so long that its bytes are due, and it holds its claim all the same: nobody else wanted the gate.
        world.advance(DAY);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        stuck.release();
        capturing.await.unwrap().expect_err("its bytes may be gone");
        until("it is done", async || world.berth.work.under_way() == 0).await;
        assert!(current(&world, &lease).await.is_none(), "the pointer never names bytes that may be gone");
    }

    async fn a_capture_of_an_instance_that_was_lost_meanwhile_is_adopted(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved in time").await.unwrap();
        let (stuck, capturing) = stuck_capture(&world, &lease).await;
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert!(ops::loss::settle(&world.berth, row.id, "not_found", None).await.unwrap());
        assert!(world.sandbox(&lease).await.sandbox.unsaved_loss, "as far as anybody knew");
        stuck.release();
        let saved = capturing.await.unwrap().unwrap();
        assert!(saved.current, "nothing has followed it yet");
        assert!(!world.sandbox(&lease).await.sandbox.unsaved_loss);
        world.memory.vanish(&world.provider_ref(&lease).await);
        let input = ops::input::Recover { carried: carried(&lease), ..Default::default() };
        let back = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap().0;
        assert_eq!((back.lease.generation, world.get(&back, "f").await.unwrap().as_str()), (2, "saved in time"));
    }

    async fn a_capture_of_a_lost_instance_that_has_a_successor_moves_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "first").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "second").await.unwrap();
        let (stuck, capturing) = stuck_capture(&world, &lease).await;
        assert!(ops::loss::settle(&world.berth, lease.lease.instance_id.unwrap(), "not_found", None).await.unwrap());
        let input = ops::input::Recover { carried: carried(&lease), ..Default::default() };
        let back = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap().0;
        assert_eq!(world.get(&back, "f").await.unwrap(), "first");
        stuck.release();
        let late = capturing.await.unwrap().unwrap();
        assert_eq!((late.status, late.current, late.superseded_by), (CheckpointStatus::Superseded, false, Some(first.id)));
        assert!(holds(&fetched(&world, &late).await, "second"), "and it can be fetched");
        assert!(!world.sandbox(&back).await.sandbox.diverged);
    }

    async fn an_upload_that_breaks_off_leaves_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let tar = fetched(&world, &world.capture(&lease).await.unwrap()).await;
        assert_eq!(code(upload(&world, &lease, tar[..600].to_vec()).await), Code::ArchiveInvalid);
        let wrong = Some([0; 32]);
        let body = Box::pin(Cursor::new(tar));
        let named = Some(lease.lease.id);
        assert_eq!(code(ops::upload::upload(&world.berth, &world.caller, lease.lease.sandbox_id, named, body, wrong).await), Code::DigestMismatch);
        assert_eq!(objects(&world).await, 1);
        world.advance(DAY * 2);
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 2, "both rows are settled by themselves");
    }

    async fn a_capture_says_202_when_it_is_not_waited_for(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let mut input = wish(&lease);
        input.waiting.respond_async = true;
        let (pending, answered) = ops::capture::capture(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!((pending.status, answered), (CheckpointStatus::Capturing, Answered::Pending));
        stuck.reached().await;
        stuck.release();
        until("it is attached", async || row(&world, pending.id).await.unwrap().current).await;
        assert!(!world.sandbox(&lease).await.is_dirty());
    }

    async fn a_store_that_fails_costs_a_capture_and_nothing_else(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        for kind in [Kind::Transient, Kind::Full, Kind::Indeterminate] {
            world.faults.next(Verb::ReadTree, Fault::FailBefore(kind));
            world.capture(&lease).await.expect_err("no bytes");
        }
        assert_eq!(current(&world, &lease).await.unwrap().id, first.id);
        assert!(world.sandbox(&lease).await.is_dirty());
        world.put(&lease, "f", "three").await.unwrap();
        assert!(world.capture(&lease).await.unwrap().current, "the gate is open again");
        assert_at_rest(&world, &lease).await;
    }
}

/// What changes under a capture's eyes is never passed off as what was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_takes_no_longer_than_it_may_sqlite() {
    let settings = ops::Settings { capture_timeout: Duration::from_millis(300), ..quick() };
    let world = World::with(crate::harness::Db::Sqlite, settings).await;
    let lease = world.acquire("run", "s").await.unwrap();
    world.put(&lease, "f", "one").await.unwrap();
    let stuck = world.faults.hang(Verb::ReadTree);
    let late = world.capture(&lease).await.expect_err("too slow");
    assert_eq!((late.code, late.facts["cause"].as_str()), (Code::CaptureFailed, Some("capture_timed_out")));
    drop(stuck);
    assert!(world.capture(&lease).await.unwrap().current, "the gate is open again");
}
