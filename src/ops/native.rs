//! Native snapshots: a provider's own object behind a checkpoint. Fast, and gone with the provider; told by its name alone, since
//! nothing is known of its content.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::take::Taken;
use super::{Berth, make};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Consistency};
use crate::model::instance::Instance;
use crate::provider::{CaptureEffect, Provider, ProviderError, Snapshot, Takeover};
use crate::store::artifact::DueDeletion;

/// The provider of an instance, if it takes snapshots that the instance outlives. Asks nobody, since a transaction may be open: a plugin,
/// which would have to be heard first, takes none.
pub(super) async fn offered(berth: &Berth, instance: &Instance) -> Result<Arc<dyn Provider>> {
    if !super::plugins::is_plugin(&instance.provider) {
        let provider = berth.provider_of(instance).await?;
        if provider.traits().snapshots.is_some_and(|s| s.effect != CaptureEffect::Ends) {
            return Ok(provider);
        }
    }
    Err(Error::new(
        Code::CapabilityNotGranted,
        "This provider takes no snapshots of its own that a sandbox outlives; say auto or portable_workspace.",
    ))
}

/// What a snapshot under this id will be called. Where the provider chooses, a lost answer leaves one that only its own expiry ends.
pub(super) fn foretold(provider: &dyn Provider, id: Uuid) -> String {
    provider.snapshot_ref(id).unwrap_or_else(|| format!("unnamed:{id}"))
}

/// Takes a snapshot under this id. `certain`: whatever was admitted before is surely over; else it is `live`.
pub(super) async fn take(berth: &Berth, instance: &Instance, id: Uuid, certain: bool) -> Result<Taken> {
    let provider = offered(berth, instance).await?;
    let provider_ref = instance.provider_ref.as_deref().unwrap_or_default();
    let told = |e: &ProviderError| super::provider_failed(e);
    let snapshots = provider.traits().snapshots;
    let pauses = snapshots.is_some_and(|s| s.effect == CaptureEffect::Pauses);
    let again = snapshots.is_some_and(|s| s.takeover == Takeover::SameRequest);
    let open = !certain || make::call(berth, provider.processes(provider_ref)).await.map_err(|e| told(&e))? > 0;
    let attempts = async {
        let mut last = provider.snapshot(provider_ref, id).await;
        for _ in 0..2 {
            if !again || !last.as_ref().is_err_and(|e| e.kind.is_transient()) {
                break;
            }
            last = provider.snapshot(provider_ref, id).await;
        }
        last
    };
    let late = |_| Error::new(Code::CaptureFailed, "Saving the workspace took too long.").fact("cause", "capture_timed_out");
    let taken = tokio::time::timeout(berth.settings.capture_timeout, attempts).await.map_err(late)?.map_err(|e| told(&e))?;
    let consistency = match (open, certain && pauses) {
        (false, _) => Consistency::Quiescent,
        (true, true) => Consistency::Paused,
        (true, false) => Consistency::Live,
    };
    Ok(Taken {
        archive_sha256: identity(&instance.provider, instance.binding.as_deref(), &taken),
        size_bytes: taken.size_bytes.and_then(|n| i64::try_from(n).ok()),
        tree: None,
        snapshot: Some(taken),
        consistency,
        warnings: Vec::new(),
    })
}

/// SHA-256 of whose snapshot it is and what it is called: all that its revision can stand for.
fn identity(provider: &str, binding: Option<&str>, taken: &Snapshot) -> String {
    let named = serde_json::json!({ "binding": binding, "provider": provider, "snapshot_id": taken.snapshot_ref });
    hex::encode(Sha256::digest(named.to_string()))
}

/// The name of a checkpoint's snapshot, if our ledger holds it for this organization, in the account the provider speaks to now, and
/// the provider says that it exists. A name that was merely recorded proves nothing.
pub(super) async fn usable(berth: &Berth, provider: &str, checkpoint: &Checkpoint) -> Result<String> {
    let unavailable = |detail: &str| Error::new(Code::CheckpointUnavailable, detail).fact("checkpoint_id", checkpoint.id.to_string());
    let unknown = || unavailable("This recorded snapshot is not in our ledger and this environment's provider cannot resolve it.");
    let snapshot_ref = checkpoint.provider_ref.as_deref().ok_or_else(unknown)?;
    let kept = berth.store.read().await?.kept_snapshot(checkpoint.organization_id, provider, snapshot_ref).await?;
    let binding = kept.ok_or_else(unknown)?;
    let provider = berth.providers.get(provider).filter(|p| p.traits().snapshots.is_some()).ok_or_else(unknown)?;
    if make::call(berth, provider.binding()).await.map_err(|e| super::provider_failed(&e))? != binding {
        return Err(unavailable("This snapshot is in another account than the one that is used now."));
    }
    match make::call(berth, provider.probe_snapshot(&binding, snapshot_ref)).await {
        Ok(true) => Ok(snapshot_ref.to_owned()),
        Ok(false) => Err(unavailable("This snapshot is gone.")),
        Err(error) => Err(super::provider_failed(&error)),
    }
}

/// Deletes what an artifact that is due stands for; what is gone already is deleted. False: not now.
pub(super) async fn delete(berth: &Berth, due: &DueDeletion) -> bool {
    let (Some(provider), Some(binding)) = (&due.provider, &due.binding) else {
        return berth.blobs.delete(&due.object_key).await.is_ok();
    };
    match berth.providers.get(provider) {
        Some(provider) => make::call(berth, provider.delete_snapshot(binding, &due.object_key)).await.is_ok(),
        None => false,
    }
}
