//! Making and resuming: a failed resume costs nothing, and nothing is made that nobody knows of.

use std::sync::Arc;
use std::time::Duration;

use berth::error::Code;
use berth::model::instance::{Instance, Status as InstanceStatus};
use berth::model::lease::{How, Status};
use berth::ops;
use berth::ops::view::{Answered, LeaseView};
use berth::provider::faults::{Fault, Lie, Verb};
use berth::provider::memory::Memory;
use berth::provider::{Kind, Lookup, Observation};

use crate::both;
use crate::harness::{Db, World, code, quick, settle, until, want};

/// A lease that answers before it is ready.
async fn pending(world: &World, holder: &str) -> LeaseView {
    let mut input = want(holder, Some("s"));
    input.waiting.respond_async = true;
    world.acquire_with(input).await.unwrap().0
}

/// A stopped sandbox with a file in it, saved or not.
async fn stopped(world: &World, saved: bool) -> LeaseView {
    let a = world.acquire("a", "s").await.unwrap();
    world.put(&a, "f", "kept").await.unwrap();
    let save = if saved { berth::model::lease::Save::Auto } else { berth::model::lease::Save::None };
    let input = ops::input::ReleaseRequest { checkpoint: Some(save), ..Default::default() };
    world.release_with(&a, input).await.unwrap();
    assert_eq!(world.lease(&a).await.instance.unwrap().status, InstanceStatus::Stopped);
    a
}

async fn the_last(world: &World) -> LeaseView {
    let query = ops::input::ListQuery { limit: 1, ..Default::default() };
    ops::lease::list(&world.berth, &world.caller, query).await.unwrap().items.remove(0)
}

/// The resume that fails so costs nothing, creates nothing, and the next one works.
async fn a_failed_resume(world: World, fault: Fault) {
    let a = stopped(&world, false).await;
    world.faults.always(Verb::Start, fault);
    let refused = world.acquire("b", "s").await.unwrap_err();
    assert_eq!(refused.code, Code::ResumeFailed, "{refused}");
    world.settle().await;
    let failed = the_last(&world).await;
    assert_eq!(
        (failed.lease.holder.as_str(), failed.lease.status, failed.lease.failure_code.as_deref()),
        ("b", Status::Failed, Some("resume_failed"))
    );
    assert_eq!(failed.lease.instance_id, a.lease.instance_id);
    let row = world.row(a.lease.instance_id.unwrap()).await;
    assert!(matches!(row.status, InstanceStatus::Stopped | InstanceStatus::Running), "{}", row.status);
    assert_eq!((world.faults.count(Verb::Destroy), world.faults.count(Verb::Ensure)), (0, 1), "nothing destroyed, nothing made");
    assert_eq!(world.sandbox(&a).await.sandbox.generation, 1);
    world.faults.clear();
    let b = world.acquire("b", "s").await.unwrap();
    assert_eq!((b.lease.instance_id, b.lease.generation), (a.lease.instance_id, 1));
    assert_eq!(world.get(&b, "f").await.unwrap(), "kept");
    world.assert_ledger_is_inventory().await;
}

