//! What comes back is exactly what was saved, or the caller is told by a code why not; never a wrong workspace, never an older one.

use berth::error::Code;
use berth::model::checkpoint::Status as CheckpointStatus;
use berth::model::lease::{How, OnUnavailable};
use berth::ops::input::{ReleaseRequest, Unsaved};
use berth::provider::Provider;
use berth::provider::faults::Verb;

use super::*;
use crate::both;
use crate::harness::{World, code};

fn destroy() -> ReleaseRequest {
    ReleaseRequest { disposition: Some(berth::model::lease::Disposition::Destroy), ..Default::default() }
}

/// Two revisions, the later one current, and nothing live.
async fn two_revisions(world: &World) -> (LeaseView, Checkpoint, Checkpoint) {
    let lease = world.acquire("run", "s").await.unwrap();
    world.put(&lease, "f", "old").await.unwrap();
    let old = world.capture(&lease).await.unwrap();
    world.put(&lease, "f", "new").await.unwrap();
    let new = world.capture(&lease).await.unwrap();
    world.release_with(&lease, destroy()).await.unwrap();
    (lease, old, new)
}

/// An acquire is refused with this code and makes nothing; older and empty are chosen only when they are asked for.
async fn refused(world: &World, lease: &LeaseView, old: &Checkpoint, new: &Checkpoint, integrity: &str) {
    let made = world.memory.calls(Verb::Ensure);
    let told = world.acquire("next", "s").await.expect_err("refused");
    assert_eq!((told.code, told.facts["integrity_code"].as_str()), (Code::CheckpointIntegrity, Some(integrity)));
    assert_eq!(world.memory.calls(Verb::Ensure), made, "verified before anything is made");
    assert_eq!(current(world, lease).await.unwrap().id, new.id, "the pointer did not move");
    let mut input = want("older", Some("s"));
    input.on_unavailable = Some(OnUnavailable::OlderRevision);
    let older = world.acquire_with(input).await.unwrap().0;
    assert_eq!(world.get(&older, "f").await.unwrap(), "old");
    let from = older.lease.acquisition.as_ref().unwrap().restored_from.clone().unwrap();
    assert_eq!(from.checkpoint_id, old.id, "and the answer says which");
    assert!(world.sandbox(&older).await.sandbox.diverged, "knowingly another revision than the pointer's");
}

