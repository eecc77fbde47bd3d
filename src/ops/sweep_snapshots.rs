//! Sweep snapshots: one is an orphan if and only if it is of this deployment, no artifact whose deletion is not confirmed names it, and
//! it is known to be older than the grace. It happens: a snapshot that was given up may come to be after its deletion was confirmed.

use super::sweep::{SweepReport, Told};
use super::{Berth, make};
use crate::error::Result;
use crate::id;
use crate::provider::Provider;

/// Every snapshot of one provider, as part of a pass.
pub(super) async fn sweep(berth: &Berth, provider: &dyn Provider, dry_run: bool, report: &mut SweepReport) -> Result<()> {
    // Where names are not foretold, a row learns them only once the snapshot is taken, and nobody's may be somebody's in a moment.
    if provider.traits().snapshots.is_none() || provider.snapshot_ref(id::new()).is_none() {
        return Ok(());
    }
    // In this order: deleting is refused in another account than the one that was listed, or than the one before it.
    let inventory = async {
        let binding = make::call(berth, provider.binding()).await?;
        Ok::<_, crate::provider::ProviderError>((binding, make::call(berth, provider.list_snapshots(berth.deployment.id)).await?))
    };
    let Ok((binding, listed)) = inventory.await else {
        report.errors += 1;
        report.note(&Told { kind: "snapshot", provider, provider_ref: None, instance_id: None }, "skipped", "inventory_unknown");
        return Ok(());
    };
    report.seen += listed.len();
    let now = berth.store.read().await?.now().await?;
    for snapshot in listed {
        let name = snapshot.snapshot_ref.as_str();
        if is_ledgered(berth, name).await? {
            report.owned += 1;
            continue;
        }
        let told = Told { kind: "snapshot", provider, provider_ref: Some(name), instance_id: None };
        let age = snapshot.created_at.map(|created_at| now.since(created_at));
        if !report.condemns(&told, age, berth.settings.orphan_grace, dry_run) {
            continue;
        }
        // Again, immediately before the deletion: a row may have come to name it since.
        if is_ledgered(berth, name).await? {
            report.note(&told, "skipped", "owned_meanwhile");
            continue;
        }
        let end = make::call(berth, provider.delete_snapshot(&binding, name)).await;
        if report.ended(&told, &end) {
            tracing::warn!(provider = provider.traits().kind, snapshot = name, "a snapshot that no row names was deleted");
        }
    }
    Ok(())
}

async fn is_ledgered(berth: &Berth, name: &str) -> Result<bool> {
    Ok(berth.store.read().await?.is_ledgered(name).await?)
}
