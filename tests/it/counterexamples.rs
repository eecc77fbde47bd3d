//! The traces by which the protocol broke when one sentence was left out, each driven for real; `h1` is H1 of the design's page.

use std::sync::Arc;
use std::time::Duration;

use berth::error::Code;
use berth::model::instance::{HoldReason, Status as InstanceStatus};
use berth::model::lease::{Disposition, How, Status};
use berth::model::operation::Status as OperationStatus;
use berth::ops::input::ReleaseRequest;
use berth::ops::{self, Berth};
use berth::provider::faults::{Fault, Faults, Lie, Verb};
use berth::provider::memory::Memory;
use berth::provider::{Kind, OwnerTag, Provider, Spec};
use serde_json::json;
use uuid::Uuid;

use crate::both;
use crate::harness::{Db, World, carried, code, quick, settle, until, want};

const TTL: Duration = Duration::from_secs(3601);
/// Longer than a claim lasts without a renewal.
const LAPSE: Duration = Duration::from_secs(31);

/// A lease that is still being made ready, by a server that is stuck.
async fn pending(world: &World, holder: &str) -> berth::ops::view::LeaseView {
    let mut input = want(holder, Some("s"));
    input.waiting.respond_async = true;
    world.acquire_with(input).await.unwrap().0
}

/// The next holder, patient, at another server.
async fn next_at(server: &Arc<Berth>, world: &World, holder: &str) -> berth::ops::view::LeaseView {
    let mut input = want(holder, Some("s"));
    input.waiting.others = Duration::from_secs(8);
    ops::acquire::acquire(server, &world.caller, input).await.unwrap().0
}