both! {
    async fn a_flipped_byte(world) {
        let (lease, old, new) = two_revisions(&world).await;
        let path = object(&world, &new);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        refused(&world, &lease, &old, &new, "archive_hash_mismatch").await;
    }

    async fn a_truncated_object(world) {
        let (lease, old, new) = two_revisions(&world).await;
        let path = object(&world, &new);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        refused(&world, &lease, &old, &new, "archive_hash_mismatch").await;
    }

    async fn another_archives_bytes_under_this_key(world) {
        let (lease, old, new) = two_revisions(&world).await;
        std::fs::copy(object(&world, &old), object(&world, &new)).unwrap();
        refused(&world, &lease, &old, &new, "archive_hash_mismatch").await;
    }

    async fn a_missing_object(world) {
        let (lease, old, new) = two_revisions(&world).await;
        std::fs::remove_file(object(&world, &new)).unwrap();
        refused(&world, &lease, &old, &new, "archive_missing").await;
    }

    async fn a_workspace_that_is_not_what_was_saved_is_never_used(world) {
        let (lease, _, new) = two_revisions(&world).await;
        let mut stuck = world.faults.hang_after(Verb::WriteTree);
        let (berth, caller) = (world.berth.clone(), world.caller.clone());
        let acquiring = tokio::spawn(async move { ops::acquire::acquire(&berth, &caller, want("next", Some("s"))).await });
        stuck.reached().await;
        // The provider put back something else than it was given.
        let provider_ref = world.memory.inventory().remove(0).0;
        world.memory.remove_file(&provider_ref, 1, "f", false).await.unwrap();
        stuck.release();
        let told = acquiring.await.unwrap().expect_err("refused");
        assert_eq!((told.code, told.facts["integrity_code"].as_str()), (Code::CheckpointIntegrity, Some("workspace_fingerprint_mismatch")));
        world.settle().await;
        assert_eq!(current(&world, &lease).await.unwrap().id, new.id);
        world.assert_ledger_is_inventory().await;
    }

    async fn an_empty_start_is_chosen_only_when_it_is_asked_for(world) {
        let (lease, _, new) = two_revisions(&world).await;
        std::fs::remove_file(object(&world, &new)).unwrap();
        let mut input = want("empty", Some("s"));
        input.on_unavailable = Some(OnUnavailable::Empty);
        let empty = world.acquire_with(input).await.unwrap().0;
        assert_eq!(code(world.get(&empty, "f").await), Code::FileNotFound);
        assert!(world.sandbox(&empty).await.sandbox.diverged);
        assert_eq!(current(&world, &lease).await.unwrap().id, new.id, "what is lost is still named");
        world.put(&empty, "f", "started over").await.unwrap();
        world.release_with(&empty, destroy()).await.unwrap();
        assert_eq!(current(&world, &lease).await.unwrap().id, new.id, "an automatic capture does not take the pointer");
        assert!(world.checkpoints(&lease).await.iter().any(|c| c.status == CheckpointStatus::Recorded), "and is recorded");
    }

    async fn a_damaged_archive_leaves_a_live_lease_as_it_is(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "two").await.unwrap();
        world.capture(&lease).await.unwrap();
        std::fs::write(object(&world, &first), b"not an archive").unwrap();
        let told = restore(&world, &lease, first.id, Unsaved::Fail).await.expect_err("refused");
        assert_eq!((told.code, told.facts["integrity_code"].as_str()), (Code::CheckpointIntegrity, Some("archive_hash_mismatch")));
        world.settle().await;
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.generation, world.get(&after, "f").await.unwrap().as_str()), (1, "two"));
        world.put(&after, "g", "goes on").await.unwrap();
        world.assert_ledger_is_inventory().await;
    }

    async fn a_fork_of_damaged_bytes_is_refused_with_nothing_made(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "one").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        std::fs::remove_file(object(&world, &first)).unwrap();
        let told = fork(&world, "other", "elsewhere", first.id).await.expect_err("refused");
        assert_eq!((told.code, told.facts["integrity_code"].as_str()), (Code::CheckpointIntegrity, Some("archive_missing")));
        world.settle().await;
        world.assert_ledger_is_inventory().await;
        assert_eq!(world.acquire("other", "elsewhere").await.unwrap().lease.acquisition.as_ref().unwrap().outcome, How::Created);
    }

    async fn what_is_excluded_is_left_out_and_the_rest_comes_back_equal(world) {
        world.environment("lean", |e| e.checkpoint_policy.exclude = Some(vec!["node_modules".to_owned(), "target".to_owned()])).await;
        let mut input = want("run", Some("s"));
        "lean".clone_into(&mut input.environment);
        let lease = world.acquire_with(input.clone()).await.unwrap().0;
        world.put(&lease, "src/main.rs", "kept").await.unwrap();
        world.put(&lease, "node_modules/m/index.js", "left out").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        let tar = fetched(&world, &saved).await;
        assert!(holds(&tar, "src/main.rs") && !holds(&tar, "node_modules"));
        world.release_with(&lease, destroy()).await.unwrap();
        "next".clone_into(&mut input.holder);
        let next = world.acquire_with(input).await.unwrap().0;
        assert_eq!(world.get(&next, "src/main.rs").await.unwrap(), "kept");
        assert_eq!(code(world.get(&next, "node_modules/m/index.js").await), Code::FileNotFound);
        assert!(!world.sandbox(&next).await.is_dirty());
    }
}
