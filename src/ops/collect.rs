//! Collect and delete: revisions nobody points at leave, and their bytes enter the deletion ledger in the same transaction.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::attach::lock;
use super::{Berth, Caller, native};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Status};
use crate::model::key::Scope;
use crate::store::{Cursor, Tx};

/// An uploaded archive that nobody recorded goes after this span.
const UNRECORDED: Duration = Duration::from_secs(24 * 3600);
/// The first wait after a deletion that failed.
const BACK_OFF: Duration = Duration::from_secs(5);
/// A deletion is remembered this long.
const TOMBSTONE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Takes never-attached and detached revisions whose clock is before the cutoff, oldest first; a limit of 0 or less takes nothing.
pub async fn collect(berth: &Berth, caller: &Caller, sandbox: Uuid, before: Time, limit: i64) -> Result<Vec<String>> {
    caller.require(Scope::Write)?;
    let mut tx = berth.store.begin().await?;
    let (_, now) = lock(&mut tx, caller, sandbox).await?;
    let mut collected = Vec::new();
    for row in tx.collectable_checkpoints(sandbox, before, limit.clamp(0, 1000)).await? {
        if tx.is_being_restored(row.id, now).await? {
            continue;
        }
        take(&mut tx, &row, now).await?;
        super::capture::tell(&mut tx, &row, "checkpoint.collected", &caller.actor(), now).await?;
        collected.extend(row.workspace_revision);
    }
    tx.commit().await?;
    Ok(collected)
}

/// Deletes one checkpoint; never the current one, nor one a lease is being restored from.
pub async fn delete(berth: &Berth, caller: &Caller, sandbox: Uuid, checkpoint: Uuid) -> Result<()> {
    caller.require(Scope::Write)?;
    let mut tx = berth.store.begin().await?;
    let (_, now) = lock(&mut tx, caller, sandbox).await?;
    let row = tx
        .checkpoint(caller.organization, checkpoint)
        .await?
        .filter(|c| c.sandbox_id == sandbox)
        .ok_or_else(|| Error::not_found("checkpoint"))?;
    if row.current || row.status == Status::Capturing || tx.is_being_restored(row.id, now).await? {
        return Err(Error::new(Code::CheckpointInUse, "This checkpoint is current, or somebody is capturing or restoring it."));
    }
    take(&mut tx, &row, now).await?;
    super::capture::tell(&mut tx, &row, "checkpoint.deleted", &caller.actor(), now).await?;
    Ok(tx.commit().await?)
}

pub(super) async fn take(tx: &mut Tx, row: &Checkpoint, now: Time) -> Result<()> {
    tx.delete_checkpoint(row.id).await?;
    if let Some(artifact) = row.artifact_id {
        tx.doom_artifact_without_rows(artifact, now).await?;
    }
    Ok(())
}

/// What the deletion ledger would take next: uploads nobody recorded, and artifacts whose deletion is due.
pub async fn due(berth: &Berth) -> Result<(Vec<Uuid>, Vec<Uuid>)> {
    let mut tx = berth.store.read().await?;
    let now = tx.now().await?;
    let unrecorded = tx.unrecorded_artifacts(now.before(UNRECORDED), super::reap::BATCH).await?;
    let due = tx.artifacts_to_delete(now, super::reap::BATCH).await?;
    Ok((unrecorded, due.into_iter().map(|artifact| artifact.id).collect()))
}

/// One pass over the deletion ledger: "already gone" counts as deleted. Returns how many were deleted.
pub async fn delete_artifacts(berth: &Arc<Berth>) -> Result<u64> {
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    for unrecorded in tx.unrecorded_artifacts(now.before(UNRECORDED), super::reap::BATCH).await? {
        tx.doom_artifact_without_rows(unrecorded, now).await?;
    }
    tx.forget_deleted_artifacts(now.before(TOMBSTONE)).await?;
    let due = tx.artifacts_to_delete(now, super::reap::BATCH).await?;
    tx.commit().await?;
    let mut deleted = 0;
    for artifact in due {
        let wait = BACK_OFF.saturating_mul(2_u32.saturating_pow(u32::try_from(artifact.attempts.clamp(0, 8)).unwrap_or(8)));
        let mut tx = berth.store.begin().await?;
        let now = tx.now().await?;
        let begun = tx.begin_deletion(artifact.id, now.after(wait), now).await?;
        tx.commit().await?;
        super::crash_point("before_artifact_delete");
        if !begun || !native::delete(berth, &artifact).await {
            continue;
        }
        let mut tx = berth.store.begin().await?;
        let now = tx.now().await?;
        tx.settle_deletion(artifact.id, now).await?;
        tx.commit().await?;
        deleted += 1;
    }
    Ok(deleted)
}

/// Deletes objects of our organizations that no row names and that are older than 24 hours: an upload that was given up may land
/// after its deletion was confirmed. Returns how many.
pub async fn sweep_unledgered(berth: &Arc<Berth>) -> Result<u64> {
    let mut swept = 0;
    let mut cursor = None;
    loop {
        let mut tx = berth.store.read().await?;
        let now = tx.now().await?;
        let organizations = tx.organizations(cursor, super::reap::BATCH).await?;
        drop(tx);
        let Some(last) = organizations.last() else { return Ok(swept) };
        cursor = Some(Cursor { created_at: last.created_at, id: last.id });
        for organization in organizations {
            let objects = berth.blobs.list(&organization.id.to_string()).await.map_err(|e| super::make::archive_failed(&e))?;
            for (key, _, changed_at) in objects.into_iter().filter(|(_, _, at)| *at < now.before(UNRECORDED).0) {
                if berth.store.read().await?.is_ledgered(&key).await? {
                    continue;
                }
                tracing::info!(changed_at, "an object that no row names is deleted");
                swept += u64::from(berth.blobs.delete(&key).await.is_ok());
            }
        }
    }
}
