//! Quiet: nothing that was admitted before writes any more, by waiting for it or by a confirmed kill.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, make};
use crate::error::{Error, Result};
use crate::model::instance::Instance;
use crate::model::operation::Status as OperationStatus;

/// Waits until no operation of the sandbox runs; false once `patience` is over.
pub(super) async fn operations_ended(berth: &Berth, sandbox: Uuid, patience: Instant) -> Result<bool> {
    let line = berth.work.line(sandbox);
    loop {
        if berth.store.read().await?.running_operations(sandbox).await?.is_empty() {
            return Ok(true);
        }
        if !line.until_changed(patience).await {
            return Ok(false);
        }
    }
}

/// Kills everything that was admitted under a lower grant, and writes the confirmed kill down: the instance is quiet.
pub async fn silence(berth: &Berth, instance: &Instance, grant_seq: i64) -> Result<()> {
    let provider = berth.provider_of(instance).await?;
    let provider_ref = instance.provider_ref.as_deref().unwrap_or_default();
    make::call(berth, provider.fence(provider_ref, grant_seq)).await.map_err(|e| super::provider_failed(&e))?;
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(instance.id).await?.filter(|i| i.status.is_live()) else { return Ok(()) };
    tx.settle_operations_below(instance.sandbox_id, grant_seq, OperationStatus::Cancelled, true, now).await?;
    // Whoever confirms late must not call quiet what a later grant has used since.
    row.quiet = !tx.was_used_since(row.id, grant_seq).await?;
    row.owed_fence = row.owed_fence.filter(|owed| *owed > grant_seq);
    let was = row.status;
    tx.save_instance(&row, was, now).await?;
    tx.commit().await?;
    berth.work.ring(instance.sandbox_id);
    Ok(())
}

/// A fence is safe to raise again: one blip of a provider is no reason to stop what could be kept.
pub(super) async fn silence_patiently(berth: &Berth, instance: &Instance, grant_seq: i64) -> Result<()> {
    for pause in [250, 500] {
        if silence(berth, instance, grant_seq).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    silence(berth, instance, grant_seq).await
}

/// Kills what a take-over owes: it is answered after the confirmed kill, and until then nothing of the new grant is admitted.
pub async fn pay_owed_fence(berth: &Berth, lease: Uuid) -> Result<()> {
    let mut tx = berth.store.read().await?;
    let row = tx.lease_by_id(lease).await?.ok_or_else(|| Error::not_found("lease"))?;
    let instance = tx.instance_by_id(row.instance_id.unwrap_or_default()).await?.filter(|i| i.status.is_live());
    drop(tx);
    match instance.and_then(|i| i.owed_fence.map(|owed| (i, owed))) {
        Some((instance, owed)) => silence(berth, &instance, owed).await,
        None => Ok(()),
    }
}
