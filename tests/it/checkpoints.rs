//! The work is never lost and never wrong: the pointer, captures, restores and the archives behind them.

mod crash;
mod elsewhere;
mod integrity;
mod native;
mod pointer;
mod receipts;
mod required;
mod retention;
mod traces;
mod writers;

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth::error::Result;
use berth::model::checkpoint::{Checkpoint, Kind};
use berth::ops::input::{Attach, Capture, Record, Restore, Rollback, Unsaved, Waiting};
use berth::ops::upload::Uploaded;
use berth::ops::view::LeaseView;
use berth::ops::{self, Berth};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

use crate::harness::{World, carried, want};

const TTL: Duration = Duration::from_secs(3601);
/// Longer than a claim lasts without a renewal.
const LAPSE: Duration = Duration::from_secs(31);
const DAY: Duration = Duration::from_secs(86_400);

/// A portable capture that waits for others as long as a test may.
fn wish(lease: &LeaseView) -> Capture {
    Capture {
        carried: carried(lease),
        kind: Some(Kind::PortableWorkspace),
        attach: true,
        source_turn_id: None,
        source_tool_call_id: None,
        waiting: Waiting::default(),
    }
}

async fn capture_at(server: &Arc<Berth>, world: &World, lease: &LeaseView, wish: Capture) -> Result<Checkpoint> {
    ops::capture::capture(server, &world.caller, lease.lease.id, wish).await.map(|(checkpoint, _)| checkpoint)
}

async fn unattached(world: &World, lease: &LeaseView) -> Checkpoint {
    capture_at(&world.berth, world, lease, Capture { attach: false, ..wish(lease) }).await.unwrap()
}

async fn attach(world: &World, lease: &LeaseView, generation: i64, checkpoint: Uuid, move_back: bool) -> Result<Checkpoint> {
    let input = Attach { generation, move_back, lease_id: Some(lease.lease.id) };
    ops::attach::attach(&world.berth, &world.caller, lease.lease.sandbox_id, checkpoint, input).await
}

async fn rollback(world: &World, lease: &LeaseView, generation: i64, rejected: Uuid) -> Result<(Option<Checkpoint>, bool)> {
    let input = Rollback { generation, checkpoint_id: rejected, lease_id: Some(lease.lease.id) };
    ops::rollback::rollback(&world.berth, &world.caller, lease.lease.sandbox_id, input).await
}

async fn restore(world: &World, lease: &LeaseView, checkpoint: Uuid, unsaved_changes: Unsaved) -> Result<LeaseView> {
    let input = Restore { carried: carried(lease), checkpoint_id: checkpoint, unsaved_changes, waiting: Waiting::default() };
    ops::restore::restore(&world.berth, &world.caller, lease.lease.id, input).await.map(|(view, _)| view)
}

async fn upload(world: &World, lease: &LeaseView, bytes: Vec<u8>) -> Result<Uploaded> {
    let named = Some(lease.lease.id);
    ops::upload::upload(&world.berth, &world.caller, lease.lease.sandbox_id, named, Box::pin(Cursor::new(bytes)), None).await
}

fn entry(lease: &LeaseView, kind: Kind, workspace_revision: &str) -> Record {
    Record {
        generation: lease.lease.generation,
        kind,
        workspace_revision: workspace_revision.to_owned(),
        provider_ref: None,
        source_turn_id: None,
        source_tool_call_id: None,
        lease_id: Some(lease.lease.id),
    }
}

async fn record(world: &World, lease: &LeaseView, input: Record) -> Result<(Checkpoint, bool)> {
    ops::record::record(&world.berth, &world.caller, lease.lease.sandbox_id, input).await
}

/// The next holder of the scope, filled from a checkpoint it names.
async fn fork(world: &World, holder: &str, session: &str, from: Uuid) -> Result<LeaseView> {
    let mut input = want(holder, Some(session));
    input.restore_checkpoint_id = Some(from);
    world.acquire_with(input).await.map(|(view, _)| view)
}

async fn current(world: &World, lease: &LeaseView) -> Option<Checkpoint> {
    ops::checkpoint::current(&world.berth, &world.caller, lease.lease.sandbox_id).await.ok()
}

async fn row(world: &World, checkpoint: Uuid) -> Option<Checkpoint> {
    world.berth.store.read().await.unwrap().checkpoint(world.caller.organization, checkpoint).await.unwrap()
}

/// Where a checkpoint's bytes lie.
fn object(world: &World, checkpoint: &Checkpoint) -> PathBuf {
    world.path().join("archives").join(checkpoint.object_key.as_ref().expect("an artifact"))
}

/// How many objects there are in the store.
async fn objects(world: &World) -> usize {
    world.berth.blobs.list("").await.unwrap().len()
}

/// The whole workspace of a checkpoint as it is downloaded.
async fn fetched(world: &World, checkpoint: &Checkpoint) -> Vec<u8> {
    let form = ops::upload::Form::Tar;
    let (_, mut body) = ops::upload::download(&world.berth, &world.caller, checkpoint.sandbox_id, checkpoint.id, form, None).await.unwrap();
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn holds(tar: &[u8], text: &str) -> bool {
    tar.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The pointer names an attached row whose bytes are stored, no object is without a row, and no capture is left without a gate.
async fn assert_at_rest(world: &World, lease: &LeaseView) {
    let sandbox = world.sandbox(lease).await.sandbox;
    let pointed = current(world, lease).await;
    assert_eq!(pointed.as_ref().map(|c| c.id), sandbox.current_checkpoint_id);
    if let Some(pointed) = pointed {
        assert!(pointed.current && pointed.attached_at.is_some(), "the pointer names an attached row");
        let (sha256, size) = (pointed.archive_sha256.clone().unwrap(), u64::try_from(pointed.size_bytes.unwrap()).unwrap());
        world
            .berth
            .blobs
            .verify(pointed.object_key.as_ref().unwrap(), &sha256, size)
            .await
            .expect("the pointer's bytes are as they were saved");
    }
    for (key, ..) in world.berth.blobs.list("").await.unwrap() {
        assert!(world.berth.store.read().await.unwrap().is_ledgered(&key).await.unwrap(), "{key} is without a row");
    }
    let capturing = world.checkpoints(lease).await.into_iter().filter(|c| c.status.as_str() == "capturing").count();
    assert_eq!(capturing, 0, "no capture is left behind");
}
