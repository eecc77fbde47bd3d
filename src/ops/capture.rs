//! Capture: the gate is claimed, running operations end, the bytes are taken and verified, and only then does the pointer move,
//! in the one transaction that also gives the gate back.

use std::sync::Arc;

use sqlx::types::Json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::input::Capture;
use super::view::Answered;
use super::{Berth, Caller, make};
use crate::archive::{ArchiveCode, ArchiveError, Limits, Packed};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Consistency, Event, Kind, Status, Tree, Warning, portable_revision};
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::sandbox::Sandbox;
use crate::store::checkpoint::NewArtifact;
use crate::store::error::StoreError;
use crate::store::event::NewEvent;
use crate::store::fence::gate_closed;
use crate::store::{ClaimKind, Claimed, Tx};

const ACTOR: Actor = Actor::System { task: "capturer" };

/// What a capture was claimed for.
#[derive(Clone, Debug)]
struct Intent {
    checkpoint: Checkpoint,
    instance: Instance,
    workspace_seq: i64,
    pointer_seq: i64,
    attach: bool,
    /// The holder asked for it: it ends a divergence.
    explicit: bool,
    exclude: Vec<String>,
}

/// Bytes that were taken and stored.
struct Taken {
    packed: Packed,
    consistency: Consistency,
    warnings: Vec<Warning>,
}

/// Saves the holder's workspace. `auto` on a clean sandbox answers with the current checkpoint.
pub async fn capture(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, input: Capture) -> Result<(Checkpoint, Answered)> {
    caller.require_on_lease(Scope::Write, lease)?;
    if input.kind == Some(Kind::ProviderNative) {
        return Err(Error::new(Code::CapabilityNotGranted, "This provider takes no snapshots of its own; capture a portable_workspace."));
    }
    let patience = Instant::now() + input.waiting.others;
    let (intent, gate) = loop {
        let mut tx = berth.store.begin().await?;
        let fenced = tx.fence(caller.organization, lease, caller.carried(input.carried)).await?;
        let rests = matches!(fenced.instance.status, InstanceStatus::Running | InstanceStatus::Stopped);
        let current = tx.current_checkpoint(fenced.sandbox.id).await?;
        if let (None, Some(current), false) = (input.kind, current, fenced.sandbox.is_dirty(Some(&fenced.instance))) {
            return Ok((current, Answered::Existing));
        }
        let gate = if rests {
            tx.claim(fenced.sandbox.id, ClaimKind::Gate, berth.work.owner, "capture", fenced.now, berth.settings.capture_timeout).await?
        } else {
            None
        };
        if let Some(gate) = gate {
            let mut intent = intend(&mut tx, &fenced.sandbox, fenced.instance, fenced.now, true).await?;
            intent.checkpoint.id = caller.first_id();
            intent.attach = input.attach;
            intent.checkpoint.source_turn_id.clone_from(&input.source_turn_id);
            intent.checkpoint.source_tool_call_id.clone_from(&input.source_tool_call_id);
            tx.insert_checkpoint(&intent.checkpoint).await?;
            tx.commit().await?;
            break (intent, gate);
        }
        let holder = tx.claim_of(fenced.sandbox.id, ClaimKind::Gate).await?;
        drop(tx);
        if !berth.work.line(fenced.sandbox.id).until_changed(patience).await {
            return Err(gate_closed(holder.as_ref().map_or("transition", |h| h.detail.as_str())));
        }
    };
    let id = intent.checkpoint.id;
    let receiver = spawn(berth, intent, gate, patience);
    let wait = if input.waiting.respond_async { std::time::Duration::ZERO } else { berth.settings.provision_wait };
    match tokio::time::timeout(wait, receiver).await {
        Ok(Ok(done)) => done.map(|checkpoint| (checkpoint, Answered::Created)),
        Ok(Err(_)) => Err(Error::new(Code::Internal, "The capture's task was lost.")),
        Err(_) => {
            let row = berth.store.read().await?.checkpoint(caller.organization, id).await?;
            Ok((row.ok_or_else(|| Error::not_found("checkpoint"))?, Answered::Pending))
        }
    }
}

