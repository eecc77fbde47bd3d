//! Record: a checkpoint made elsewhere gets its row. Recording the same again finds the same row, whatever happened since.

use uuid::Uuid;

use super::attach::{lock, only_the_writer};
use super::input::Record;
use super::{Berth, Caller};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Kind, Status, revision_is};
use crate::model::key::Scope;
use crate::store::fence::stale_generation;

/// Records a revision; the boolean says whether it is new. A portable one needs its archive uploaded under this sandbox; a native
/// one is claimed, not owned: it is never deleted by us.
pub async fn record(berth: &Berth, caller: &Caller, id: Uuid, input: Record) -> Result<(Checkpoint, bool)> {
    caller.require_on_sandbox(berth, Scope::Write, id).await?;
    if !revision_is(&input.workspace_revision, input.kind) {
        return Err(Error::invalid(
            "/workspace_revision",
            "must be wa1: (portable) or wa2: (native), 13 digits of milliseconds, and 64 hex digits",
        ));
    }
    match (input.kind, &input.provider_ref) {
        (Kind::ProviderNative, None) => return Err(Error::invalid("/provider_ref", "is required for provider_native")),
        (Kind::PortableWorkspace, Some(_)) => return Err(Error::invalid("/provider_ref", "belongs to provider_native only")),
        _ => {}
    }
    let sha256 = input.workspace_revision.rsplit(':').next().unwrap_or_default();
    let receipt = match input.kind {
        Kind::ProviderNative => super::upload::receipt_of(berth, id, sha256, input.provider_ref.as_deref()).await?,
        Kind::PortableWorkspace => None,
    };
    let mut tx = berth.store.begin().await?;
    let (sandbox, now) = lock(&mut tx, caller, id).await?;
    if let Some(known) = tx.checkpoint_by_revision(id, &input.workspace_revision).await? {
        let same = known.generation == input.generation && known.kind == input.kind && known.provider_ref == input.provider_ref;
        return if same {
            Ok((known, false))
        } else {
            Err(Error::new(Code::RevisionConflict, "This revision is recorded already, with another generation, kind or provider_ref."))
        };
    }
    only_the_writer(&mut tx, caller, &sandbox, input.lease_id, now).await?;
    if sandbox.generation != input.generation {
        return Err(stale_generation(sandbox.generation, input.generation));
    }
    let missing =
        || Error::new(Code::CheckpointUnavailable, "No archive with this SHA-256 was uploaded under this sandbox; upload it first.");
    let artifact_id = match input.kind {
        Kind::ProviderNative => receipt,
        Kind::PortableWorkspace => Some(tx.stored_artifact(id, input.kind, sha256).await?.ok_or_else(missing)?.0),
    };
    if let Some(artifact) = artifact_id
        && !tx.hold_artifact(artifact).await?
    {
        return Err(missing());
    }
    let row = Checkpoint {
        artifact_id,
        provider_ref: input.provider_ref,
        workspace_revision: Some(input.workspace_revision),
        source_turn_id: input.source_turn_id,
        source_tool_call_id: input.source_tool_call_id,
        ..Checkpoint::begun(caller.first_id(), &sandbox, input.kind, input.generation, Status::Recorded, now)
    };
    tx.insert_checkpoint(&row).await?;
    super::capture::tell(&mut tx, &row, "checkpoint.recorded", &caller.actor(), now).await?;
    tx.commit().await?;
    let told = berth.store.read().await?.checkpoint(caller.organization, row.id).await?;
    Ok((told.ok_or_else(|| Error::not_found("checkpoint"))?, true))
}