both! {
    async fn h1_an_expired_writers_command_is_dead_before_the_next_writer_comes(world) {
        let a = world.acquire("a", "s").await.unwrap();
        let late = world.started(&a, &["sh", "-c", "write f begun; sleep 60000; write f late"]).await;
        world.advance(TTL);
        let b = next_at(&world.berth, &world, "b").await;
        assert_eq!((b.lease.status, b.lease.generation), (Status::Active, 1));
        assert_eq!(b.lease.instance_id, a.lease.instance_id);
        assert_eq!(world.memory.processes(&world.provider_ref(&b).await).await.unwrap(), 0, "nothing of the former writer runs");
        assert_eq!(late.await.unwrap().unwrap().operation.status, OperationStatus::Cancelled);
        assert_eq!(world.lease(&a).await.lease.status, Status::Expired);
        assert_eq!(world.get(&b, "f").await.unwrap(), "begun", "its work is there, its process is not");
    }

    async fn h1_a_process_left_by_keep_running_is_dead_before_the_next_writer_comes(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.exec(&a, &["linger", "60000"]).await.unwrap();
        let keep = ReleaseRequest { disposition: Some(Disposition::KeepRunning), ..Default::default() };
        assert_eq!(world.release_with(&a, keep).await.unwrap().0.lease.status, Status::Retained);
        let provider_ref = world.provider_ref(&a).await;
        assert_eq!(world.memory.processes(&provider_ref).await.unwrap(), 1, "it lives on");
        let b = world.acquire("b", "s").await.unwrap();
        assert_eq!(b.lease.acquisition.as_ref().unwrap().outcome, How::Attached);
        assert_eq!(world.memory.processes(&provider_ref).await.unwrap(), 0);
        assert_eq!(world.lease(&a).await.lease.status, Status::Released, "its instance has passed on");
    }

    async fn h1_a_kill_that_a_crash_left_owed_is_done_before_the_next_writer_comes(world) {
        let a = world.acquire("a", "s").await.unwrap();
        let late = world.started(&a, &["sh", "-c", "sleep 60000; write f late"]).await;
        world.advance(TTL);
        let mut stuck = world.faults.hang(Verb::Fence);
        ops::reap::pass(&world.berth).await.unwrap();
        stuck.reached().await;
        assert_eq!(world.lease(&a).await.lease.status, Status::Active, "claimed, and not killed yet");
        assert_eq!(code(world.acquire("b", "s").await), Code::TransitionInProgress);
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let b = next_at(&other, &world, "b").await;
        assert_eq!((b.lease.status, b.lease.instance_id), (Status::Active, a.lease.instance_id));
        assert_eq!(world.memory.processes(&world.provider_ref(&b).await).await.unwrap(), 0);
        stuck.release();
        let told = late.await.unwrap().unwrap().operation.status;
        assert!(matches!(told, OperationStatus::Cancelled | OperationStatus::Unknown), "{told}: whoever settled it first knew the one or the other");
        until("the former server is done", async || world.berth.work.under_way() == 0).await;
        assert_eq!(world.lease(&b).await.lease.status, Status::Active, "the former server's kill changes nothing");
        assert!(world.exec(&b, &["true"]).await.is_ok());
    }

    async fn h2_a_command_admitted_and_sent_too_late_never_starts(world) {
        let a = world.acquire("a", "s").await.unwrap();
        let mut stuck = world.faults.hang(Verb::Exec);
        let late = world.running(&a, &["write", "f", "late"]);
        stuck.reached().await;
        world.advance(TTL);
        let other = world.another().await;
        settle(&other).await;
        assert_eq!(world.lease(&a).await.lease.status, Status::Expired);
        assert_eq!(world.lease(&a).await.instance.unwrap().status, InstanceStatus::Stopped);
        let b = next_at(&other, &world, "b").await;
        assert_eq!(b.lease.acquisition.as_ref().unwrap().outcome, How::Resumed);
        stuck.release();
        let told = late.await.unwrap().unwrap_err();
        assert_eq!(told.code, Code::LeaseNotActive, "{told}");
        assert_eq!(world.memory.processes(&world.provider_ref(&b).await).await.unwrap(), 0);
        assert_eq!(code(world.get(&b, "f").await), Code::FileNotFound, "it has no effect");
    }

    async fn h2_a_file_admitted_and_sent_too_late_changes_nothing(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.put(&a, "f", "kept").await.unwrap();
        // A server that stands still between the fence of its rows and the provider, for longer than its claim lives.
        let mut stuck = world.faults.hang(Verb::WriteFile);
        let (berth, caller, lease, fence) = (world.berth.clone(), world.caller.clone(), a.lease.id, carried(&a));
        let late = tokio::task::spawn(async move {
            let body = Box::pin(std::io::Cursor::new(b"late".to_vec()));
            ops::files::write(&berth, &caller, lease, fence, "f", body, None, true).await
        });
        stuck.reached().await;
        world.advance(TTL);
        let other = world.another().await;
        settle(&other).await;
        let b = next_at(&other, &world, "b").await;
        assert_eq!(b.lease.instance_id, a.lease.instance_id, "the same box");
        stuck.release();
        let told = late.await.unwrap().map(|put| put.workspace_seq).unwrap_err();
        assert!(matches!(told.code, Code::LeaseNotActive | Code::LeaseExpired), "{told}");
        assert_eq!(world.get(&b, "f").await.unwrap(), "kept");
    }

    async fn h3_a_slow_maker_whose_claim_lapsed_tears_nothing_down(world) {
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let a = pending(&world, "a").await;
        stuck.reached().await;
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let active = world.lease(&a).await;
        assert_eq!((active.lease.status, active.lease.generation), (Status::Active, 1));
        world.put(&active, "f", "work").await.unwrap();
        stuck.release();
        until("the slow maker is done", async || world.berth.work.under_way() == 0).await;
        settle(&other).await;
        let after = world.lease(&a).await;
        assert_eq!((after.lease.status, after.instance.as_ref().unwrap().status), (Status::Active, InstanceStatus::Running));
        assert_eq!(world.get(&after, "f").await.unwrap(), "work");
        assert_eq!(world.faults.count(Verb::Destroy), 0);
        world.assert_ledger_is_inventory().await;
    }

    async fn h3_a_slow_maker_whose_claim_lapsed_restores_nothing_over_the_live_workspace(world) {
        let first = world.acquire("first", "s").await.unwrap();
        world.put(&first, "f", "saved").await.unwrap();
        world.capture(&first).await.unwrap();
        world.delete(&first).await.unwrap();
        let restored = world.memory.calls(Verb::WriteTree);
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let a = pending(&world, "a").await;
        stuck.reached().await;
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        let active = world.lease(&a).await;
        assert_eq!(world.get(&active, "f").await.unwrap(), "saved");
        world.put(&active, "f", "newer").await.unwrap();
        stuck.release();
        until("the slow maker is done", async || world.berth.work.under_way() == 0).await;
        assert_eq!(world.get(&active, "f").await.unwrap(), "newer", "the holder's work is what it wrote");
        assert_eq!(world.memory.calls(Verb::WriteTree), restored + 1, "restored once");
    }

    async fn h4_unsaved_work_is_held_until_somebody_saves_it(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.put(&a, "f", "unsaved").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        let over = world.lease(&a).await;
        assert_eq!((over.lease.status, over.lease.failure_code.as_deref()), (Status::Expired, Some("capture_failed")));
        let held = world.row(over.lease.instance_id.unwrap()).await;
        assert_eq!((held.status, held.hold_reason), (InstanceStatus::Stopped, Some(HoldReason::CaptureFailed)));
        for _ in 0..4 {
            world.advance(Duration::from_secs(30 * 86_400));
            world.settle().await;
        }
        assert_eq!(world.faults.count(Verb::Destroy), 0, "no cleaner touches it");
        let sandbox = world.sandbox(&a).await;
        assert_eq!((sandbox.sandbox.instance_id, sandbox.is_dirty()), (Some(held.id), true), "still the sandbox's, so a later capture can attach");
        world.faults.clear();
        let b = world.acquire("b", "s").await.unwrap();
        assert_eq!(b.lease.acquisition.as_ref().unwrap().outcome, How::Resumed);
        assert_eq!(world.get(&b, "f").await.unwrap(), "unsaved");
        assert!(world.capture(&b).await.unwrap().current);
        assert!(!world.sandbox(&b).await.is_dirty());
        assert_eq!(world.row(held.id).await.hold_reason, None);
    }

    async fn h5_a_crash_during_a_resume_never_costs_the_preserved_box(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.put(&a, "f", "kept").await.unwrap();
        world.release(&a).await.unwrap();
        let mut stuck = world.faults.hang(Verb::Start);
        let b = pending(&world, "b").await;
        stuck.reached().await;
        world.advance(Duration::from_secs(601));
        let other = world.another().await;
        settle(&other).await;
        let over = world.lease(&b).await;
        assert_eq!(over.lease.status, Status::Failed, "a resume's deadline fails the lease");
        let preserved = world.row(over.lease.instance_id.unwrap()).await;
        assert_eq!((preserved.status, preserved.generation, Some(preserved.id)), (InstanceStatus::Stopped, 1, a.lease.instance_id));
        let c = next_at(&other, &world, "c").await;
        assert_eq!(c.lease.acquisition.as_ref().unwrap().outcome, How::Resumed);
        assert_eq!(world.get(&c, "f").await.unwrap(), "kept");
        stuck.release();
        until("the crashed server's call is over", async || world.berth.work.under_way() == 0).await;
        assert_eq!(world.lease(&c).await.lease.status, Status::Active);
        assert_eq!((world.faults.count(Verb::Destroy), world.memory.calls(Verb::Ensure)), (0, 1));
        world.assert_ledger_is_inventory().await;
    }
}

