//! Upload and download of portable archives: checked as they stream in, stored in one form, streamed out as they are.

use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, ReadBuf};
use uuid::Uuid;

use super::attach::only_the_writer;
use super::{Berth, Caller, make};
use crate::archive::{ArchiveCode, ArchiveError, ByteStream, Limits};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Kind, Tree, portable_revision};
use crate::model::key::Scope;
use crate::store::artifact::{NewArtifact, StoredArtifact};

/// An upload that has not ended after this span never will; what there is of it is deleted.
const UPLOAD_ENDS: Duration = Duration::from_secs(24 * 3600);

/// An archive that is stored and may be recorded within 24 hours.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// What to record it as.
    pub workspace_revision: String,
    /// SHA-256 of the stored bytes, lower-case hex.
    pub archive_sha256: String,
    /// Size of the stored bytes.
    pub size_bytes: i64,
    /// What it contains.
    pub tree: Tree,
}

/// Stores an uploaded archive, a tar or a tar compressed with zstd, told by its content. `digest`: the SHA-256 the caller promised.
pub async fn upload(
    berth: &Berth,
    caller: &Caller,
    sandbox: Uuid,
    lease_id: Option<Uuid>,
    body: ByteStream,
    digest: Option<[u8; 32]>,
) -> Result<Uploaded> {
    caller.require_on_sandbox(berth, Scope::Write, sandbox).await?;
    let mut tx = berth.store.read().await?;
    let row = tx.living_sandbox(caller.organization, sandbox).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    let now = tx.now().await?;
    only_the_writer(&mut tx, caller, &row, lease_id, now).await?;
    drop(tx);
    let artifact = crate::id::new();
    let key = format!("{}/{sandbox}/{artifact}.tar.zst", caller.organization);
    let registered = NewArtifact {
        id: artifact,
        organization_id: caller.organization,
        sandbox_id: sandbox,
        kind: Kind::PortableWorkspace,
        object_key: &key,
    };
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.register_artifact(&registered, now.after(UPLOAD_ENDS), now).await?;
    tx.commit().await?;
    let sum = Arc::new(Mutex::new(Sha256::new()));
    let hashed = Box::pin(Hashed { body, sum: Arc::clone(&sum) });
    let packed = berth.blobs.put_upload(&key, hashed, &Limits::default()).await.map_err(|e| refused(&e))?;
    let found: [u8; 32] = sum.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize().into();
    if digest.is_some_and(|promised| promised != found) {
        berth.blobs.delete(&key).await.ok();
        return Err(Error::new(Code::DigestMismatch, "The bytes that arrived are not those that Content-Digest names."));
    }
    let tree = super::capture::tree_of(&packed);
    let size_bytes = i64::try_from(packed.size_bytes).unwrap_or(i64::MAX);
    let stored = StoredArtifact { archive_sha256: &packed.archive_sha256, size_bytes, tree: Some(&tree), provider: None };
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.publish_artifact(artifact, Kind::PortableWorkspace, &stored, now).await?;
    tx.commit().await?;
    Ok(Uploaded {
        workspace_revision: portable_revision(now, &packed.archive_sha256),
        archive_sha256: packed.archive_sha256,
        size_bytes,
        tree,
    })
}

/// Why an archive is not taken, in the contract's words.
pub(super) fn refused(error: &ArchiveError) -> Error {
    match error.code {
        ArchiveCode::Unsafe => Error::new(Code::ArchiveUnsafe, format!("This archive is refused: {}.", error.detail)),
        ArchiveCode::Invalid => Error::new(Code::ArchiveInvalid, format!("This is not a complete, well-formed archive: {}.", error.detail)),
        ArchiveCode::Limit => Error::new(Code::ArchiveLimitExceeded, format!("This archive is larger than it may be: {}.", error.detail)),
        _ => make::archive_failed(error),
    }
}

/// The form of a downloaded archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An uncompressed tar.
    Tar,
    /// The stored bytes.
    TarZst,
}

/// Opens a portable checkpoint's archive; a range is of the stored bytes only.
pub async fn download(
    berth: &Berth,
    caller: &Caller,
    sandbox: Uuid,
    checkpoint: Uuid,
    form: Form,
    range: Option<Range<u64>>,
) -> Result<(Checkpoint, ByteStream)> {
    let row = super::checkpoint::get(berth, caller, sandbox, checkpoint).await?;
    let Some(key) = row.object_key.clone().filter(|_| row.kind == Kind::PortableWorkspace && row.archive_sha256.is_some()) else {
        return Err(Error::new(Code::CheckpointUnavailable, "This checkpoint has no portable archive."));
    };
    let told = |e: ArchiveError| make::archive_failed(&e);
    let body = match form {
        Form::Tar => berth.blobs.open_tar(&key, &Limits::default()).await.map_err(told)?,
        Form::TarZst => berth.blobs.open_raw(&key, range).await.map_err(told)?,
    };
    Ok((row, body))
}

/// A stream whose bytes are summed as they pass.
struct Hashed {
    body: ByteStream,
    sum: Arc<Mutex<Sha256>>,
}

impl AsyncRead for Hashed {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.body.as_mut().poll_read(context, buffer);
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).update(&buffer.filled()[before..]);
        polled
    }
}
