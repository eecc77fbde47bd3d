//! A command's output on its way from the shim to the server, with back-pressure, up to the end of the command.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::ioctl_fionread;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::wire::{CHUNK, Frame, HEADER, encode, head};

/// How long after the command's end its pipes may stay open before that is called lingering.
const GRACE: Duration = Duration::from_secs(2);

/// The frames' way to the server.
pub(super) struct Output(Mutex<pipe::Sender>);

impl Output {
    pub(super) fn new(pipe: pipe::Sender) -> Self {
        Self(Mutex::new(pipe))
    }

    /// Sends a frame that is no output.
    pub(super) async fn say(&self, frame: &Frame) -> io::Result<()> {
        self.send(&encode(frame)?).await
    }

    /// Sends a whole frame; never given up half way.
    async fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.0.lock().await.write_all(frame).await
    }
}

/// What is left of a pipe that was not read to its end.
pub(super) struct Drain {
    from: Option<pipe::Receiver>,
    buffer: Vec<u8>,
}

impl Drain {
    /// Reads on and throws away, so that what lingers is not stopped by a full pipe.
    pub(super) async fn discard(mut self) {
        if let Some(mut from) = self.from {
            while from.read(&mut self.buffer).await.is_ok_and(|n| n > 0) {}
        }
    }
}

/// Passes on everything until the pipe's end. Once the command is `over`: what stood in the pipe at that moment, however
/// slowly the server reads, and what else comes within the grace.
pub(super) async fn pump(mut from: pipe::Receiver, kind: u8, output: Arc<Output>, over: CancellationToken) -> Drain {
    let mut buffer = vec![0; HEADER + CHUNK];
    // Owed bytes and the moment after which nothing else is waited for, once the command is over.
    let mut last: Option<(u64, Instant)> = None;
    loop {
        let read = match last {
            None => tokio::select! {
                biased;
                () = over.cancelled() => {
                    last = Some((ioctl_fionread(&from).unwrap_or(0), Instant::now() + GRACE));
                    continue;
                }
                read = from.read(&mut buffer[HEADER..]) => read,
            },
            Some((0, until)) if Instant::now() >= until => return Drain { from: Some(from), buffer },
            Some((owed, until)) => match timeout_at(until, from.read(&mut buffer[HEADER..])).await {
                Ok(read) => read,
                Err(_) if owed == 0 => return Drain { from: Some(from), buffer },
                // What is owed lies in the pipe, so this does not wait.
                Err(_) => from.read(&mut buffer[HEADER..]).await,
            },
        };
        let length = match read {
            Ok(length) if length > 0 => length,
            _ => return Drain { from: None, buffer },
        };
        if let Some((owed, _)) = &mut last {
            *owed = owed.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
        head(&mut buffer, kind, length);
        if output.send(&buffer[..HEADER + length]).await.is_err() {
            // The server is gone, and what it will never read must not hold up the command's end.
            return Drain { from: Some(from), buffer };
        }
    }
}
