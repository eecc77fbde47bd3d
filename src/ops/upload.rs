//! Upload and download of portable archives: checked as they stream in, stored in one form, streamed out as they are.

use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use uuid::Uuid;

use super::attach::only_the_writer;
use super::{Berth, Caller, make};
use crate::archive::receipt::{self, Receipt};
use crate::archive::{ArchiveCode, ArchiveError, ByteStream, Limits};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Kind, Tree, revision};
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
    /// What it contains; nothing is known of a snapshot's content.
    pub tree: Option<Tree>,
}

/// Stores an uploaded archive: a tar, a tar compressed with zstd, or a native snapshot's receipt, told by its content. `digest`: the
/// SHA-256 the caller promised.
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
    let sum = Arc::new(Mutex::new(Sha256::new()));
    let mut body: ByteStream = Box::pin(Hashed { body, sum: Arc::clone(&sum) });
    let seen = look(&mut body).await.map_err(|e| refused(&e))?;
    let receipt = Receipt::parse(&seen);
    if receipt.as_ref().is_some_and(|r| !r.origin.agrees(r.workspace_persistence.as_deref())) {
        return Err(make::integrity(
            "native_snapshot_reference_invalid",
            "This receipt contradicts itself: its first line and its persistence.",
        ));
    }
    let (kind, form) = if receipt.is_some() { (Kind::ProviderNative, "receipt") } else { (Kind::PortableWorkspace, "tar.zst") };
    let artifact = crate::id::new();
    let key = format!("{}/{sandbox}/{artifact}.{form}", caller.organization);
    let organization_id = caller.organization;
    let registered = NewArtifact { id: artifact, organization_id, sandbox_id: sandbox, kind, object_key: &key, home: None };
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.register_artifact(&registered, now.after(UPLOAD_ENDS), now).await?;
    tx.commit().await?;
    let (archive_sha256, size, tree) = if receipt.is_some() {
        let (sha256, size) = berth.blobs.put_bytes(&key, seen).await.map_err(|e| refused(&e))?;
        (sha256, size, None)
    } else {
        let whole = Box::pin(std::io::Cursor::new(seen).chain(body));
        let packed = berth.blobs.put_upload(&key, whole, &Limits::default()).await.map_err(|e| refused(&e))?;
        let tree = super::capture::tree_of(&packed);
        (packed.archive_sha256, packed.size_bytes, Some(tree))
    };
    let found: [u8; 32] = sum.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize().into();
    if digest.is_some_and(|promised| promised != found) {
        berth.blobs.delete(&key).await.ok();
        return Err(Error::new(Code::DigestMismatch, "The bytes that arrived are not those that Content-Digest names."));
    }
    let size_bytes = i64::try_from(size).unwrap_or(i64::MAX);
    let provider = receipt.as_ref().map(|r| r.origin.provider());
    let stored =
        StoredArtifact { archive_sha256: &archive_sha256, size_bytes: Some(size_bytes), tree: tree.as_ref(), provider, named: None };
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.publish_artifact(artifact, &stored, now).await?;
    tx.commit().await?;
    let workspace_revision = revision(kind, now, &archive_sha256);
    Ok(Uploaded { workspace_revision, archive_sha256, size_bytes, tree })
}

/// The first bytes, as long as they may be a receipt's: all of a receipt, and little of anything else.
async fn look(body: &mut ByteStream) -> std::result::Result<Vec<u8>, ArchiveError> {
    let mut seen = Vec::with_capacity(8 << 10);
    while Receipt::may_begin(&seen) && seen.len() <= receipt::MOST_BYTES {
        if body.read_buf(&mut seen).await? == 0 {
            break;
        }
    }
    Ok(seen)
}

/// The receipt behind a revision that is to be recorded as native, if one was uploaded under this sandbox; it must name this ref.
pub(super) async fn receipt_of(berth: &Berth, sandbox: Uuid, archive_sha256: &str, provider_ref: Option<&str>) -> Result<Option<Uuid>> {
    let stored = berth.store.read().await?.stored_artifact(sandbox, Kind::ProviderNative, archive_sha256).await?;
    let Some((artifact, key)) = stored else { return Ok(None) };
    let told = |e: ArchiveError| make::archive_failed(&e);
    let mut bytes = Vec::new();
    let most = u64::try_from(receipt::MOST_BYTES).unwrap_or(u64::MAX);
    let body = berth.blobs.open_raw(&key, None).await.map_err(told)?;
    body.take(most + 1).read_to_end(&mut bytes).await.map_err(|e| told(e.into()))?;
    let names = Receipt::parse(&bytes).map(|r| r.snapshot_id);
    if hex::encode(Sha256::digest(&bytes)) != archive_sha256 || names.as_deref() != provider_ref {
        return Err(make::integrity("native_snapshot_reference_invalid", "The receipt with this SHA-256 is for another snapshot."));
    }
    Ok(Some(artifact))
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
    let row = super::checkpoint::get(berth, caller, sandbox, checkpoint, Duration::ZERO).await?;
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
