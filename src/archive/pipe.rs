//! Joins blocking work on bytes with streams that others await.

use std::io::{self, BufWriter, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, DuplexStream, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::io::SyncIoBridge;
use tokio_util::sync::CancellationToken;

use super::{ByteStream, Result};

/// How far a writer may run ahead of its reader.
pub(super) const AHEAD: usize = 256 << 10;
const CHUNK: usize = 128 << 10;

/// Runs blocking work that writes, and returns what it writes as a stream.
///
/// The stream ends only if the work returned `Ok`; otherwise it ends with an error from which `ArchiveError::from` gets the
/// work's own error back. When the stream is dropped, the work's next write fails. Must be called inside a Tokio runtime.
pub fn stream<F>(work: F) -> ByteStream
where
    F: FnOnce(&mut dyn Write) -> Result<()> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(AHEAD);
    let work = spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(CHUNK, SyncIoBridge::new(near));
        work(&mut out)?;
        Ok(out.flush()?)
    });
    Box::pin(Piped { far, work: Some(work) })
}

struct Piped {
    far: DuplexStream,
    work: Option<JoinHandle<Result<()>>>,
}

impl AsyncRead for Piped {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.far).poll_read(context, buffer))?;
        if buffer.filled().len() > before || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(work) = &mut self.work else { return Poll::Ready(Ok(())) };
        let done = ready!(Pin::new(work).poll(context));
        self.work = None;
        Poll::Ready(done.map_err(io::Error::other)?.map_err(io::Error::from))
    }
}

/// A stream for blocking work to read, on a thread that may block.
pub struct Reader {
    stream: ByteStream,
    runtime: Handle,
    cancel: CancellationToken,
}

impl Reader {
    /// Wraps a stream; once `cancel` is cancelled every read fails, so that work whose caller has left does not wait for a
    /// stream that may never go on. Must be called inside the runtime that drives the stream.
    pub fn new(stream: ByteStream, cancel: CancellationToken) -> Self {
        Self { stream, runtime: Handle::current(), cancel }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "nobody waits for this any more")),
                read = self.stream.read(buffer) => read,
            }
        })
    }
}

/// Copies everything and returns how much it was.
pub(super) fn pump(from: &mut dyn Read, to: &mut dyn Write) -> Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            done => done?,
        };
        if read == 0 {
            return Ok(total);
        }
        to.write_all(&buffer[..read])?;
        total += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{ArchiveCode, ArchiveError};

    #[tokio::test]
    async fn a_stream_ends_with_the_error_of_its_work() {
        let mut good = stream(|out| Ok(out.write_all(&vec![7; 1_000_000])?));
        let mut bytes = Vec::new();
        good.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), 1_000_000);
        let mut bad = stream(|out| {
            out.write_all(b"some")?;
            Err(ArchiveError::limit("too much"))
        });
        let error = ArchiveError::from(bad.read_to_end(&mut Vec::new()).await.unwrap_err());
        assert_eq!(error, ArchiveError::limit("too much"));
    }

    #[tokio::test]
    async fn work_whose_stream_is_dropped_ends() {
        let (told, hear) = tokio::sync::oneshot::channel();
        let endless = stream(move |out| {
            while out.write_all(&[0; 4096]).is_ok() {}
            let _ = told.send(());
            Ok(())
        });
        drop(endless);
        hear.await.unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_is_cancelled_stops_waiting() {
        let (keep_open, silent) = tokio::io::duplex(16);
        let cancel = CancellationToken::new();
        let mut reader = Reader::new(Box::pin(silent), cancel.clone());
        let waiting = spawn_blocking(move || reader.read(&mut [0; 16]));
        cancel.cancel();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(ArchiveError::from(error).code, ArchiveCode::Storage);
        drop(keep_open);
    }
}
