//! Making an instance: the one way to be born. The row is there already; this asks the provider, writes the ref first and
//! unconditionally, and puts the selected checkpoint back, verified.

use std::sync::Arc;
use std::time::Duration;

use sqlx::types::Json;
use uuid::Uuid;

use super::Berth;
use super::spool::Unrecorded;
use crate::archive::{ArchiveCode, Limits};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Kind as CheckpointKind};
use crate::model::instance::{Instance, Role, Status};
use crate::model::lease::{OnUnavailable, Plan, RestoredFrom};
use crate::provider::{Kind, Made, OwnerTag, Provider, ProviderError, Spec, UNGRANTED, WORKSPACE, WriteMode};
use crate::store::Claimed;
use crate::store::error::StoreError;

/// An instance that is made, filled and ready to be activated.
#[derive(Debug)]
pub struct Ready {
    /// The working directory inside the sandbox.
    pub workspace_path: String,
    /// What was put back, if anything was.
    pub restored_from: Option<RestoredFrom>,
    /// The workspace is knowingly empty although the pointer names a checkpoint, or holds another revision than the pointer's.
    pub diverged: bool,
    /// The checkpoint the caller named: the pointer is to follow it.
    pub chosen: Option<Checkpoint>,
}

/// Why an instance could not be made.
#[derive(Debug)]
pub enum Unmade {
    /// Nothing was made, surely.
    Refused(Error),
    /// Something may have been made, and the row must be torn down.
    Failed(Error),
    /// Somebody else has taken the work over: touch nothing.
    Superseded,
}

impl From<StoreError> for Unmade {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Moved | StoreError::ClaimLost => Self::Superseded,
            other @ (StoreError::Database(_) | StoreError::Undone) => Self::Failed(other.into()),
        }
    }
}

/// A provider call within the server's bound; a late answer is an unknown one.
pub(super) async fn call<T>(berth: &Berth, work: impl Future<Output = crate::provider::Result<T>>) -> crate::provider::Result<T> {
    call_within(berth.settings.call_timeout, work).await
}

async fn call_within<T>(bound: Duration, work: impl Future<Output = crate::provider::Result<T>>) -> crate::provider::Result<T> {
    match tokio::time::timeout(bound, work).await {
        Ok(answer) => answer,
        Err(_) => Err(ProviderError::new(Kind::Indeterminate, "it did not answer in time")),
    }
}

/// Makes the instance of a `creating` row ready, under the claim on that work. Repeatable after a crash at any line. Whoever took
/// the claim over finishes the row, and its holder may be writing already: before anything is put into the workspace the claim is
/// proven again.
pub async fn make(berth: &Arc<Berth>, instance: &Instance, plan: &Plan, claim: &Claimed) -> std::result::Result<Ready, Unmade> {
    // Only before the first create call is it sure that nothing was made.
    let asked = instance.provider_ref.is_some() || instance.create_called_at.is_some();
    let unmade = |error| if asked { Unmade::Failed(error) } else { Unmade::Refused(error) };
    let provider = berth.provider_of(instance).await.map_err(unmade)?;
    let selected = select(berth, instance, plan).await.map_err(unmade)?;
    let spec = super::secrets::spec(berth, instance).await.map_err(unmade)?;
    let provider_ref = match &instance.provider_ref {
        Some(provider_ref) => provider_ref.clone(),
        None => create(berth, &*provider, instance, &spec, selected.snapshot.as_deref(), claim).await?,
    };
    super::crash_point("after_create");
    // What was said of the object when it was made is part of every further call.
    let provider = berth.provider_of(instance).await.map_err(Unmade::Failed)?;
    let workspace_path =
        call(berth, provider.realize(&provider_ref, &spec)).await.map_err(|e| Unmade::Failed(super::provider_failed(&e)))?;
    if spec.config.is_told_by(&workspace_path) {
        return Err(Unmade::Failed(Error::new(
            Code::ProviderError,
            "The provider's working directory gives a secret away; it is not kept.",
        )));
    }
    let restored_from = match &selected.checkpoint {
        Some(checkpoint) if selected.snapshot.is_some() => Some(by_receipt(checkpoint)),
        Some(checkpoint) => {
            let bound = berth.settings.provision_deadline;
            let put_back = tokio::time::timeout(bound, put_back(berth, &*provider, &provider_ref, checkpoint, claim)).await;
            let late = || Err(Unmade::Failed(Error::new(Code::ProviderTimeout, "Putting the workspace back took too long.")));
            Some(put_back.unwrap_or_else(|_| late())?)
        }
        None => None,
    };
    let chosen = selected.checkpoint.filter(|c| plan.fork && plan.restore == Some(c.id));
    Ok(Ready { workspace_path, restored_from, diverged: selected.diverged, chosen })
}

