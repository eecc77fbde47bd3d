//! Capture: the gate is claimed, running operations end, the bytes are taken and verified, and only then does the pointer move,
//! in the one transaction that also gives the gate back.

use std::sync::Arc;
use std::time::Duration;

use sqlx::types::Json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::input::Capture;
use super::take::{Taken, take};
use super::view::Answered;
use super::{Berth, Caller, native, quiet, retain};
use crate::archive::Packed;
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Consistency, Event, Kind, Status, Tree, revision};
use crate::model::event::Actor;
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::sandbox::Sandbox;
use crate::store::artifact::{NewArtifact, StoredArtifact};
use crate::store::error::StoreError;
use crate::store::event::NewEvent;
use crate::store::fence::gate_closed;
use crate::store::{ClaimKind, Claimed, Tx};

const ACTOR: Actor = Actor::System { task: "capturer" };
/// After a capture's deadline its bytes are left alone this long: an upload that was given up may still land.
const GRACE: Duration = Duration::from_secs(120);

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
    /// Whatever was admitted before is surely over.
    certain: bool,
    /// The artifact registered for the bytes, and where they go.
    artifact: Uuid,
    key: String,
}

/// Saves the holder's workspace. `auto` on a clean sandbox answers with the current checkpoint.
pub async fn capture(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, input: Capture) -> Result<(Checkpoint, Answered)> {
    caller.require_on_lease(Scope::Write, lease)?;
    let patience = Instant::now() + input.waiting.others;
    let (intent, gate) = loop {
        let mut tx = berth.store.begin().await?;
        let fenced = tx.fence(caller.organization, lease, caller.carried(input.carried)).await?;
        let kind = input.kind.unwrap_or(Kind::PortableWorkspace);
        if kind == Kind::ProviderNative {
            native::offered(berth, &fenced.instance).await?;
        }
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
            give_up_captures(&mut tx, fenced.sandbox.id, fenced.now).await?;
            let mut intent = intend(berth, &mut tx, kind, &fenced.sandbox, fenced.instance, &gate, fenced.now).await?;
            intent.checkpoint.id = caller.first_id();
            (intent.attach, intent.explicit) = (input.attach, true);
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
    let wait = if input.waiting.respond_async { Duration::ZERO } else { berth.settings.provision_wait };
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

async fn behind_the_gate(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed, patience: Instant) -> Result<Checkpoint> {
    if !quiet::operations_ended(berth, intent.instance.sandbox_id, patience).await? {
        let detail = "Commands are still running; a capture waits for them. Try again when they have ended.";
        let error = Error::new(Code::OperationsInProgress, detail);
        fail(berth, intent, &error).await;
        return Err(error.retry_after(Duration::from_secs(1)));
    }
    take_and_publish(berth, intent, gate, true).await
}

/// Whatever goes wrong, the row says so, unless it was published after all: then the answer of that commit was lost, and the
/// bytes are the pointer's.
async fn take_and_publish(berth: &Arc<Berth>, intent: &Intent, gate: &Claimed, give_back: bool) -> Result<Checkpoint> {
    let taken = match intent.checkpoint.kind {
        Kind::PortableWorkspace => take(berth, &intent.instance, &intent.exclude, &intent.key, intent.certain).await,
        Kind::ProviderNative => native::take(berth, &intent.instance, intent.artifact, intent.certain).await,
    };
    let done = match taken {
        Ok(taken) => publish(berth, intent, &taken, gate, give_back).await,
        Err(error) => Err(error),
    };
    match &done {
        Ok(_) => retain::spawn(berth, intent.instance.sandbox_id),
        Err(error) => fail(berth, intent, error).await,
    }
    done
}

/// Saves the workspace of a draining instance under the gate its drainer holds; the gate stays with the drainer. Not `certain`: no
/// kill of what ran was confirmed, so the checkpoint is `live` and makes nothing clean.
pub async fn automatic(berth: &Arc<Berth>, kind: Kind, instance: &Instance, gate: &Claimed, certain: bool) -> Result<Checkpoint> {
    let mut tx = berth.store.begin().await?;
    let sandbox = tx.lock_sandbox(instance.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    give_up_captures(&mut tx, sandbox.id, now).await?;
    let intent = Intent { certain, ..intend(berth, &mut tx, kind, &sandbox, instance.clone(), gate, now).await? };
    tx.insert_checkpoint(&intent.checkpoint).await?;
    tx.commit().await?;
    take_and_publish(berth, &intent, gate, false).await
}

/// The row that will become the checkpoint, and the artifact behind it, registered as due for deletion once this capture can no
/// longer be running: only publication reprieves it.
async fn intend(
    berth: &Berth,
    tx: &mut Tx,
    kind: Kind,
    sandbox: &Sandbox,
    instance: Instance,
    gate: &Claimed,
    now: Time,
) -> Result<Intent> {
    let environment = tx.environment(instance.organization_id, instance.environment_id).await?;
    let exclude = environment.and_then(|e| e.checkpoint_policy.0.exclude).unwrap_or_default();
    let artifact = crate::id::new();
    let (key, home) = match kind {
        Kind::PortableWorkspace => (format!("{}/{}/{artifact}.tar.zst", sandbox.organization_id, sandbox.id), None),
        Kind::ProviderNative => {
            let key = native::foretold(&*native::offered(berth, &instance).await?, artifact);
            (key, Some((instance.provider.as_str(), instance.binding.as_deref().unwrap_or_default())))
        }
    };
    let (organization_id, sandbox_id) = (sandbox.organization_id, sandbox.id);
    let registered = NewArtifact { id: artifact, organization_id, sandbox_id, kind, object_key: &key, home };
    tx.register_artifact(&registered, gate.deadline.after(GRACE), now).await?;
    let checkpoint = Checkpoint {
        instance_id: Some(instance.id),
        workspace_seq: Some(sandbox.workspace_seq),
        artifact_id: Some(artifact),
        ..Checkpoint::begun(crate::id::new(), sandbox, kind, instance.generation, Status::Capturing, now)
    };
    Ok(Intent {
        checkpoint,
        instance,
        workspace_seq: sandbox.workspace_seq,
        pointer_seq: sandbox.pointer_seq,
        attach: true,
        explicit: false,
        exclude,
        certain: true,
        artifact,
        key,
    })
}

/// Publishes the artifact, records the checkpoint and moves the pointer, fenced by the gate's token and the pointer's own number.
async fn publish(berth: &Berth, intent: &Intent, taken: &Taken, gate: &Claimed, give_back: bool) -> Result<Checkpoint> {
    super::crash_point("before_publish");
    let mut tx = berth.store.begin().await?;
    let mut sandbox = tx.lock_sandbox(intent.instance.sandbox_id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    tx.prove(gate).await?;
    let now = tx.now().await?;
    let named = taken.snapshot.as_ref().map(|s| s.snapshot_ref.as_str());
    let stored = StoredArtifact {
        archive_sha256: &taken.archive_sha256,
        size_bytes: taken.size_bytes,
        tree: taken.tree.as_ref(),
        provider: None,
        named,
    };
    tx.publish_artifact(intent.artifact, &stored, now).await?;
    let mut row = intent.checkpoint.clone();
    row.workspace_revision = Some(unused_revision(&mut tx, sandbox.id, row.kind, now, &taken.archive_sha256).await?);
    row.provider_ref = named.map(str::to_owned);
    row.expires_at = taken.snapshot.as_ref().and_then(|s| s.expires_at);
    row.consistency = Some(taken.consistency);
    row.warnings = Json(taken.warnings.clone());
    row.status = super::step(Status::Capturing.on(Event::Record))?;
    let here = sandbox.instance_id == Some(intent.instance.id);
    // Its instance was lost meanwhile: what was saved of it is still the latest there is, until something follows it.
    let adopted = sandbox.instance_id.is_none() && sandbox.workspace_seq == intent.workspace_seq;
    let wanted = intent.attach && (intent.explicit || !sandbox.diverged);
    let moves = wanted && (here || adopted) && sandbox.pointer_seq == intent.pointer_seq;
    if moves {
        row.status = super::step(row.status.on(Event::Attach))?;
        row.attached_at = Some(now);
        sandbox.current_checkpoint_id = Some(row.id);
        sandbox.pointer_seq += 1;
        sandbox.synced_seq = (taken.consistency != Consistency::Live).then_some(intent.workspace_seq);
        // What was only paused goes on writing.
        sandbox.process_open &= taken.consistency != Consistency::Quiescent;
        sandbox.diverged = false;
        sandbox.unsaved_loss = false;
    } else if wanted {
        row.status = super::step(row.status.on(Event::Supersede))?;
        row.superseded_by = sandbox.current_checkpoint_id;
    }
    tx.save_checkpoint(&row, Status::Capturing, now).await?;
    tx.save_sandbox(&sandbox, now).await?;
    let told = match row.status {
        Status::Attached => "checkpoint.attached",
        Status::Superseded => "checkpoint.superseded",
        _ => "checkpoint.recorded",
    };
    tell(&mut tx, &row, told, &ACTOR, now).await?;
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

/// A revision no other row of the sandbox has: equal bytes within one millisecond get the next one.
async fn unused_revision(tx: &mut Tx, sandbox: Uuid, kind: Kind, now: Time, archive_sha256: &str) -> Result<String> {
    let mut at = now;
    loop {
        let revision = revision(kind, at, archive_sha256);
        if tx.checkpoint_by_revision(sandbox, &revision).await?.is_none() {
            return Ok(revision);
        }
        at = Time(at.0 + 1);
    }
}

/// The row says why there are no bytes; what was stored of them is removed only once the row surely will not name it.
async fn fail(berth: &Berth, intent: &Intent, error: &Error) {
    match mark_failed(berth, intent, &error.code.as_str()).await {
        Ok(true) if intent.checkpoint.kind == Kind::PortableWorkspace => {
            // The ledger deletes it once more when no late upload can land any longer.
            berth.blobs.delete(&intent.key).await.ok();
        }
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(checkpoint_id = %intent.checkpoint.id, code = %error.code.as_str(), "a failed capture is marked later");
        }
    }
}

/// Whether the row was still being captured.
async fn mark_failed(berth: &Berth, intent: &Intent, code: &str) -> Result<bool> {
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(intent.instance.sandbox_id).await?;
    let now = tx.now().await?;
    match give_up(&mut tx, intent.checkpoint.clone(), code, now).await {
        Ok(()) => tx.commit().await?,
        Err(StoreError::Moved) => return Ok(false),
        Err(other) => return Err(other.into()),
    }
    Ok(true)
}

/// The row names its bytes no longer; they stay in the deletion ledger, where they were registered.
async fn give_up(tx: &mut Tx, mut row: Checkpoint, code: &str, now: Time) -> std::result::Result<(), StoreError> {
    row.status = Status::Capturing.on(Event::Fail).map_err(|_| StoreError::Moved)?;
    row.failure_code = Some(code.to_owned());
    row.artifact_id = None;
    tx.save_checkpoint(&row, Status::Capturing, now).await?;
    tx.tell(told(&row, "checkpoint.failed", &ACTOR), now).await
}

/// Gives up what a capturer that is gone left behind, under the lock of its sandbox and with its gate free or ours. What it still
/// uploads, should it only have been paused, is found by the sweep of objects.
async fn give_up_captures(tx: &mut Tx, sandbox: Uuid, now: Time) -> Result<()> {
    for row in tx.captures_under_way(sandbox).await? {
        if let Some(artifact) = row.artifact_id {
            tx.hasten_deletion(artifact, now).await?;
        }
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
