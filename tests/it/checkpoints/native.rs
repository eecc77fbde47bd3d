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