/// Asks the provider for the object of this row's tag, and commits its ref before anything else is thought about.
async fn create(
    berth: &Berth,
    provider: &dyn Provider,
    instance: &Instance,
    spec: &Spec,
    snapshot: Option<&str>,
    claim: &Claimed,
) -> std::result::Result<String, Unmade> {
    let tag = tag_of(berth, instance);
    let by_tag = provider.traits().lookup == crate::provider::Lookup::ByTag;
    let mut pause = Duration::from_millis(250);
    // Whether some call may have made the object already; from then on no refusal proves that there is none.
    let mut perhaps = instance.create_called_at.is_some();
    if perhaps && !by_tag {
        let lost = Error::new(
            Code::ProviderTimeout,
            "Whether the sandbox was made cannot be found out at this provider, and making it is not repeated.",
        );
        return Err(Unmade::Failed(lost));
    }
    for attempt in 0.. {
        let made = ensure_once(berth, provider, instance, (spec, snapshot), &tag, claim, perhaps).await?;
        match made {
            Ok(made) => {
                keep_ref(berth, instance, &made).await?;
                return Ok(made.provider_ref);
            }
            Err(error) => {
                if let Some(left) = &error.left {
                    // Named by the failure itself: recorded like any other ref, and torn down with the row.
                    let made = Made { provider_ref: left.clone(), provider_expires_at: None, metadata: None };
                    keep_ref(berth, instance, &made).await?;
                    return Err(Unmade::Failed(super::provider_failed(&error)));
                }
                let surely_not =
                    !perhaps && matches!(error.kind, Kind::Refused | Kind::Invalid | Kind::Failed | Kind::NoImage | Kind::Unsupported);
                if attempt < 2 && by_tag && error.kind.is_transient() {
                    perhaps = true;
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                    continue;
                }
                let told = super::provider_failed(&error);
                return Err(if surely_not { Unmade::Refused(told) } else { Unmade::Failed(told) });
            }
        }
    }
    unreachable!("the loop returns")
}

async fn ensure_once(
    berth: &Berth,
    provider: &dyn Provider,
    instance: &Instance,
    (spec, snapshot): (&Spec, Option<&str>),
    tag: &OwnerTag,
    claim: &Claimed,
    perhaps: bool,
) -> std::result::Result<crate::provider::Result<Made>, Unmade> {
    let binding = match call(berth, provider.binding()).await {
        Ok(binding) => binding,
        // Before the first create call nothing can exist yet, whatever the account says.
        Err(error) if !perhaps => return Err(Unmade::Refused(super::provider_failed(&error))),
        Err(error) => return Ok(Err(error)),
    };
    let mut tx = berth.store.begin().await?;
    tx.lock_sandbox(instance.sandbox_id).await?;
    tx.prove(claim).await?;
    let now = tx.now().await?;
    tx.note_create_call(instance.id, &binding, now).await?;
    tx.commit().await?;
    super::crash_point("after_intent");
    let made = if let Some(snapshot) = snapshot {
        call(berth, provider.restore(spec, tag, snapshot)).await
    } else {
        // An answer that is dropped too early may be the only word of what was made.
        let bound = provider.traits().ensure_takes.unwrap_or_default().min(berth.settings.provision_deadline);
        call_within(bound.max(berth.settings.call_timeout), provider.ensure(spec, tag)).await
    };
    // A name with a secret in it can be written down nowhere, so the object is one whose answer was lost.
    let unspeakable = || ProviderError::new(Kind::Indeterminate, "the object's name gives a secret away");
    Ok(made.and_then(|made| if spec.config.is_told_by(&made.provider_ref) { Err(unspeakable()) } else { Ok(made) }))
}

