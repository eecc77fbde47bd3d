//! The gate between writes and captures: they wait for each other, bounded, and clean means that everything written is saved.

use std::sync::Arc;
use std::time::Duration;

use berth::error::{Code, Result};
use berth::model::checkpoint::{Checkpoint, Kind as CheckpointKind, Status as CheckpointStatus};
use berth::ops::input::{Capture, Waiting};
use berth::ops::view::LeaseView;
use berth::ops::{self, Berth};
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use tokio::task::JoinHandle;

use crate::both;
use crate::harness::{Db, World, carried, code, command, quick, until};

fn whole(lease: &LeaseView, others: Duration) -> Capture {
    Capture {
        carried: carried(lease),
        kind: Some(CheckpointKind::PortableWorkspace),
        attach: true,
        source_turn_id: None,
        source_tool_call_id: None,
        waiting: Waiting { others, respond_async: false },
    }
}

/// A capture that runs while the test goes on.
fn capturing(berth: &Arc<Berth>, world: &World, lease: &LeaseView, others: Duration) -> JoinHandle<Result<Checkpoint>> {
    let (berth, caller, id, input) = (berth.clone(), world.caller.clone(), lease.lease.id, whole(lease, others));
    tokio::task::spawn(async move { ops::capture::capture(&berth, &caller, id, input).await.map(|(checkpoint, _)| checkpoint) })
}

/// What the current checkpoint alone brings back.
async fn restored(world: &World, lease: &LeaseView) -> LeaseView {
    let input = ops::input::ReleaseRequest {
        checkpoint: Some(berth::model::lease::Save::None),
        disposition: Some(berth::model::lease::Disposition::Destroy),
        ..Default::default()
    };
    world.release_with(lease, input).await.unwrap();
    world.acquire("reader", "s").await.unwrap()
}

const PATIENT: Duration = Duration::from_secs(8);

