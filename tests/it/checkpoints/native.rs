//! A provider's own snapshots: taken, put back, kept and deleted like any checkpoint, and never the only one of a box that goes.

use berth::error::Code;
use berth::model::checkpoint::{Consistency, Status as CheckpointStatus};
use berth::model::lease::{Disposition, OnUnavailable, Save};
use berth::ops::input::{ReleaseRequest, Unsaved};
use berth::provider::faults::{Fault, Verb};
use berth::provider::{Kind as Failure, Provider};

use super::*;
use crate::both;
use crate::harness::{code, until};

async fn snapshot(world: &World, lease: &LeaseView) -> Checkpoint {
    let wanted = Capture { kind: Some(Kind::ProviderNative), ..wish(lease) };
    capture_at(&world.berth, world, lease, wanted).await.unwrap()
}

/// A snapshot that was given up, whose deletion was confirmed, and which then came to be.
async fn snapshot_again_after_its_end(world: &World, lease: &LeaseView) -> String {
    let wanted = Capture { kind: Some(Kind::ProviderNative), attach: false, ..wish(lease) };
    let loose = capture_at(&world.berth, world, lease, wanted).await.unwrap();
    ops::collect::delete(&world.berth, &world.caller, loose.sandbox_id, loose.id).await.unwrap();
    assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 1);
    let name = loose.provider_ref.unwrap();
    let id = name.strip_prefix("memory-snapshot-").unwrap().parse().unwrap();
    assert_eq!(world.memory.snapshot(&world.provider_ref(lease).await, id).await.unwrap().snapshot_ref, name);
    name
}

