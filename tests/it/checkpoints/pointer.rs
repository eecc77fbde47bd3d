//! Who may move the pointer, and what that means for the live workspace.

use berth::error::Code;
use berth::model::checkpoint::{Kind as CheckpointKind, Status as CheckpointStatus};
use berth::ops::input::{ReleaseRequest, Unsaved};
use berth::ops::{Caller, Credential};

use super::*;
use crate::both;
use crate::harness::code;

both! {
    async fn a_foreign_sandboxs_checkpoint_is_unknown_here_and_moves_nothing(world) {
        let (a, b) = (world.acquire("a", "one").await.unwrap(), world.acquire("b", "two").await.unwrap());
        world.put(&a, "f", "of a").await.unwrap();
        world.put(&b, "f", "of b").await.unwrap();
        let (of_a, of_b) = (world.capture(&a).await.unwrap(), world.capture(&b).await.unwrap());
        assert_eq!(code(attach(&world, &a, 1, of_b.id, true).await), Code::NotFound);
        assert_eq!(code(rollback(&world, &a, 1, of_b.id).await), Code::NotFound);
        assert_eq!(code(restore(&world, &a, of_b.id, Unsaved::Fail).await), Code::NotFound);
        assert_eq!(code(ops::collect::delete(&world.berth, &world.caller, a.lease.sandbox_id, of_b.id).await), Code::NotFound);
        assert_eq!(current(&world, &a).await.unwrap().id, of_a.id);
        assert_eq!(current(&world, &b).await.unwrap().id, of_b.id);
    }

    async fn another_generation_can_neither_attach_nor_roll_back_nor_record(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let loose = unattached(&world, &lease).await;
        let next = restore(&world, &lease, first.id, Unsaved::Fail).await.unwrap();
        assert_eq!(next.lease.generation, 2);
        for carried in [1, 3] {
            assert_eq!(code(attach(&world, &next, carried, loose.id, false).await), Code::StaleGeneration);
            assert_eq!(code(rollback(&world, &next, carried, first.id).await), Code::StaleGeneration);
        }
        assert_eq!(code(attach(&world, &next, 2, loose.id, false).await), Code::StaleGeneration, "the row is of an older one");
        let stored = upload(&world, &next, fetched(&world, &first).await).await.unwrap();
        let mut input = entry(&next, CheckpointKind::PortableWorkspace, &stored.workspace_revision);
        input.generation = 1;
        assert_eq!(code(record(&world, &next, input.clone()).await), Code::StaleGeneration);
        assert_eq!(current(&world, &next).await.unwrap().id, first.id);
        input.generation = 2;
        assert!(record(&world, &next, input).await.unwrap().1);
    }

    async fn while_a_writer_lives_the_pointer_is_its_own(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let id = lease.lease.sandbox_id;
        let other = world.acquire("other", "elsewhere").await.unwrap();
        for named in [None, Some(other.lease.id)] {
            let input = Rollback { generation: 1, checkpoint_id: first.id, lease_id: named };
            assert_eq!(code(ops::rollback::rollback(&world.berth, &world.caller, id, input).await), Code::LeaseConflict);
            let input = Attach { generation: 1, move_back: true, lease_id: named };
            assert_eq!(code(ops::attach::attach(&world.berth, &world.caller, id, first.id, input).await), Code::LeaseConflict);
            let body = Box::pin(Cursor::new(fetched(&world, &first).await));
            assert_eq!(code(ops::upload::upload(&world.berth, &world.caller, id, named, body, None).await), Code::LeaseConflict);
        }
        world.release(&lease).await.unwrap();
        let input = Rollback { generation: 1, checkpoint_id: first.id, lease_id: None };
        assert!(ops::rollback::rollback(&world.berth, &world.caller, id, input).await.unwrap().1, "with none live, any key that may write");
    }

    async fn an_epoch_that_was_taken_over_moves_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let claims = berth::model::token::Claims { lease: lease.lease.id, epoch: 1, generation: 1 };
        let former = Caller { organization: world.caller.organization, credential: Credential::Token(claims), named: None };
        let mut input = want("run", Some("s"));
        input.on_same_holder = berth::model::lease::OnSameHolder::TakeOver;
        world.acquire_with(input).await.unwrap();
        let input = Rollback { generation: 1, checkpoint_id: first.id, lease_id: None };
        assert_eq!(code(ops::rollback::rollback(&world.berth, &former, lease.lease.sandbox_id, input).await), Code::LeaseTakenOver);
        let input = Attach { generation: 1, move_back: true, lease_id: None };
        assert_eq!(code(ops::attach::attach(&world.berth, &former, lease.lease.sandbox_id, first.id, input).await), Code::LeaseTakenOver);
        assert_eq!(code(ops::capture::capture(&world.berth, &former, lease.lease.id, wish(&lease)).await), Code::LeaseTakenOver);
        assert_eq!(current(&world, &lease).await.unwrap().id, first.id);
    }

    async fn recording_again_finds_the_same_row_and_a_different_one_is_a_conflict(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let stored = upload(&world, &lease, fetched(&world, &first).await).await.unwrap();
        let input = entry(&lease, CheckpointKind::PortableWorkspace, &stored.workspace_revision);
        let (made, new) = record(&world, &lease, input.clone()).await.unwrap();
        assert!(new && made.workspace_seq.is_none());
        attach(&world, &lease, 1, made.id, false).await.unwrap();
        assert!(world.sandbox(&lease).await.sandbox.diverged, "it was not captured from this workspace");
        let (again, new) = record(&world, &lease, input.clone()).await.unwrap();
        assert!(!new && again.id == made.id && again.attached_at.is_some());
        let mut other = input.clone();
        other.generation = 2;
        assert_eq!(code(record(&world, &lease, other).await), Code::RevisionConflict);
        let missing = format!("wa1:{:013}:{}", 1, "0".repeat(64));
        assert_eq!(code(record(&world, &lease, entry(&lease, CheckpointKind::PortableWorkspace, &missing)).await), Code::CheckpointUnavailable);
    }

    async fn a_recorded_native_ref_is_claimed_and_never_owned(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "mine").await.unwrap();
        let mine = world.capture(&lease).await.unwrap();
        let mut input = entry(&lease, CheckpointKind::ProviderNative, &format!("wa2:{:013}:{}", 1, "a".repeat(64)));
        input.provider_ref = Some("im-of-another-organization".to_owned());
        let (claimed, _) = record(&world, &lease, input).await.unwrap();
        assert_eq!(code(attach(&world, &lease, 1, claimed.id, true).await), Code::CheckpointUnavailable);
        let ensured = world.memory.calls(berth::provider::faults::Verb::Ensure);
        restore(&world, &lease, claimed.id, Unsaved::Fail).await.expect_err("never restored");
        assert_eq!(code(fork(&world, "other", "elsewhere", claimed.id).await), Code::CheckpointUnavailable);
        assert_eq!(world.memory.calls(berth::provider::faults::Verb::Ensure), ensured, "nothing was made for it");
        assert_eq!(current(&world, &lease).await.unwrap().id, mine.id);
        let before = world.berth.store.read().await.unwrap().now().await.unwrap().after(DAY);
        let taken = ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, before, 10).await.unwrap();
        assert_eq!(taken.len(), 1, "its row may go");
        world.advance(DAY * 2);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!(objects(&world).await, 1, "and nothing was deleted for it");
    }

    async fn rejected_work_never_comes_back_by_itself_and_can_still_be_fetched(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "good").await.unwrap();
        let good = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "rejected").await.unwrap();
        let bad = world.capture(&lease).await.unwrap();
        let (now, moved) = rollback(&world, &lease, 1, bad.id).await.unwrap();
        assert_eq!((now.unwrap().id, moved), (good.id, true));
        assert!(world.sandbox(&lease).await.sandbox.diverged);
        assert!(!rollback(&world, &lease, 1, bad.id).await.unwrap().1, "again: nothing");
        world.put(&lease, "g", "more of it").await.unwrap();
        world.release(&lease).await.unwrap();
        world.settle().await;
        assert_eq!(current(&world, &lease).await.unwrap().id, good.id, "the automatic capture of the end is not attached");
        let recorded = world.checkpoints(&lease).await.into_iter().find(|c| c.status == CheckpointStatus::Recorded).expect("but it is recorded");
        assert!(holds(&fetched(&world, &recorded).await, "more of it"));
        assert!(holds(&fetched(&world, &row(&world, bad.id).await.unwrap()).await, "rejected"));
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "good");
        assert_eq!(code(world.get(&next, "g").await), Code::FileNotFound);
        assert!(!world.sandbox(&next).await.sandbox.diverged);
    }

    async fn an_explicit_capture_by_the_holder_ends_a_divergence(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let (none, moved) = rollback(&world, &lease, 1, first.id).await.unwrap();
        assert!(none.is_none() && moved, "a rollback may end at none");
        let again = world.capture(&lease).await.unwrap();
        assert!(again.current);
        let sandbox = world.sandbox(&lease).await;
        assert!(!sandbox.sandbox.diverged && !sandbox.is_dirty());
    }

    async fn an_attached_one_that_is_not_current_is_moved_back_to_only_when_said(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        let second = world.capture(&lease).await.unwrap();
        assert_eq!(attach(&world, &lease, 1, second.id, false).await.unwrap().id, second.id, "already current");
        assert_eq!(code(attach(&world, &lease, 1, first.id, false).await), Code::Superseded);
        assert_eq!(current(&world, &lease).await.unwrap().id, second.id);
        assert!(attach(&world, &lease, 1, first.id, true).await.unwrap().current);
        assert!(world.sandbox(&lease).await.is_dirty(), "the live workspace is ahead of it");
    }

    async fn a_restore_removes_what_a_newer_revision_added(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "dir/added", "two").await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        assert_eq!(code(restore(&world, &lease, first.id, Unsaved::Fail).await), Code::UnsavedChanges);
        let back = restore(&world, &lease, first.id, Unsaved::Capture).await.unwrap();
        assert_eq!((back.lease.id, back.lease.generation), (lease.lease.id, 2));
        assert_eq!(world.get(&back, "f").await.unwrap(), "one");
        assert_eq!(code(world.get(&back, "dir/added").await), Code::FileNotFound);
        let from = back.lease.acquisition.as_ref().unwrap().restored_from.clone().unwrap();
        assert_eq!((from.checkpoint_id, from.entries, from.bytes, from.verification.as_str()), (first.id, 1, 3, "content"));
        assert!(world.checkpoints(&back).await.iter().any(|c| c.id != first.id && c.status == CheckpointStatus::Attached), "what was unsaved is saved");
        assert!(!world.sandbox(&back).await.is_dirty());
        world.settle().await;
        world.assert_ledger_is_inventory().await;
    }

    async fn a_fork_has_its_own_row_on_the_same_bytes_which_go_with_the_last_row(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "shared").await.unwrap();
        let parent = world.capture(&lease).await.unwrap();
        let forked = fork(&world, "other", "fork", parent.id).await.unwrap();
        let child = current(&world, &forked).await.unwrap();
        assert_eq!((child.parent_id, child.artifact_id), (Some(parent.id), parent.artifact_id));
        assert_ne!((child.id, child.sandbox_id), (parent.id, parent.sandbox_id));
        assert!(!world.sandbox(&forked).await.is_dirty());
        assert_eq!(code(ops::collect::delete(&world.berth, &world.caller, lease.lease.sandbox_id, parent.id).await), Code::CheckpointInUse);
        world.put(&lease, "f", "moved on").await.unwrap();
        world.capture(&lease).await.unwrap();
        ops::collect::delete(&world.berth, &world.caller, lease.lease.sandbox_id, parent.id).await.unwrap();
        world.advance(DAY * 2);
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert!(holds(&fetched(&world, &child).await, "shared"), "the fork's row keeps the bytes");
        world.settle().await;
        let again = world.acquire("other", "fork").await.unwrap();
        assert_eq!(world.get(&again, "f").await.unwrap(), "shared");
        world.put(&again, "f", "own").await.unwrap();
        let own = world.capture(&again).await.unwrap();
        ops::collect::delete(&world.berth, &world.caller, again.lease.sandbox_id, child.id).await.unwrap();
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert!(!object(&world, &child).exists() && object(&world, &own).exists(), "the last row is gone, and the bytes with it");
    }

    async fn collect_clamps_and_spares_what_is_needed(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        let loose = [unattached(&world, &lease).await, unattached(&world, &lease).await];
        let sandbox = lease.lease.sandbox_id;
        let now = world.berth.store.read().await.unwrap().now().await.unwrap();
        for limit in [0, -1, i64::MIN] {
            assert!(ops::collect::collect(&world.berth, &world.caller, sandbox, now.after(DAY), limit).await.unwrap().is_empty());
        }
        assert!(ops::collect::collect(&world.berth, &world.caller, sandbox, loose[0].created_at, 10).await.unwrap().is_empty(), "not before the cutoff");
        let taken = ops::collect::collect(&world.berth, &world.caller, sandbox, now.after(DAY), 1).await.unwrap();
        assert_eq!(taken, [loose[0].workspace_revision.clone().unwrap()], "oldest first");
        let taken = ops::collect::collect(&world.berth, &world.caller, sandbox, now.after(DAY), i64::MAX).await.unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!(current(&world, &lease).await.unwrap().id, first.id, "never the current one");
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!(objects(&world).await, 1);
    }

    async fn what_was_rejected_is_collected_by_the_time_of_its_rejection(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "good").await.unwrap();
        let good = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "bad").await.unwrap();
        let bad = world.capture(&lease).await.unwrap();
        world.advance(DAY / 2);
        assert!(rollback(&world, &lease, 1, bad.id).await.unwrap().1);
        let (still, moved) = rollback(&world, &lease, 1, bad.id).await.unwrap();
        assert_eq!((still.unwrap().id, moved), (good.id, false), "again is a no-op that tells what is current");
        let cutoff = bad.created_at.after(DAY / 4);
        let collect = async |before| ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, before, 10).await.unwrap();
        assert!(collect(cutoff).await.is_empty(), "old it is, but not long rejected");
        assert_eq!(collect(cutoff.after(DAY)).await.len(), 1);
    }

    async fn collecting_and_attaching_at_once_never_take_what_the_pointer_names(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        for _ in 0..8 {
            let loose = unattached(&world, &lease).await;
            let before = loose.created_at.after(DAY);
            let (attached, collected) = tokio::join!(
                attach(&world, &lease, 1, loose.id, true),
                ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, before, 10)
            );
            let taken = collected.unwrap().contains(loose.workspace_revision.as_ref().unwrap());
            assert_eq!(attached.is_ok(), !taken, "one of them was first");
            assert_eq!(current(&world, &lease).await.map(|c| c.id) == Some(loose.id), !taken);
        }
        assert_at_rest(&world, &lease).await;
    }

    async fn nothing_a_restore_is_filled_from_is_collected_under_it(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "wanted").await.unwrap();
        let wanted = unattached(&world, &lease).await;
        world.put(&lease, "f", "later").await.unwrap();
        world.capture(&lease).await.unwrap();
        let mut stuck = world.faults.hang_after(berth::provider::faults::Verb::Ensure);
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        let input = Restore { carried: carried(&lease), checkpoint_id: wanted.id, unsaved_changes: Unsaved::Fail, waiting: Waiting::default() };
        let restoring = tokio::spawn(async move { ops::restore::restore(&berth, &caller, id, input).await });
        stuck.reached().await;
        let now = world.berth.store.read().await.unwrap().now().await.unwrap();
        assert!(ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, now.after(DAY), 10).await.unwrap().is_empty());
        assert_eq!(code(ops::collect::delete(&world.berth, &world.caller, lease.lease.sandbox_id, wanted.id).await), Code::CheckpointInUse);
        stuck.release();
        let back = restoring.await.unwrap().unwrap().0;
        assert_eq!(world.get(&back, "f").await.unwrap(), "wanted");
    }

    async fn a_release_that_discards_is_the_consent_and_the_pointer_stays(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "lost").await.unwrap();
        let discard = ReleaseRequest { disposition: Some(berth::model::lease::Disposition::Destroy), discard_workspace: true, ..Default::default() };
        world.release_with(&lease, discard).await.unwrap();
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!((world.get(&next, "f").await.unwrap().as_str(), current(&world, &next).await.unwrap().id), ("one", first.id));
    }
}
