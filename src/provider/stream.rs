//! Bytes between blocking code and async readers, with back-pressure and an honest end.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

use super::{ByteStream, Kind, ProviderError, Result};

/// Bytes per item on the way; together with the queue's length this bounds what waits in memory.
const CHUNK: usize = 64 * 1024;
const QUEUE: usize = 4;

/// What the blocking side says; silence after the last chunk is a failure, not an end.
enum Item {
    Chunk(Bytes),
    Complete,
}

/// The blocking end of a stream. Dropped without `finish`, the reader gets an error instead of an end.
pub(crate) struct StreamWriter {
    buffer: Vec<u8>,
    items: mpsc::Sender<Item>,
}

/// A writer for blocking code and the stream that reads what it writes.
pub(crate) fn channel() -> (StreamWriter, ByteStream) {
    let (items, received) = mpsc::channel(QUEUE);
    let chunks = stream::unfold(Some(received), |received| async {
        let mut received = received?;
        match received.recv().await {
            Some(Item::Chunk(bytes)) => Some((Ok(bytes), Some(received))),
            Some(Item::Complete) => None,
            None => Some((Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream broke off")), None)),
        }
    });
    (StreamWriter { buffer: Vec::with_capacity(CHUNK), items }, Box::pin(StreamReader::new(Box::pin(chunks))))
}

impl StreamWriter {
    /// Says that everything was written; only now does the reader see an end.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Item::Complete)
    }

    fn send(&self, item: Item) -> io::Result<()> {
        self.items.blocking_send(item).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        self.send(Item::Chunk(full.into()))
    }
}

/// The blocking end of a stream that is read. Given up by its other end, it fails instead of ending.
pub(crate) struct StreamReads {
    current: Bytes,
    items: mpsc::Receiver<Item>,
    complete: bool,
}

/// A future that reads a stream, and a reader for blocking code that gets what it reads. Dropping the future, and an error in
/// the stream, fail the reader; a reader that is dropped ends the future.
pub(crate) fn feed(mut stream: ByteStream) -> (impl Future<Output = Result<()>> + Send, StreamReads) {
    let (items, received) = mpsc::channel(QUEUE);
    let feeding = async move {
        loop {
            let mut buffer = BytesMut::with_capacity(CHUNK);
            let length = stream
                .read_buf(&mut buffer)
                .await
                .map_err(|e| ProviderError::new(Kind::Refused, "the body broke off; nothing was changed").because(e))?;
            let item = if length == 0 { Item::Complete } else { Item::Chunk(buffer.freeze()) };
            if items.send(item).await.is_err() || length == 0 {
                return Ok(());
            }
        }
    };
    (feeding, StreamReads { current: Bytes::new(), items: received, complete: false })
}

impl Read for StreamReads {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.complete {
            match self.items.blocking_recv() {
                Some(Item::Chunk(bytes)) => self.current = bytes,
                Some(Item::Complete) => self.complete = true,
                None => return Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
            }
        }
        let length = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}

/// A stream of these bytes.
pub fn from_bytes(bytes: impl Into<Bytes>) -> ByteStream {
    Box::pin(io::Cursor::new(bytes.into()))
}

/// Everything a stream holds, up to `limit` bytes; `Refused` when it breaks off, `Full` when it holds more.
pub async fn read_all(stream: ByteStream, limit: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    stream.take(most).read_to_end(&mut bytes).await.map_err(|e| ProviderError::new(Kind::Refused, "the body broke off").because(e))?;
    if bytes.len() > limit {
        return Err(ProviderError::new(Kind::Full, "the body is larger than the provider takes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_writer_dropped_early_is_an_error_and_not_an_end() {
        for complete in [true, false] {
            let (mut writer, reader) = channel();
            let blocking = tokio::task::spawn_blocking(move || {
                writer.write_all(&vec![7; CHUNK + 1])?;
                if complete { writer.finish() } else { Ok(()) }
            });
            let read = read_all(reader, 2 * CHUNK).await;
            blocking.await.unwrap().unwrap();
            assert_eq!(read.map(|bytes| bytes.len()).ok(), complete.then_some(CHUNK + 1));
        }
    }
}