fn spawn(berth: &Arc<Berth>, intent: Intent, gate: Claimed, patience: Instant) -> oneshot::Receiver<Result<Checkpoint>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    berth.work.spawn(async move {
        let held = task.work.hold(gate);
        let done = behind_the_gate(&task, &intent, &gate, patience).await;
        if done.is_ok() {
            held.settled();
        } else {
            drop(held);
            task.give_back_claims().await.ok();
        }
        task.work.ring(intent.instance.sandbox_id);
        sender.send(done).ok();
    });
    receiver
}

async fn behind_the_gate(berth: &Berth, intent: &Intent, gate: &Claimed, patience: Instant) -> Result<Checkpoint> {
    let line = berth.work.line(intent.instance.sandbox_id);
    loop {
        if berth.store.read().await?.running_operations(intent.instance.sandbox_id).await?.is_empty() {
            break;
        }
        if !line.until_changed(patience).await {
            let error = Error::new(
                Code::OperationsInProgress,
                "Commands are still running; a capture waits for them. Try again when they have ended.",
            );
            fail(berth, &intent.checkpoint, "operations_in_progress").await?;
            return Err(error.retry_after(std::time::Duration::from_secs(1)));
        }
    }
    let done = match take(berth, intent).await {
        Ok(taken) => publish(berth, intent, &taken, gate, true).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &done {
        fail(berth, &intent.checkpoint, &error.code.as_str()).await?;
    }
    done
}

/// Saves the workspace of a draining instance under the gate its drainer holds; the gate stays with the drainer.
pub async fn automatic(berth: &Berth, instance: &Instance, gate: &Claimed) -> Result<Checkpoint> {
    let mut tx = berth.store.begin().await?;
    let sandbox = tx.lock_sandbox(instance.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    give_up_captures(&mut tx, sandbox.id, now).await?;
    let intent = intend(&mut tx, &sandbox, instance.clone(), now, false).await?;
    tx.insert_checkpoint(&intent.checkpoint).await?;
    tx.commit().await?;
    let done = match take(berth, &intent).await {
        Ok(taken) => publish(berth, &intent, &taken, gate, false).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &done {
        fail(berth, &intent.checkpoint, &error.code.as_str()).await?;
    }
    done
}

async fn intend(tx: &mut Tx, sandbox: &Sandbox, instance: Instance, now: Time, explicit: bool) -> Result<Intent> {
    let environment = tx.environment(instance.organization_id, instance.environment_id).await?;
    let exclude = environment.and_then(|e| e.checkpoint_policy.0.exclude).unwrap_or_default();
    let checkpoint = Checkpoint {
        id: crate::id::new(),
        organization_id: sandbox.organization_id,
        sandbox_id: sandbox.id,
        instance_id: Some(instance.id),
        generation: instance.generation,
        workspace_seq: Some(sandbox.workspace_seq),
        kind: Kind::PortableWorkspace,
        status: Status::Capturing,
        artifact_id: None,
        parent_id: None,
        provider_ref: None,
        workspace_revision: None,
        consistency: None,
        warnings: Json(Vec::new()),
        source_turn_id: None,
        source_tool_call_id: None,
        failure_code: None,
        attached_at: None,
        detached_at: None,
        superseded_by: None,
        expires_at: None,
        created_at: now,
        size_bytes: None,
        archive_sha256: None,
        tree: None,
        object_key: None,
        current: false,
    };
    Ok(Intent {
        checkpoint,
        instance,
        workspace_seq: sandbox.workspace_seq,
        pointer_seq: sandbox.pointer_seq,
        attach: true,
        explicit,
        exclude,
    })
}

fn object_key(c: &Checkpoint) -> String {
    format!("{}/{}/{}.tar.zst", c.organization_id, c.sandbox_id, c.id)
}

/// Takes the bytes. What changed while they were taken is taken again, a few times.
async fn take(berth: &Berth, intent: &Intent) -> Result<Taken> {
    let mut last = None;
    for _ in 0..3 {
        match tokio::time::timeout(berth.settings.capture_timeout, take_once(berth, intent)).await {
            Ok(Ok(taken)) => return Ok(taken),
            Ok(Err(error)) if error.facts.get("cause").is_some_and(|c| c == "workspace_changed_during_capture") => last = Some(error),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(failed("capture_timed_out", "Saving the workspace took too long.")),
        }
    }
    Err(last.unwrap_or_else(|| failed("workspace_changed_during_capture", "The workspace changed while it was saved.")))
}

async fn take_once(berth: &Berth, intent: &Intent) -> Result<Taken> {
    let provider = berth.provider_of(&intent.instance)?;
    let provider_ref = intent.instance.provider_ref.as_deref().unwrap_or_default();
    let told = |e: &crate::provider::ProviderError| super::provider_failed(e);
    let live = make::call(berth, provider.processes(provider_ref)).await.map_err(|e| told(&e))? > 0;
    let before = walk(berth, &*provider, provider_ref, &intent.exclude, live).await?;
    let read = provider.read_tree(provider_ref, &intent.exclude).await.map_err(|e| told(&e))?;
    let key = object_key(&intent.checkpoint);
    let packed = berth.blobs.put_tree(&key, read.tar, &Limits::default()).await.map_err(|e| not_taken(&e))?;
    let skipped = read.skipped.await.unwrap_or(0);
    if before != walk(berth, &*provider, provider_ref, &intent.exclude, live).await? {
        berth.blobs.delete(&key).await.ok();
        return Err(failed("workspace_changed_during_capture", "The workspace changed while it was saved."));
    }
    let warnings = if skipped > 0 {
        vec![Warning { code: "special_files_skipped".to_owned(), count: i64::try_from(skipped).unwrap_or(i64::MAX), path: None }]
    } else {
        Vec::new()
    };
    Ok(Taken { packed, consistency: if live { Consistency::Live } else { Consistency::Quiescent }, warnings })
}

/// With a process open everything may change at any time, and the checkpoint says so; without one, nothing may.
async fn walk(
    berth: &Berth,
    provider: &dyn crate::provider::Provider,
    provider_ref: &str,
    exclude: &[String],
    live: bool,
) -> Result<Option<String>> {
    if live {
        return Ok(None);
    }
    match tokio::time::timeout(berth.settings.capture_timeout, provider.stat_walk(provider_ref, exclude)).await {
        Ok(Ok(digest)) => Ok(Some(digest)),
        Ok(Err(error)) if error.kind == crate::provider::Kind::Unsupported => Ok(None),
        Ok(Err(error)) => Err(super::provider_failed(&error)),
        Err(_) => Err(failed("capture_timed_out", "Saving the workspace took too long.")),
    }
}

fn failed(cause: &str, detail: &str) -> Error {
    Error::new(Code::CaptureFailed, detail).fact("cause", cause)
}

fn not_taken(error: &ArchiveError) -> Error {
    match error.code {
        ArchiveCode::Invalid => failed("workspace_changed_during_capture", "The workspace changed while it was saved."),
        ArchiveCode::Unsafe => failed("workspace_unreadable", "The workspace holds something an archive cannot carry."),
        _ => make::archive_failed(error),
    }
}

/// Registers the artifact, records the checkpoint and moves the pointer, fenced by the gate's token and the pointer's own number.
async fn publish(berth: &Berth, intent: &Intent, taken: &Taken, gate: &Claimed, give_back: bool) -> Result<Checkpoint> {
    super::crash_point("before_publish");
    let mut tx = berth.store.begin().await?;
    let mut sandbox = tx.lock_sandbox(intent.instance.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    let artifact = crate::id::new();
    let tree = tree_of(&taken.packed);
    let artifact_row = NewArtifact {
        id: artifact,
        organization_id: sandbox.organization_id,
        sandbox_id: sandbox.id,
        kind: Kind::PortableWorkspace,
        object_key: &object_key(&intent.checkpoint),
        archive_sha256: &taken.packed.archive_sha256,
        size_bytes: i64::try_from(taken.packed.size_bytes).unwrap_or(i64::MAX),
        tree: &tree,
    };
    tx.insert_artifact(&artifact_row, now).await?;
    let mut row = intent.checkpoint.clone();
    row.artifact_id = Some(artifact);
    row.workspace_revision = Some(portable_revision(now, &taken.packed.archive_sha256));
    row.consistency = Some(taken.consistency);
    row.warnings = Json(taken.warnings.clone());
    row.status = super::step(Status::Capturing.on(Event::Record))?;
    let moves = intent.attach && (intent.explicit || !sandbox.diverged);
    if moves && sandbox.pointer_seq != intent.pointer_seq {
        row.status = super::step(row.status.on(Event::Supersede))?;
        row.superseded_by = sandbox.current_checkpoint_id;
    } else if moves {
        row.status = super::step(row.status.on(Event::Attach))?;
        row.attached_at = Some(now);
        sandbox.current_checkpoint_id = Some(row.id);
        sandbox.pointer_seq += 1;
        let clean = taken.consistency != Consistency::Live && sandbox.instance_id == Some(intent.instance.id);
        sandbox.synced_seq = clean.then_some(intent.workspace_seq);
        sandbox.process_open &= !clean;
        sandbox.diverged = false;
    }
    tx.save_checkpoint(&row, Status::Capturing, now).await?;
    tx.save_sandbox(&sandbox, now).await?;
    tell(&mut tx, &row, if moves { "checkpoint.attached" } else { "checkpoint.recorded" }, &ACTOR, now).await?;
    if give_back {
        tx.settle(gate).await?;
    }
    tx.commit().await?;
    berth.work.ring(sandbox.id);
    let row = berth.store.read().await?.checkpoint(sandbox.organization_id, row.id).await?;
    row.ok_or_else(|| Error::not_found("checkpoint"))
}

pub(super) fn tree_of(packed: &Packed) -> Tree {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let tree = &packed.tree;
    Tree {
        algorithm: tree.algorithm.clone(),
        digest: tree.digest.clone(),
        entries: number(tree.entries),
        files: number(tree.files),
        bytes: number(tree.bytes),
    }
}

/// Ends a capture that came to nothing. One that was published all the same, because the answer to its commit was lost, stands.
async fn fail(berth: &Berth, row: &Checkpoint, code: &str) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(row.sandbox_id).await?;
    let now = tx.now().await?;
    match give_up(&mut tx, row.clone(), code, now).await {
        Ok(()) => Ok(tx.commit().await?),
        Err(StoreError::Moved) => {
            drop(tx);
            let now = berth.store.read().await?.checkpoint(row.organization_id, row.id).await?;
            if now.is_some_and(|k| k.status == Status::Failed) {
                // Its gate was taken over, and whoever took it has said so; what was stored since then is in no ledger.
                berth.blobs.delete(&object_key(row)).await.ok();
            }
            Ok(())
        }
        Err(other) => Err(other.into()),
    }
}

/// The row says why there are no bytes, and what was stored of them enters the deletion ledger in the same transaction.
async fn give_up(tx: &mut Tx, mut row: Checkpoint, code: &str, now: Time) -> std::result::Result<(), StoreError> {
    row.status = Status::Capturing.on(Event::Fail).map_err(|_| StoreError::Moved)?;
    row.failure_code = Some(code.to_owned());
    tx.save_checkpoint(&row, Status::Capturing, now).await?;
    tx.doom_object(row.organization_id, row.sandbox_id, &object_key(&row), now).await?;
    tx.tell(told(&row, "checkpoint.failed", &ACTOR), now).await
}

/// Gives up what a capturer that is gone left behind, under the lock of its sandbox and with its gate free or ours.
async fn give_up_captures(tx: &mut Tx, sandbox: Uuid, now: Time) -> Result<()> {
    for row in tx.captures_under_way(sandbox).await? {
        give_up(tx, row, "capturer_lost", now).await?;
    }
    Ok(())
}

/// A capture whose server is gone: nobody holds its gate any more, so nobody will publish it.
pub(super) async fn abandon(berth: &Berth, sandbox: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(sandbox).await?;
    let now = tx.now().await?;
    if tx.is_claimed(sandbox, ClaimKind::Gate, now).await? {
        return Ok(());
    }
    give_up_captures(&mut tx, sandbox, now).await?;
    tx.commit().await?;
    berth.work.ring(sandbox);
    Ok(())
}

/// Writes an event about a checkpoint.
pub(super) async fn tell(tx: &mut Tx, row: &Checkpoint, type_: &'static str, actor: &Actor, now: Time) -> Result<()> {
    Ok(tx.tell(told(row, type_, actor), now).await?)
}

fn told<'a>(row: &Checkpoint, type_: &'static str, actor: &'a Actor) -> NewEvent<'a> {
    NewEvent {
        organization: row.organization_id,
        type_,
        subject_kind: "checkpoint",
        subject: row.id,
        generation: Some(row.generation),
        actor,
        data: serde_json::json!({ "sandbox_id": row.sandbox_id, "workspace_revision": row.workspace_revision, "failure_code": row.failure_code }),
    }
}