both! {
    async fn a_resume_that_fails_transiently_for_too_long_costs_nothing(world) {
        a_failed_resume(world, Fault::FailBefore(Kind::Transient)).await;
    }

    async fn a_resume_that_can_never_work_costs_nothing(world) {
        a_failed_resume(world, Fault::FailBefore(Kind::Invalid)).await;
    }

    async fn a_resume_that_is_refused_costs_nothing(world) {
        a_failed_resume(world, Fault::FailBefore(Kind::Refused)).await;
    }

    async fn a_resume_whose_answer_is_lost_costs_nothing(world) {
        a_failed_resume(world, Fault::FailBefore(Kind::Indeterminate)).await;
    }

    async fn a_resume_that_happened_and_whose_answer_is_lost_costs_nothing(world) {
        a_failed_resume(world, Fault::FailAfter(Kind::Invalid)).await;
    }

    async fn a_resume_that_fails_transiently_once_is_repeated(world) {
        let a = stopped(&world, false).await;
        world.faults.next(Verb::Start, Fault::FailBefore(Kind::Transient));
        let b = world.acquire("b", "s").await.unwrap();
        assert_eq!((b.lease.instance_id, b.lease.acquisition.as_ref().unwrap().outcome), (a.lease.instance_id, How::Resumed));
    }

    async fn a_started_instance_whose_fence_cannot_be_raised_is_not_called_stopped(world) {
        let a = stopped(&world, false).await;
        world.faults.always(Verb::Fence, Fault::FailBefore(Kind::Transient));
        assert_eq!(code(world.acquire("b", "s").await), Code::ResumeFailed);
        let row = world.row(a.lease.instance_id.unwrap()).await;
        let runs = world.memory.inventory()[0].2;
        assert_eq!((row.status, row.quiet, runs), (InstanceStatus::Running, false, true), "the row says what is");
        world.faults.clear();
        assert_eq!(world.acquire("c", "s").await.unwrap().lease.acquisition.as_ref().unwrap().outcome, How::Attached);
    }

    async fn a_stopped_instance_that_is_proven_gone_is_replaced_from_the_checkpoint(world) {
        let a = stopped(&world, true).await;
        world.memory.vanish(&world.provider_ref(&a).await);
        let b = world.acquire("b", "s").await.unwrap();
        let acquisition = b.lease.acquisition.clone().unwrap().0;
        assert_eq!((acquisition.outcome, acquisition.reason.as_deref()), (How::Replacement, Some("not_found")));
        assert_eq!(acquisition.previous_instance_id, a.lease.instance_id);
        assert_eq!(acquisition.restored_from.unwrap().verification, "content");
        assert_eq!(b.lease.generation, 2);
        assert_eq!(world.get(&b, "f").await.unwrap(), "kept");
        assert_eq!(world.row(a.lease.instance_id.unwrap()).await.status, InstanceStatus::Lost);
        world.assert_ledger_is_inventory().await;
    }

    async fn a_stopped_instance_that_is_gone_with_unsaved_work_is_not_papered_over(world) {
        let a = stopped(&world, false).await;
        world.memory.vanish(&world.provider_ref(&a).await);
        assert_eq!(code(world.acquire("b", "s").await), Code::CheckpointUnavailable);
        assert_eq!(code(world.acquire("c", "s").await), Code::CheckpointUnavailable);
        assert!(world.memory.inventory().is_empty(), "nothing is made without consent");
        let mut consent = want("d", Some("s"));
        consent.on_unavailable = Some(berth::model::lease::OnUnavailable::Empty);
        assert_eq!(world.acquire_with(consent).await.unwrap().0.lease.status, Status::Active);
    }

    async fn a_not_found_under_another_binding_proves_nothing(world) {
        let a = stopped(&world, true).await;
        world.memory.rebind();
        world.memory.vanish(&world.provider_ref(&a).await);
        assert_eq!(code(world.acquire("b", "s").await), Code::ResumeFailed);
        ops::drive::pass(&world.berth).await.unwrap();
        until("the look is over", async || world.berth.work.under_way() == 0).await;
        let row = world.row(a.lease.instance_id.unwrap()).await;
        assert!(row.status.is_live(), "{}: nothing was proven, so nothing is lost", row.status);
        assert_eq!((world.sandbox(&a).await.sandbox.generation, world.memory.calls(Verb::Ensure)), (1, 1), "and nothing is made");
    }

    async fn a_not_found_that_a_look_does_not_confirm_proves_nothing(world) {
        let a = stopped(&world, true).await;
        world.faults.next(Verb::Start, Fault::FailBefore(Kind::NotFound));
        world.faults.next(Verb::Observe, Fault::Lie(Lie::Observed(Observation::Unknown)));
        assert_eq!(code(world.acquire("b", "s").await), Code::ResumeFailed);
        world.settle().await;
        assert_eq!(world.row(a.lease.instance_id.unwrap()).await.status, InstanceStatus::Stopped);
        assert_eq!(world.acquire("c", "s").await.unwrap().lease.acquisition.as_ref().unwrap().outcome, How::Resumed);
    }

    async fn a_late_provision_whose_lease_was_deleted_ends_in_cleanup(world) {
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let lease = pending(&world, "a").await;
        stuck.reached().await;
        world.delete(&lease).await.unwrap();
        stuck.release();
        until("the maker is done", async || world.berth.work.under_way() == 0).await;
        world.settle().await;
        assert!(world.memory.inventory().is_empty());
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.status, InstanceStatus::Destroyed);
        assert_eq!(world.lease(&lease).await.lease.status, Status::Released);
        assert_eq!(world.acquire("b", "s").await.unwrap().lease.status, Status::Active);
        world.assert_ledger_is_inventory().await;
    }

    async fn a_provision_whose_lease_was_deleted_before_the_call_creates_nothing(world) {
        let mut stuck = world.faults.hang(Verb::Binding);
        let lease = pending(&world, "a").await;
        stuck.reached().await;
        assert_eq!(world.delete(&lease).await.unwrap(), Answered::Existing);
        stuck.release();
        until("the maker is done", async || world.berth.work.under_way() == 0).await;
        assert_eq!(world.memory.calls(Verb::Ensure), 0);
        assert_eq!(world.lease(&lease).await.lease.status, Status::Released);
    }

    async fn a_refused_create_leaves_a_destroyed_row_and_nothing_else(world) {
        for (kind, told) in [(Kind::Refused, Code::ProviderUnavailable), (Kind::Invalid, Code::ConfigInvalid)] {
            world.faults.next(Verb::Ensure, Fault::FailBefore(kind));
            assert_eq!(code(world.acquire("a", "s").await), told);
            let failed = the_last(&world).await;
            assert_eq!(failed.lease.status, Status::Failed);
            assert_eq!(failed.instance.unwrap().status, InstanceStatus::Destroyed);
        }
        assert!(world.memory.inventory().is_empty());
        let lease = world.acquire("a", "s").await.unwrap();
        assert_eq!(lease.lease.generation, 3, "generations only grow");
        world.assert_ledger_is_inventory().await;
    }

    async fn a_create_whose_answer_is_lost_is_found_by_its_tag(world) {
        world.faults.next(Verb::Ensure, Fault::FailAfter(Kind::Indeterminate));
        let lease = world.acquire("a", "s").await.unwrap();
        assert_eq!(lease.lease.status, Status::Active);
        assert_eq!(world.memory.inventory().len(), 1);
        world.assert_ledger_is_inventory().await;
    }

    async fn a_create_whose_every_answer_is_lost_is_found_and_torn_down(world) {
        world.faults.always(Verb::Ensure, Fault::FailAfter(Kind::Indeterminate));
        assert_eq!(code(world.acquire("a", "s").await), Code::ProviderTimeout);
        world.faults.clear();
        world.settle().await;
        let failed = the_last(&world).await;
        assert_eq!((failed.lease.status, failed.instance.unwrap().status), (Status::Failed, InstanceStatus::Destroyed));
        assert!(world.memory.inventory().is_empty());
    }

    async fn a_refusal_after_a_create_that_may_have_happened_is_no_proof(world) {
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let lease = pending(&world, "a").await;
        stuck.reached().await;
        world.advance(Duration::from_secs(31));
        let other = world.another().await;
        world.faults.next(Verb::Ensure, Fault::FailBefore(Kind::Refused));
        settle(&other).await;
        // The first server never comes back: its call is cut off where it hangs, as by a crash.
        assert!(world.memory.inventory().is_empty(), "what the first server made is found and torn down");
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.status, InstanceStatus::Destroyed);
        assert_eq!(world.lease(&lease).await.lease.status, Status::Failed);
        stuck.release();
        until("the first server is done", async || world.berth.work.under_way() == 0).await;
        settle(&other).await;
        assert!(world.memory.inventory().is_empty());
    }

    async fn a_restore_that_fails_leaves_nothing_half_made(world) {
        let a = world.acquire("a", "s").await.unwrap();
        world.put(&a, "f", "kept").await.unwrap();
        world.capture(&a).await.unwrap();
        world.delete(&a).await.unwrap();
        world.faults.next(Verb::WriteTree, Fault::FailBefore(Kind::Full));
        assert_eq!(code(world.acquire("b", "s").await), Code::StorageFull);
        world.settle().await;
        assert!(world.memory.inventory().is_empty());
        let c = world.acquire("c", "s").await.unwrap();
        assert_eq!(world.get(&c, "f").await.unwrap(), "kept");
        world.assert_ledger_is_inventory().await;
    }

    async fn a_destroy_that_fails_is_repeated_with_back_off_and_quarantined(world) {
        let lease = world.acquire("a", "s").await.unwrap();
        let id = lease.lease.instance_id.unwrap();
        world.faults.always(Verb::Destroy, Fault::FailBefore(Kind::Transient));
        assert_eq!(world.delete(&lease).await.unwrap(), Answered::Pending);
        let mut waits = Vec::new();
        for attempt in 1..=6 {
            let row = world.row(id).await;
            assert_eq!((row.cleanup_attempts, row.status), (attempt, InstanceStatus::PendingCleanup));
            assert_eq!(row.cleanup_error_kind.as_deref(), Some("transient"));
            assert_eq!(world.lease(&lease).await.lease.status, Status::PendingCleanup, "not over before it is true");
            assert_eq!(quarantined(&world).await.iter().any(|i| i.id == id), attempt >= 5, "after {attempt} attempts");
            waits.push(row.cleanup_next_at.unwrap().since(row.updated_at));
            let before = world.faults.count(Verb::Destroy);
            world.settle().await;
            assert_eq!(world.faults.count(Verb::Destroy), before, "not before its time");
            world.advance(*waits.last().unwrap());
            world.settle().await;
        }
        let seconds: Vec<u64> = waits.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160]);
        assert_eq!(world.lease(&lease).await.lease.ends_as, Some(Status::Released));
        world.faults.clear();
        world.advance(Duration::from_secs(1800));
        world.settle().await;
        assert_eq!(world.row(id).await.status, InstanceStatus::Destroyed, "a quarantined row is still retried");
        assert_eq!(world.lease(&lease).await.lease.status, Status::Released, "its stored end");
        assert!(world.memory.inventory().is_empty());
    }

    async fn a_provider_that_is_not_ready_costs_no_attempt(world) {
        let lease = world.acquire("a", "s").await.unwrap();
        world.faults.always(Verb::Destroy, Fault::FailBefore(Kind::Refused));
        assert_eq!(world.delete(&lease).await.unwrap(), Answered::Pending);
        for _ in 0..8 {
            world.advance(Duration::from_secs(60));
            world.settle().await;
        }
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.cleanup_attempts, row.status), (0, InstanceStatus::PendingCleanup));
        world.faults.clear();
        world.advance(Duration::from_secs(60));
        world.settle().await;
        assert_eq!(world.lease(&lease).await.lease.status, Status::Released);
    }

    async fn a_teardown_under_another_binding_waits(world) {
        let lease = world.acquire("a", "s").await.unwrap();
        world.memory.rebind();
        assert_eq!(world.delete(&lease).await.unwrap(), Answered::Pending);
        world.settle().await;
        assert_eq!(world.faults.count(Verb::Destroy), 0, "the ref is not this account's");
        assert_eq!(world.row(lease.lease.instance_id.unwrap()).await.cleanup_error_kind.as_deref(), Some("binding_changed"));
    }
}