both! {
    async fn a_snapshot_is_a_checkpoint_like_any_other(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = snapshot(&world, &lease).await;
        assert_eq!((saved.kind, saved.status, saved.consistency), (Kind::ProviderNative, CheckpointStatus::Attached, Some(Consistency::Quiescent)));
        assert!(saved.current && saved.workspace_revision.as_ref().unwrap().starts_with("wa2:"));
        assert_eq!(world.memory.snapshots(), [saved.provider_ref.clone().unwrap()]);
        assert!(!world.sandbox(&lease).await.is_dirty(), "nothing is unsaved");
        world.put(&lease, "f", "later").await.unwrap();
        let back = restore(&world, &lease, saved.id, Unsaved::Discard).await.unwrap();
        assert_eq!(world.get(&back, "f").await.unwrap(), "saved");
        let told = back.lease.acquisition.as_ref().unwrap().restored_from.clone().unwrap();
        assert_eq!((told.kind, told.verification.as_str()), (Kind::ProviderNative, "receipt"));
        assert_eq!(objects(&world).await, 0, "no bytes of it are ours");
    }

    async fn what_only_stood_still_goes_on_writing_and_stays_unsaved(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.exec(&lease, &["linger", "60000"]).await.unwrap();
        let saved = snapshot(&world, &lease).await;
        assert_eq!((saved.consistency, saved.current), (Some(Consistency::Paused), true));
        assert!(world.sandbox(&lease).await.is_dirty());
    }

    async fn a_box_that_is_lost_comes_back_from_its_snapshot(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        snapshot(&world, &lease).await;
        world.memory.vanish(&world.provider_ref(&lease).await);
        world.get(&lease, "f").await.expect_err("it is gone");
        let input = berth::ops::input::Recover { carried: carried(&lease), ..Default::default() };
        let back = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap().0;
        assert_eq!(world.get(&back, "f").await.unwrap(), "saved");
    }

    async fn a_snapshot_that_is_gone_is_told_and_replaced_only_by_what_was_asked_for(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "older").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "newer").await.unwrap();
        let saved = snapshot(&world, &lease).await;
        assert!(world.memory.lose_snapshot(saved.provider_ref.as_ref().unwrap()));
        world.memory.vanish(&world.provider_ref(&lease).await);
        world.get(&lease, "f").await.expect_err("it is gone");
        let mut input = berth::ops::input::Recover { carried: carried(&lease), ..Default::default() };
        let recover = async |input| ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await;
        assert_eq!(code(recover(input.clone()).await), Code::CheckpointUnavailable);
        input.on_unavailable = Some(OnUnavailable::OlderRevision);
        let back = recover(input).await.unwrap().0;
        assert_eq!(world.get(&back, "f").await.unwrap(), "older");
    }

    async fn another_accounts_snapshot_is_neither_restored_nor_deleted(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = snapshot(&world, &lease).await;
        world.put(&lease, "f", "later").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.memory.rebind();
        assert_eq!(code(restore(&world, &lease, saved.id, Unsaved::Fail).await), Code::CheckpointUnavailable);
        ops::collect::delete(&world.berth, &world.caller, saved.sandbox_id, saved.id).await.unwrap();
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 0);
        assert_eq!(world.memory.snapshots().len(), 1, "it is not what is called so there");
    }

    async fn a_snapshot_goes_with_its_row(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let wanted = Capture { kind: Some(Kind::ProviderNative), attach: false, ..wish(&lease) };
        let loose = capture_at(&world.berth, &world, &lease, wanted).await.unwrap();
        assert_eq!(loose.status, CheckpointStatus::Recorded);
        ops::collect::delete(&world.berth, &world.caller, loose.sandbox_id, loose.id).await.unwrap();
        world.faults.next(Verb::DeleteSnapshot, Fault::FailAfter(Failure::Indeterminate));
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 0, "nobody knows");
        world.advance(Duration::from_secs(10));
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 1, "gone already is deleted");
        assert!(world.memory.snapshots().is_empty());
    }

    async fn after_the_snapshot_before_the_record_it_goes_by_itself(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::Snapshot);
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        let wanted = Capture { kind: Some(Kind::ProviderNative), ..wish(&lease) };
        let capturing = tokio::spawn(async move { ops::capture::capture(&berth, &caller, id, wanted).await });
        stuck.reached().await;
        assert_eq!(world.memory.snapshots().len(), 1, "it is there, and no row says so yet");
        world.advance(LAPSE);
        let other = world.another().await;
        crate::harness::settle(&other).await;
        ops::collect::delete_artifacts(&other).await.unwrap();
        assert!(world.memory.snapshots().is_empty(), "its name was in the ledger before it was");
        stuck.release();
        capturing.await.unwrap().expect_err("its claim is gone");
        until("the dead server's call is over", async || world.berth.work.under_way() == 0).await;
        assert_eq!(current(&world, &lease).await.map(|c| c.id), None);
    }

    async fn a_snapshot_that_no_row_names_is_swept_after_its_grace(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let kept = snapshot(&world, &lease).await.provider_ref.unwrap();
        let gone = snapshot_again_after_its_end(&world, &lease).await;
        let sweep = async |dry_run| {
            let report = ops::sweep::pass(&world.berth, dry_run).await.unwrap();
            report.items.into_iter().map(|item| (item.kind, item.provider_ref, item.action, item.reason)).collect::<Vec<_>>()
        };
        let told = |action, reason| [("snapshot", Some(gone.clone()), action, reason)];
        assert_eq!(sweep(false).await, told("skipped", "younger_than_the_grace"));
        world.advance(Duration::from_secs(121));
        assert_eq!(sweep(true).await, told("would_destroy", "no_row_names_it"));
        // Unknown is not absent, and not ours to end.
        world.faults.next(Verb::ListSnapshots, Fault::FailBefore(Failure::Transient));
        assert_eq!(sweep(false).await, [("snapshot", None, "skipped", "inventory_unknown")]);
        world.faults.next(Verb::DeleteSnapshot, Fault::FailBefore(Failure::Transient));
        assert_eq!(sweep(false).await, told("skipped", "the_provider_failed"));
        // A row that comes to name it while the pass is under way keeps it.
        let mut stuck = world.faults.hang_after(Verb::ListSnapshots);
        let berth = world.berth.clone();
        let passing = tokio::spawn(async move { ops::sweep::pass(&berth, false).await.unwrap().owned });
        stuck.reached().await;
        world.execute("UPDATE artifact SET status = 'stored' WHERE status = 'deleted'").await;
        stuck.release();
        assert_eq!((passing.await.unwrap(), world.memory.snapshots().len()), (3, 2), "the sandbox and both snapshots");
        let back = "UPDATE artifact SET status = 'deleted' WHERE NOT EXISTS (SELECT 1 FROM checkpoint k WHERE k.artifact_id = artifact.id)";
        world.execute(back).await;
        // The account was exchanged between the list and the deletion.
        let mut stuck = world.faults.hang_after(Verb::ListSnapshots);
        let berth = world.berth.clone();
        let passing = tokio::spawn(async move { ops::sweep::pass(&berth, false).await.unwrap() });
        stuck.reached().await;
        world.memory.rebind();
        stuck.release();
        assert_eq!((passing.await.unwrap().errors, world.memory.snapshots().len()), (1, 2));
        assert_eq!(sweep(false).await, told("destroyed", "no_row_names_it"));
        assert_eq!(world.memory.snapshots(), [kept]);
    }

    async fn one_pass_deletes_at_most_fifty_snapshots(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        for _ in 0..=ops::sweep::MOST_KILLS {
            world.memory.snapshot(&world.provider_ref(&lease).await, Uuid::now_v7()).await.unwrap();
        }
        world.advance(Duration::from_secs(121));
        let report = ops::sweep::pass(&world.berth, false).await.unwrap();
        assert_eq!((report.orphaned, report.terminated), (51, 50));
        assert_eq!(ops::sweep::pass(&world.berth, false).await.unwrap().terminated, 1);
    }

    async fn a_lost_answer_is_asked_for_again_under_the_same_name(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        world.faults.next(Verb::Snapshot, Fault::FailAfter(Failure::Indeterminate));
        let saved = snapshot(&world, &lease).await;
        assert_eq!(world.memory.snapshots(), [saved.provider_ref.unwrap()]);
    }

    async fn a_snapshot_is_never_all_that_is_left_of_a_box_that_goes(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        snapshot(&world, &lease).await;
        assert!(!world.sandbox(&lease).await.is_dirty());
        let destroy = ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() };
        world.release_with(&lease, destroy).await.unwrap();
        let left = current(&world, &lease).await.unwrap();
        assert_eq!(left.kind, Kind::PortableWorkspace);
        assert!(holds(&fetched(&world, &left).await, "saved"));
    }

    async fn a_release_may_ask_for_a_snapshot_of_what_stays(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        world.release_with(&lease, ReleaseRequest { checkpoint: Some(Save::ProviderNative), ..Default::default() }).await.unwrap();
        assert_eq!(current(&world, &lease).await.unwrap().kind, Kind::ProviderNative);
    }

    async fn a_fork_takes_portable_ones_only(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = snapshot(&world, &lease).await;
        assert_eq!(code(fork(&world, "other", "elsewhere", saved.id).await), Code::CheckpointUnavailable);
    }

    async fn a_recorded_name_of_an_own_snapshot_can_be_attached(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        let saved = snapshot(&world, &lease).await;
        let mut input = entry(&lease, Kind::ProviderNative, &format!("wa2:{:013}:{}", 1, "b".repeat(64)));
        input.provider_ref.clone_from(&saved.provider_ref);
        let (named, _) = record(&world, &lease, input).await.unwrap();
        assert!(attach(&world, &lease, 1, named.id, true).await.unwrap().current);
        let probed = world.memory.probe_snapshot(&world.memory.binding().await.unwrap(), saved.provider_ref.as_ref().unwrap()).await;
        assert!(probed.unwrap());
    }
}
