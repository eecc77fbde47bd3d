//! Taking a workspace's bytes: walked, streamed into the store, read back and walked again; nothing of it moves a pointer.

use super::{Berth, make};
use crate::archive::{ArchiveCode, ArchiveError, Limits};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Consistency, Tree, Warning};
use crate::model::instance::Instance;
use crate::provider::{Snapshot, WORKSPACE};

/// Bytes that were taken and stored.
pub(super) struct Taken {
    /// Of the archive's bytes; of a snapshot, of what names it.
    pub archive_sha256: String,
    pub size_bytes: Option<i64>,
    /// What is known of the content; of a snapshot's, nothing.
    pub tree: Option<Tree>,
    pub snapshot: Option<Snapshot>,
    pub consistency: Consistency,
    pub warnings: Vec<Warning>,
}

/// Takes the bytes and stores them under `key`, all in the bound of one capture. What changed while they were taken is taken again,
/// a few times.
/// `certain`: whatever was admitted before is surely over; else the bytes are `live`, however quiet it looks.
pub(super) async fn take(berth: &Berth, instance: &Instance, exclude: &[String], key: &str, certain: bool) -> Result<Taken> {
    let attempts = async {
        let mut last = changed();
        for _ in 0..3 {
            match take_once(berth, instance, exclude, key, certain).await {
                Err(error) if error.facts.get("cause") == last.facts.get("cause") => last = error,
                other => return other,
            }
        }
        Err(last)
    };
    let late = || Err(failed("capture_timed_out", "Saving the workspace took too long."));
    tokio::time::timeout(berth.settings.capture_timeout, attempts).await.unwrap_or_else(|_| late())
}

fn changed() -> Error {
    failed("workspace_changed_during_capture", "The workspace changed while it was saved.")
}

async fn take_once(berth: &Berth, instance: &Instance, exclude: &[String], key: &str, certain: bool) -> Result<Taken> {
    let provider = berth.provider_of(instance).await?;
    let provider_ref = instance.provider_ref.as_deref().unwrap_or_default();
    let told = |e: &crate::provider::ProviderError| super::provider_failed(e);
    let live = !certain || make::call(berth, provider.processes(provider_ref)).await.map_err(|e| told(&e))? > 0;
    let before = walk(&*provider, provider_ref, exclude, live).await?;
    let read = provider.read_tree(provider_ref, WORKSPACE, exclude).await.map_err(|e| told(&e))?;
    let packed = berth.blobs.put_tree(key, read.tar, &Limits::default()).await.map_err(|e| not_taken(&e))?;
    let skipped = read.skipped.await.unwrap_or(0);
    if before != walk(&*provider, provider_ref, exclude, live).await? {
        berth.blobs.delete(key).await.ok();
        return Err(changed());
    }
    let warnings = if skipped > 0 {
        vec![Warning { code: "special_files_skipped".to_owned(), count: i64::try_from(skipped).unwrap_or(i64::MAX), path: None }]
    } else {
        Vec::new()
    };
    let (size_bytes, tree) = (i64::try_from(packed.size_bytes).ok(), Some(super::capture::tree_of(&packed)));
    Ok(Taken {
        archive_sha256: packed.archive_sha256,
        size_bytes,
        tree,
        snapshot: None,
        consistency: if live { Consistency::Live } else { Consistency::Quiescent },
        warnings,
    })
}

/// With a process open everything may change at any time, and the checkpoint says so; without one, nothing may.
async fn walk(provider: &dyn crate::provider::Provider, provider_ref: &str, exclude: &[String], live: bool) -> Result<Option<String>> {
    if live {
        return Ok(None);
    }
    match provider.stat_walk(provider_ref, exclude).await {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if error.kind == crate::provider::Kind::Unsupported => Ok(None),
        Err(error) => Err(super::provider_failed(&error)),
    }
}

fn failed(cause: &str, detail: &str) -> Error {
    Error::new(Code::CaptureFailed, detail).fact("cause", cause)
}

fn not_taken(error: &ArchiveError) -> Error {
    match error.code {
        ArchiveCode::Invalid => changed(),
        ArchiveCode::Unsafe => failed("workspace_unreadable", "The workspace holds something an archive cannot carry."),
        _ => make::archive_failed(error),
    }
}