both! {
    async fn a_command_waits_for_a_capture_and_goes_on(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "before", "x").await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::ReadTree);
        let capture = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.reached().await;
        let (exec, put) = (world.running(&lease, &["write", "after", "x"]), world.running(&lease, &["write", "late", "x"]));
        assert_eq!(code(capturing(&world.berth, &world, &lease, Duration::ZERO).await.unwrap()), Code::CaptureInProgress);
        assert_eq!(world.memory.calls(Verb::Exec), 0, "nothing is sent while the gate is closed");
        stuck.release();
        let checkpoint = capture.await.unwrap().unwrap();
        let seqs = [exec.await.unwrap().unwrap().operation.workspace_seq, put.await.unwrap().unwrap().operation.workspace_seq];
        assert!(checkpoint.current && seqs.iter().all(|seq| Some(*seq) > checkpoint.workspace_seq), "they came after it");
        assert!(world.sandbox(&lease).await.is_dirty(), "and made it dirty again");
        let next = restored(&world, &lease).await;
        assert_eq!(world.get(&next, "before").await.unwrap(), "x");
        assert_eq!(code(world.get(&next, "after").await), Code::FileNotFound);
    }

    async fn a_capture_waits_for_a_command(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let exec = world.started(&lease, &["sh", "-c", "sleep 300; write f done"]).await;
        let checkpoint = capturing(&world.berth, &world, &lease, PATIENT).await.unwrap().unwrap();
        assert_eq!(Some(exec.await.unwrap().unwrap().operation.workspace_seq), checkpoint.workspace_seq);
        assert!(!world.sandbox(&lease).await.is_dirty());
        let next = restored(&world, &lease).await;
        assert_eq!(world.get(&next, "f").await.unwrap(), "done", "what the command wrote last is in it");
    }

    async fn a_capture_that_may_not_wait_is_told_what_runs(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let exec = world.started(&lease, &["sh", "-c", "sleep 60000"]).await;
        assert_eq!(code(capturing(&world.berth, &world, &lease, Duration::ZERO).await.unwrap()), Code::OperationsInProgress);
        assert!(world.exec(&lease, &["true"]).await.is_ok(), "the gate is open again");
        assert_eq!(world.checkpoints(&lease).await[0].status, CheckpointStatus::Failed);
        exec.abort();
    }

    async fn a_second_capture_waits_for_the_first_or_is_told(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let first = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.reached().await;
        assert_eq!(code(capturing(&world.berth, &world, &lease, Duration::ZERO).await.unwrap()), Code::CaptureInProgress);
        let second = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.release();
        let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        assert_ne!(first.id, second.id);
        let current: Vec<_> = world.checkpoints(&lease).await.into_iter().filter(|c| c.current).map(|c| c.id).collect();
        assert_eq!(current, [second.id]);
    }

    async fn a_capture_that_fails_leaves_it_dirty_and_the_gate_open(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        world.faults.next(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        assert_eq!(code(world.capture(&lease).await), Code::ProviderUnavailable);
        assert!(world.sandbox(&lease).await.is_dirty());
        assert!(world.exec(&lease, &["true"]).await.is_ok());
        assert!(world.capture(&lease).await.unwrap().current);
        assert!(!world.sandbox(&lease).await.is_dirty());
    }

    async fn writers_and_captures_at_once_lose_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let captures: Vec<_> = (0..4).map(|_| capturing(&world.berth, &world, &lease, PATIENT)).collect();
        let writers: Vec<_> = (0..16).map(|i| world.running(&lease, &["write", &format!("f{i}"), &i.to_string()])).collect();
        let more: Vec<_> = (0..4).map(|_| capturing(&world.berth, &world, &lease, Duration::from_millis(1))).collect();
        let mut written = Vec::new();
        for (i, writer) in writers.into_iter().enumerate() {
            match writer.await.unwrap() {
                Ok(exec) => {
                    assert_eq!(exec.operation.exit_code, Some(0));
                    written.push(i);
                }
                Err(error) => assert_eq!(error.code, Code::CaptureInProgress, "{error}"),
            }
        }
        for capture in captures.into_iter().chain(more) {
            match capture.await.unwrap() {
                Ok(checkpoint) => assert_eq!(checkpoint.status, CheckpointStatus::Attached),
                Err(error) => assert!(matches!(error.code, Code::CaptureInProgress | Code::OperationsInProgress), "{error}"),
            }
        }
        assert!(!written.is_empty());
        let last = world.capture(&lease).await.unwrap();
        assert!(last.current);
        assert_eq!(last.tree.unwrap().files, i64::try_from(written.len()).unwrap(), "the last capture is complete");
        assert!(!world.sandbox(&lease).await.is_dirty());
        let next = restored(&world, &lease).await;
        for i in written {
            assert_eq!(world.get(&next, &format!("f{i}")).await.unwrap(), i.to_string());
        }
    }

    async fn a_capture_whose_claim_was_lost_never_publishes(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "old").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "older").await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::ReadTree);
        let lost = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.reached().await;
        world.advance(Duration::from_secs(31));
        let other = world.another().await;
        // Another server lets a write in: the gate's claim had lapsed.
        let exec = ops::exec::run(&other, &world.caller, lease.lease.id, command(1, &["write", "f", "new"])).await.unwrap().0;
        assert_eq!(exec.operation.exit_code, Some(0));
        stuck.release();
        assert!(lost.await.unwrap().is_err(), "it cannot say that it has saved what is there");
        until("the former capturer is done", async || world.berth.work.under_way() == 0).await;
        let checkpoints = world.checkpoints(&lease).await;
        let current: Vec<_> = checkpoints.iter().filter(|c| c.current).map(|c| c.id).collect();
        assert_eq!(current, [first.id], "the pointer has not moved");
        assert_eq!(checkpoints[0].status, CheckpointStatus::Failed);
        assert!(world.sandbox(&lease).await.is_dirty());
        assert!(world.capture(&lease).await.unwrap().current);
        let next = restored(&world, &lease).await;
        assert_eq!(world.get(&next, "f").await.unwrap(), "new");
    }

    async fn a_capturer_that_died_closes_the_gate_no_longer_than_its_claim(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let lost = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.reached().await;
        world.advance(Duration::from_secs(31));
        let other = world.another().await;
        let second = capturing(&other, &world, &lease, PATIENT).await.unwrap().unwrap();
        assert!(second.current);
        stuck.release();
        assert!(lost.await.unwrap().is_err());
        let current: Vec<_> = world.checkpoints(&lease).await.into_iter().filter(|c| c.current).map(|c| c.id).collect();
        assert_eq!(current, [second.id]);
        assert!(!world.sandbox(&lease).await.is_dirty());
    }

    async fn a_workspace_that_changes_under_a_capture_is_not_called_saved(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let mut stuck = world.faults.hang_after(Verb::ReadTree);
        let capture = capturing(&world.berth, &world, &lease, PATIENT);
        stuck.reached().await;
        // Behind Berth's back, as by a process nobody knows of.
        let options = berth::provider::PutOptions { mode: None, parents: false };
        let body = berth::provider::stream::from_bytes(bytes::Bytes::from_static(b"sneaked in"));
        berth::provider::Provider::write_file(&world.memory, &world.provider_ref(&lease).await, 1, "g", body, options).await.unwrap();
        stuck.release();
        let checkpoint = capture.await.unwrap().unwrap();
        assert_eq!(world.memory.calls(Verb::ReadTree), 2, "taken again");
        assert_eq!(checkpoint.tree.unwrap().files, 2, "what was called saved is what is there");
    }
}

/// The bound of a write's patience, made small.
async fn impatient(db: Db) {
    let world = World::with(db, ops::Settings { gate_wait: Duration::from_millis(300), ..quick() }).await;
    let lease = world.acquire("run", "s").await.unwrap();
    world.put(&lease, "f", "x").await.unwrap();
    let mut stuck = world.faults.hang(Verb::ReadTree);
    let capture = capturing(&world.berth, &world, &lease, PATIENT);
    stuck.reached().await;
    let seq = world.sandbox(&lease).await.sandbox.workspace_seq;
    assert_eq!(code(world.exec(&lease, &["true"]).await), Code::CaptureInProgress);
    assert_eq!(code(world.put(&lease, "g", "x").await), Code::CaptureInProgress);
    assert_eq!(world.sandbox(&lease).await.sandbox.workspace_seq, seq, "nothing was admitted");
    assert_eq!(world.get(&lease, "f").await.unwrap(), "x", "reads go on");
    stuck.release();
    assert!(capture.await.unwrap().unwrap().current);
    assert!(!world.sandbox(&lease).await.is_dirty(), "what was refused has written nothing");
    assert!(world.exec(&lease, &["true"]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_told_capture_in_progress_after_its_patience_sqlite() {
    impatient(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_told_capture_in_progress_after_its_patience_postgres() {
    impatient(Db::Postgres).await;
}
