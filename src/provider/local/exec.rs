//! Starts commands under shims, and reaches them all.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::follow::Follower;
use super::wire::{CHUNK, Frames, Order};
use crate::id;
use crate::provider::{Kind, ProviderError, Result, Running};

/// Events, and chunks of stdin, that may wait for their reader.
const QUEUE: usize = 8;

/// The commands whose shims this server started; dropping it ends them all.
pub(super) struct Commands {
    tasks: TaskTracker,
    live: Arc<Mutex<HashMap<Uuid, Live>>>,
    end: CancellationToken,
}

/// A command that has not ended, or left something behind.
struct Live {
    provider_ref: String,
    grant_seq: i64,
    kill: CancellationToken,
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Commands {
    pub(super) fn new() -> Self {
        Self { tasks: TaskTracker::new(), live: Arc::default(), end: CancellationToken::new() }
    }

    /// Cuts the control pipes of an instance's commands of lower grants, so that they end even if their registrations were
    /// tampered with. The proof that they ended is `kill_below`'s.
    pub(super) fn cancel_below(&self, provider_ref: &str, grant_seq: Option<i64>) {
        for live in lock(&self.live).values() {
            if live.provider_ref == provider_ref && grant_seq.is_none_or(|grant_seq| live.grant_seq < grant_seq) {
                live.kill.cancel();
            }
        }
    }

    /// Starts a command under a shim of its own. Given up at any point, whatever was started ends.
    pub(super) async fn start(&self, shim: &Path, provider_ref: &str, order: Order) -> Result<Running> {
        let Shim { child, control, stdin, frames } = spawn(shim).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
                ProviderError::new(Kind::Transient, "no room for a process").because(e)
            }
            _ => ProviderError::new(Kind::Refused, "the shim cannot be started").because(e),
        })?;
        let (input_sender, input) = mpsc::channel(QUEUE);
        let (events, received) = mpsc::channel(QUEUE);
        let (answer, answered) = oneshot::channel();
        let (cancel, kill, over) = (CancellationToken::new(), self.end.child_token(), CancellationToken::new());
        let live = Live { provider_ref: provider_ref.to_owned(), grant_seq: order.grant_seq, kill: kill.clone() };
        // Named anew, since an operation may be tried twice and each shim must be reached.
        let (name, live_ones) = (id::new(), Arc::clone(&self.live));
        lock(&live_ones).insert(name, live);
        self.tasks.spawn(feed(stdin, input, over.clone()));
        let follower = Follower {
            child,
            frames,
            events,
            answer: Some(answer),
            cancel: cancel.clone(),
            kill,
            over,
            provider_ref: provider_ref.to_owned(),
        };
        self.tasks.spawn(async move {
            follower.follow(control, order).await;
            lock(&live_ones).remove(&name);
        });
        match answered.await {
            Ok(Ok(())) => Ok(Running { stdin: input_sender, events: received, cancel }),
            Ok(Err(why)) => Err(ProviderError::new(why.kind(), why.message())),
            Err(_) => Err(ProviderError::new(Kind::Indeterminate, "the shim broke off")),
        }
    }
}

fn lock(live: &Mutex<HashMap<Uuid, Live>>) -> MutexGuard<'_, HashMap<Uuid, Live>> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shim {
    child: Child,
    control: pipe::Sender,
    stdin: ChildStdin,
    frames: FramedRead<ChildStdout, Frames>,
}

fn spawn(shim: &Path) -> io::Result<Shim> {
    let (ordered, orders) = io::pipe()?;
    let mut child = Command::new(shim)
        .arg("shim")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(ordered))
        .spawn()?;
    let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (stdin, stdout) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
    let frames = FramedRead::with_capacity(stdout, Frames, 2 * CHUNK);
    Ok(Shim { child, control: pipe::Sender::from_owned_fd(orders.into())?, stdin, frames })
}

/// Passes standard input on until its sender is dropped, the command closes it, or the command is over.
async fn feed(mut stdin: ChildStdin, mut input: mpsc::Receiver<Bytes>, over: CancellationToken) {
    let pass = async {
        while let Some(bytes) = input.recv().await {
            if stdin.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = over.cancelled() => {}
        () = pass => {}
    }
}