/// A provider whose `ensure` looks up and then creates, so that two calls at once make two objects: the answer to S0 names another
/// object than the one S1 finds by the tag.
async fn h9(db: Db) {
    let memory = Memory::new();
    let nature = Faults::new(Arc::new(memory.clone()));
    let world = World::over(db, quick(), memory.clone(), Arc::new(nature.clone())).await;
    let elsewhere = OwnerTag {
        deployment: world.berth.deployment.id,
        organization: world.caller.organization,
        sandbox: Uuid::nil(),
        instance: Uuid::nil(),
        generation: 1,
    };
    let first = memory.ensure(&Spec { config: json!({}).into(), workspace_path: None }, &elsewhere).await.unwrap().provider_ref;
    nature.next(Verb::Ensure, Fault::Lie(Lie::Ref(first.clone())));
    let mut stuck = world.faults.hang_after(Verb::Ensure);
    let a = pending(&world, "a").await;
    stuck.reached().await;
    world.advance(LAPSE);
    let other = world.another().await;
    settle(&other).await;
    let active = world.lease(&a).await;
    let second = world.provider_ref(&active).await;
    assert_eq!(active.lease.status, Status::Active);
    assert_ne!(first, second);
    world.put(&active, "f", "work").await.unwrap();
    stuck.release();
    until("the first maker is done", async || world.berth.work.under_way() == 0).await;
    settle(&other).await;
    let after = world.lease(&a).await;
    assert_eq!((after.lease.status, world.provider_ref(&after).await), (Status::Active, second.clone()), "a ref is never replaced");
    assert_eq!(world.get(&after, "f").await.unwrap(), "work");
    assert_eq!(memory.inventory().into_iter().map(|(name, ..)| name).collect::<Vec<_>>(), [second], "the other object is torn down");
    let entry = world.ledger().await.into_iter().find(|i| i.provider_ref.as_ref() == Some(&first)).expect("an entry of its own");
    assert_eq!((entry.status, entry.retire_reason.as_deref()), (InstanceStatus::Destroyed, Some("second_ref")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h9_two_objects_for_one_row_leave_none_unnamed_sqlite() {
    h9(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h9_two_objects_for_one_row_leave_none_unnamed_postgres() {
    h9(Db::Postgres).await;
}

async fn h10(db: Db) {
    let world = World::with(db, ops::Settings { call_timeout: Duration::from_secs(300), ..quick() }).await;
    let mut stuck = world.faults.hang(Verb::Ensure);
    let a = pending(&world, "a").await;
    stuck.reached().await;
    world.advance(Duration::from_secs(601));
    let other = world.another().await;
    settle(&other).await;
    let row = world.row(a.lease.instance_id.unwrap()).await;
    assert_eq!(row.status, InstanceStatus::PendingCleanup, "looked up and absent, but a create may still land");
    assert_eq!(world.lease(&a).await.lease.status, Status::PendingCleanup);
    other.store.offset().advance(Duration::from_secs(150));
    settle(&other).await;
    assert_eq!(world.row(row.id).await.status, InstanceStatus::Destroyed, "the absence is believed in the end");
    assert_eq!(world.lease(&a).await.lease.status, Status::Failed);
    stuck.release();
    until("the late create has landed", async || world.berth.work.under_way() == 0).await;
    assert_eq!(world.memory.calls(Verb::Ensure), 1, "it did land");
    settle(&other).await;
    let row = world.row(row.id).await;
    assert!(row.provider_ref.is_some(), "its ref is in the ledger");
    assert_eq!(row.status, InstanceStatus::Destroyed);
    assert!(world.memory.inventory().is_empty(), "and it is gone");
    assert_eq!(world.lease(&a).await.lease.status, Status::Failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h10_a_create_that_lands_after_its_absence_was_believed_is_torn_down_sqlite() {
    h10(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h10_a_create_that_lands_after_its_absence_was_believed_is_torn_down_postgres() {
    h10(Db::Postgres).await;
}
