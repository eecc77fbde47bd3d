//! Listening to a running command: its input is fed, its output gathered and, for a reader who follows, passed on with back-pressure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::output::Gathered;
use crate::model::operation::Output;
use crate::provider::{ExecEvent, ExecExit, Running};

/// How many chunks wait for a reader; with their size this bounds what a slow one costs.
const QUEUE: usize = 4;

/// Which of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a follower hears before the end.
#[derive(Debug)]
pub enum Heard {
    /// The command runs.
    Started,
    /// It wrote this.
    Wrote(Stream, Bytes),
}

/// Where a command's output goes besides being kept.
pub(super) struct Tee {
    sender: mpsc::Sender<Heard>,
    whole: Arc<AtomicBool>,
}

/// The reading end.
pub struct Follow {
    /// Ends when the command has ended, or its reader was given up.
    pub heard: mpsc::Receiver<Heard>,
    whole: Arc<AtomicBool>,
}

impl Follow {
    /// Whether everything the command wrote was passed on.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::SeqCst)
    }
}

/// The two ends of a follower's queue.
pub(super) fn tee() -> (Tee, Follow) {
    let (sender, heard) = mpsc::channel(QUEUE);
    let whole = Arc::new(AtomicBool::new(true));
    (Tee { sender, whole: Arc::clone(&whole) }, Follow { heard, whole })
}

/// How long a command is listened to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Until its end is called lost.
    pub(super) end: Duration,
    /// Until a reader that takes nothing is given up, so that the end is not missed for it.
    pub(super) reader: Duration,
}

/// Feeds standard input and gathers output until the command's end, its cancellation, or the bound.
pub(super) async fn listen(
    running: Running,
    stdin: Bytes,
    keep: usize,
    bounds: Bounds,
    cancel: &CancellationToken,
    mut tee: Option<Tee>,
) -> (Output, Output, Option<ExecExit>) {
    let Running { stdin: input, mut events, cancel: kill } = running;
    let (mut stdout, mut stderr, mut exit) = (Gathered::new(keep), Gathered::new(keep), None);
    let feed = async move {
        for chunk in chunks(&stdin) {
            if input.send(chunk).await.is_err() {
                break;
            }
        }
    };
    let hear = async {
        let (deadline, patience) = (tokio::time::sleep(bounds.end), tokio::time::sleep(bounds.reader));
        tokio::pin!(deadline, patience);
        let mut asked = false;
        if let Some(tee) = &tee {
            tee.sender.try_send(Heard::Started).ok();
        }
        loop {
            let wrote = tokio::select! {
                event = events.recv() => match event {
                    Some(ExecEvent::Stdout(bytes)) => { stdout.add(&bytes); Heard::Wrote(Stream::Stdout, bytes) }
                    Some(ExecEvent::Stderr(bytes)) => { stderr.add(&bytes); Heard::Wrote(Stream::Stderr, bytes) }
                    Some(ExecEvent::Exit(end)) => { exit = Some(end); break; }
                    None => break,
                },
                () = cancel.cancelled(), if !asked => { asked = true; kill.cancel(); continue; }
                () = &mut deadline => { kill.cancel(); break; }
            };
            let Some(reader) = tee.take() else { continue };
            // Until the reader has room nothing more is taken from the command: it waits for its reader.
            let room = reader.sender.clone().reserve_owned();
            tokio::pin!(room);
            let room = loop {
                tokio::select! {
                    room = &mut room => break room.ok(),
                    () = cancel.cancelled(), if !asked => { asked = true; kill.cancel(); }
                    () = &mut patience => { reader.whole.store(false, Ordering::SeqCst); break None; }
                }
            };
            if let Some(room) = room {
                room.send(wrote);
                tee = Some(reader);
            }
        }
    };
    let ((), ()) = tokio::join!(feed, hear);
    (stdout.done(), stderr.done(), exit)
}

fn chunks(stdin: &Bytes) -> Vec<Bytes> {
    (0..stdin.len()).step_by(64 * 1024).map(|at| stdin.slice(at..stdin.len().min(at + 64 * 1024))).collect()
}
