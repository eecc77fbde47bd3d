//! Measures a tar that streams in: its tree, on a thread that may block.

use tokio_util::sync::CancellationToken;

use super::pipe::Reader;
use super::{ArchiveCode, ArchiveError, ByteStream, Limits, Result, Tree};

/// The tree of a streamed tar, checked as [`super::tree::digest`] checks; dropping the future ends the work.
pub async fn digest_stream(tar: ByteStream, limits: Limits) -> Result<Tree> {
    let cancel = CancellationToken::new();
    let _given_up = cancel.clone().drop_guard();
    let mut reader = Reader::new(tar, cancel);
    let work = tokio::task::spawn_blocking(move || super::tree::digest(&mut reader, &limits));
    work.await.map_err(|_| ArchiveError::new(ArchiveCode::Storage, "the measuring thread was lost"))?
}