/// Writes the ref onto the row, whatever became of it meanwhile. A row that is over already goes to teardown; a second ref of a
/// row becomes a ledger entry of its own.
pub(super) async fn keep_ref(berth: &Berth, instance: &Instance, made: &Made) -> std::result::Result<(), Unmade> {
    let mut last = None;
    for _ in 0..3 {
        match try_keep_ref(berth, instance.id, made).await {
            Ok(kept) => return kept,
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tracing::error!(instance_id = %instance.id, provider = %instance.provider, "a provider's ref could not be recorded; it is spooled");
    let unrecorded = Unrecorded {
        instance_id: instance.id,
        provider: instance.provider.clone(),
        provider_ref: made.provider_ref.clone(),
        provider_expires_at: made.provider_expires_at,
        provider_metadata: made.metadata.clone(),
    };
    berth.spool.keep(unrecorded).await;
    let cause = last.map_or(Code::StorageUnavailable, |error| error.code);
    let told = Error::new(
        Code::OrphanUnrecorded,
        "The sandbox was made but could not be recorded. Its name is kept beside the database, and it is ended when the database takes it.",
    );
    Err(Unmade::Failed(told.fact("cause", cause.as_str())))
}

/// One attempt at writing a ref down. The outer error: the database would not; the inner one: whose it is no longer to use.
pub(super) async fn try_keep_ref(berth: &Berth, id: Uuid, made: &Made) -> Result<std::result::Result<(), Unmade>> {
    let mut tx = berth.store.begin().await?;
    let Some(row) = tx.instance_by_id(id).await? else { return Ok(Err(Unmade::Superseded)) };
    if tx.lock_sandbox(row.sandbox_id).await?.is_none() {
        return Ok(Err(Unmade::Superseded));
    }
    let now = tx.now().await?;
    let Some(mut row) = tx.instance_by_id(id).await? else { return Ok(Err(Unmade::Superseded)) };
    let binding = row.binding.clone().unwrap_or_default();
    let first = tx.write_ref(id, &binding, &made.provider_ref, made.provider_expires_at, made.metadata.as_ref(), now).await?;
    let outcome = if !first {
        second_ref(&mut tx, &row, &binding, made, now).await?;
        Err(Unmade::Superseded)
    } else if matches!(row.status, Status::Destroyed | Status::Lost) {
        let was = row.status;
        row.status = super::step(was.on(crate::model::instance::Event::LateRef))?;
        (row.cleanup_next_at, row.destroyed_at) = (Some(now), None);
        tx.save_instance(&row, was, now).await?;
        Err(Unmade::Superseded)
    } else if row.status == Status::PendingCleanup {
        let was = row.status;
        row.cleanup_next_at = Some(now);
        tx.save_instance(&row, was, now).await?;
        Err(Unmade::Superseded)
    } else if row.status == Status::Creating {
        Ok(())
    } else {
        // Found by the same tag and finished by whoever took the work over.
        Err(Unmade::Superseded)
    };
    tx.commit().await?;
    Ok(outcome)
}

/// A ref is never replaced: a second one of the same row is an entry of its own, to be torn down.
async fn second_ref(tx: &mut crate::store::Tx, row: &Instance, binding: &str, made: &Made, now: Time) -> Result<()> {
    let entry = Instance {
        id: crate::id::new(),
        role: Role::Retired,
        status: Status::PendingCleanup,
        binding: Some(binding.to_owned()),
        provider_ref: Some(made.provider_ref.clone()),
        provider_metadata: made.metadata.clone().map(Json),
        retire_reason: Some("second_ref".to_owned()),
        cleanup_next_at: Some(now),
        retired_at: Some(now),
        created_at: now,
        used_at: now,
        hold_reason: None,
        ..row.clone()
    };
    Ok(tx.insert_instance(&entry).await?)
}

/// The owner tag of a row.
pub(super) fn tag_of(berth: &Berth, instance: &Instance) -> OwnerTag {
    OwnerTag {
        deployment: berth.deployment.id,
        organization: instance.organization_id,
        sandbox: instance.sandbox_id,
        instance: instance.id,
        generation: instance.generation,
    }
}

struct Selected {
    checkpoint: Option<Checkpoint>,
    /// The provider's name of it, for a native one.
    snapshot: Option<String>,
    diverged: bool,
}

/// The revision to put back, its bytes verified before anything is created. The selected one only, unless the caller said
/// what else will do.
async fn select(berth: &Berth, instance: &Instance, plan: &Plan) -> Result<Selected> {
    let Some(wanted) = plan.restore else { return Ok(Selected { checkpoint: None, snapshot: None, diverged: false }) };
    let mut tx = berth.store.read().await?;
    let chosen = tx.checkpoint(instance.organization_id, wanted).await?.ok_or_else(|| Error::not_found("checkpoint"))?;
    let older = tx.attached_checkpoints(instance.sandbox_id).await?;
    drop(tx);
    let told = if chosen.kind == CheckpointKind::ProviderNative && chosen.sandbox_id != instance.sandbox_id {
        Err(Error::new(Code::CheckpointUnavailable, "A provider's own snapshot starts no other sandbox; only a portable checkpoint does."))
    } else {
        usable(berth, instance, &chosen).await
    };
    let problem = match told {
        Ok(snapshot) => return Ok(Selected { diverged: !chosen.current && !plan.fork, snapshot, checkpoint: Some(chosen) }),
        Err(problem) => problem,
    };
    match plan.on_unavailable {
        Some(OnUnavailable::Empty) => Ok(Selected { checkpoint: None, snapshot: None, diverged: true }),
        Some(OnUnavailable::OlderRevision) => {
            for candidate in older
                .into_iter()
                .filter(|c| c.id != wanted && c.kind == CheckpointKind::PortableWorkspace && c.created_at <= chosen.created_at)
            {
                if usable(berth, instance, &candidate).await.is_ok() {
                    return Ok(Selected { checkpoint: Some(candidate), snapshot: None, diverged: true });
                }
            }
            Err(problem)
        }
        _ => Err(problem),
    }
}

/// Whether it can be put back now; a native one by the name that is returned.
async fn usable(berth: &Berth, instance: &Instance, checkpoint: &Checkpoint) -> Result<Option<String>> {
    let unavailable = |detail: &str| Err(Error::new(Code::CheckpointUnavailable, detail).fact("checkpoint_id", checkpoint.id.to_string()));
    if checkpoint.kind == CheckpointKind::ProviderNative {
        return super::native::usable(berth, &instance.provider, checkpoint).await.map(Some);
    }
    let (Some(key), Some(sha256), Some(size)) = (&checkpoint.object_key, &checkpoint.archive_sha256, checkpoint.size_bytes) else {
        return unavailable("This checkpoint has no stored archive.");
    };
    berth.blobs.verify(key, sha256, u64::try_from(size).unwrap_or(0)).await.map_err(|e| archive_failed(&e))?;
    Ok(None)
}

/// A snapshot is what its provider says it is: its identity was checked, and nothing is known of its content.
fn by_receipt(checkpoint: &Checkpoint) -> RestoredFrom {
    RestoredFrom {
        checkpoint_id: checkpoint.id,
        workspace_revision: checkpoint.workspace_revision.clone().unwrap_or_default(),
        kind: checkpoint.kind,
        verification: "receipt".to_owned(),
        entries: 0,
        bytes: 0,
    }
}

/// Unpacks a portable archive into a made instance and proves that what is there now is what was saved.
async fn put_back(
    berth: &Berth,
    provider: &dyn Provider,
    provider_ref: &str,
    checkpoint: &Checkpoint,
    claim: &Claimed,
) -> std::result::Result<RestoredFrom, Unmade> {
    let refused = |error: &ProviderError| Unmade::Failed(super::provider_failed(error));
    let broken = |error: &crate::archive::ArchiveError| Unmade::Failed(archive_failed(error));
    let key = checkpoint.object_key.as_deref().unwrap_or_default();
    let limits = Limits::default();
    let tar = berth.blobs.open_tar(key, &limits).await.map_err(|e| broken(&e))?;
    berth.store.read().await?.prove_now(claim).await?;
    provider.write_tree(provider_ref, UNGRANTED, WORKSPACE, tar, WriteMode::Replace).await.map_err(|e| refused(&e))?;
    let read = provider.read_tree(provider_ref, WORKSPACE, &[]).await.map_err(|e| refused(&e))?;
    let found = crate::archive::measure::digest_stream(read.tar, limits).await.map_err(|e| broken(&e))?;
    let saved = checkpoint.tree.as_ref().map(|t| t.digest.as_str());
    if saved != Some(found.digest.as_str()) {
        let differs = integrity("workspace_fingerprint_mismatch", "The restored workspace is not what was saved; it was not used.");
        return Err(Unmade::Failed(differs));
    }
    Ok(RestoredFrom {
        checkpoint_id: checkpoint.id,
        workspace_revision: checkpoint.workspace_revision.clone().unwrap_or_default(),
        kind: checkpoint.kind,
        verification: "content".to_owned(),
        entries: i64::try_from(found.entries).unwrap_or(i64::MAX),
        bytes: i64::try_from(found.bytes).unwrap_or(i64::MAX),
    })
}

/// 409 `checkpoint_integrity` with its own code.
pub(super) fn integrity(code: &str, detail: &str) -> Error {
    Error::new(Code::CheckpointIntegrity, detail).fact("integrity_code", code)
}

/// Tells an archive's failure in the contract's words.
pub(super) fn archive_failed(error: &crate::archive::ArchiveError) -> Error {
    match error.code {
        ArchiveCode::HashMismatch => integrity("archive_hash_mismatch", "The stored archive is not what was saved; it was not used."),
        ArchiveCode::Missing => integrity("archive_missing", "The stored archive is gone."),
        ArchiveCode::Invalid | ArchiveCode::Unsafe => integrity("archive_metadata_invalid", "The stored archive cannot be read."),
        ArchiveCode::Limit => Error::new(Code::ArchiveLimitExceeded, "The workspace is larger than an archive may be."),
        ArchiveCode::Full => Error::new(Code::StorageFull, "The archive store is full."),
        ArchiveCode::Storage => {
            Error::new(Code::StorageUnavailable, "The archive store did not answer.").retry_after(Duration::from_secs(5))
        }
    }
}