async fn quarantined(world: &World) -> Vec<Instance> {
    let query = ops::input::ListQuery { limit: 100, quarantined: Some(true), ..Default::default() };
    ops::instance::list(&world.berth, &world.caller, query).await.unwrap().items
}

/// A provider that finds nothing again: what may have been made is never made twice and never called destroyed.
async fn unattributable(db: Db, crash: bool) {
    let memory = Memory::with_lookup(Lookup::None);
    let world = World::over(db, quick(), memory.clone(), Arc::new(memory.clone())).await;
    let (lease, server, stuck) = if crash {
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let lease = pending(&world, "a").await;
        stuck.reached().await;
        world.advance(Duration::from_secs(31));
        (lease, world.another().await, Some(stuck))
    } else {
        world.faults.next(Verb::Ensure, Fault::FailAfter(Kind::Indeterminate));
        assert_eq!(code(world.acquire("a", "s").await), Code::ProviderTimeout);
        (the_last(&world).await, world.berth.clone(), None)
    };
    settle(&server).await;
    let id = lease.lease.instance_id.unwrap();
    for _ in 0..6 {
        server.store.offset().advance(Duration::from_secs(3600));
        settle(&server).await;
        let row = world.row(id).await;
        assert_eq!((row.status, row.quarantine_reason.as_deref()), (InstanceStatus::PendingCleanup, Some("unattributable")));
        assert_eq!(world.lease(&lease).await.lease.status, Status::PendingCleanup);
    }
    assert!(quarantined(&world).await.iter().any(|i| i.id == id), "listed for a person");
    assert_eq!((memory.calls(Verb::Ensure), memory.inventory().len()), (1, 1), "never repeated");
    if let Some(stuck) = stuck {
        // The answer comes after all, and with it the name of what is to be torn down.
        stuck.release();
        until("the answer is recorded", async || world.berth.work.under_way() == 0).await;
        settle(&server).await;
        assert_eq!(world.row(id).await.status, InstanceStatus::Destroyed);
        assert!(memory.inventory().is_empty());
        assert_eq!(world.lease(&lease).await.lease.status, Status::Failed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_create_without_lookup_is_quarantined_sqlite() {
    unattributable(Db::Sqlite, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_create_without_lookup_is_quarantined_postgres() {
    unattributable(Db::Postgres, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_cut_off_by_a_crash_without_lookup_is_not_repeated_sqlite() {
    unattributable(Db::Sqlite, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_cut_off_by_a_crash_without_lookup_is_not_repeated_postgres() {
    unattributable(Db::Postgres, true).await;
}

async fn hanging_destroy(db: Db) {
    let world =
        World::with(db, ops::Settings { provision_wait: Duration::from_millis(500), call_timeout: Duration::from_secs(60), ..quick() })
            .await;
    let lease = world.acquire("a", "s").await.unwrap();
    let mut stuck = world.faults.hang(Verb::Destroy);
    assert_eq!(world.delete(&lease).await.unwrap(), Answered::Pending, "202: not confirmed yet");
    stuck.reached().await;
    let waiting = world.lease(&lease).await;
    assert_eq!((waiting.lease.status, waiting.lease.ends_as), (Status::PendingCleanup, Some(Status::Released)));
    assert_eq!(world.memory.inventory().len(), 1, "nobody says destroyed of what is there");
    assert_eq!(world.delete(&lease).await.unwrap(), Answered::Pending, "asked again, answered the same");
    let next = world.acquire("b", "s").await.unwrap();
    assert_eq!(next.lease.generation, 2, "a successor never waits for the confirmation");
    stuck.release();
    until("it is over", async || world.lease(&lease).await.lease.status == Status::Released).await;
    assert_eq!(world.delete(&lease).await.unwrap(), Answered::Existing);
    world.assert_ledger_is_inventory().await;
    assert_eq!(world.lease(&next).await.lease.status, Status::Active);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_that_hangs_answers_202_and_ends_later_sqlite() {
    Box::pin(hanging_destroy(Db::Sqlite)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroy_that_hangs_answers_202_and_ends_later_postgres() {
    Box::pin(hanging_destroy(Db::Postgres)).await;
}
