//! Follows one command: passes on what it writes, and ends it with everything it started when its time is over or nobody
//! listens any more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use super::Docker;
use super::agent::{Call, drain};
use super::frames::{Frames, Stream};
use super::lifecycle::Facts;
use super::words::LastWord;
use crate::provider::{ExecEnd, ExecEvent, ExecExit, Kind, Result};

/// How long a tree may take to be proven dead, before the container is killed with it.
const PROOF: Duration = Duration::from_secs(2);
/// How long that may take for all commands of lower grants.
const FENCE_PROOF: Duration = Duration::from_secs(5);
/// How often the end of what cannot be reached is tried again.
const TRIES: usize = 5;
/// An exit code above this is a signal's, as every shell has it.
const SIGNALS: i32 = 128;
const MOST_SIGNAL: i32 = 64;

/// What it takes to follow one command.
pub(super) struct Follower {
    pub(super) docker: Docker,
    pub(super) facts: Arc<Facts>,
    pub(super) call: Call,
    pub(super) events: mpsc::Sender<ExecEvent>,
    /// The caller's word.
    pub(super) cancel: CancellationToken,
    /// The provider's word: somebody else is ending it.
    pub(super) doomed: CancellationToken,
    pub(super) timeout: Duration,
}

/// Why following is over.
enum End {
    /// The wrapper said so: code, and whether anything outlives it.
    Told(i32, bool),
    /// The stream ended without the wrapper's last word.
    Silent,
    /// The connection broke.
    Broken,
    /// It is to be ended.
    Due(ExecEnd),
    /// Nobody listens any more.
    Left,
}

impl Follower {
    /// `gone`: the caller left before the command started.
    pub(super) async fn follow(
        self,
        exec: &str,
        mut frames: FramedRead<impl AsyncRead + Unpin + Send + 'static, Frames>,
        early: Vec<(Stream, Bytes)>,
        gone: bool,
    ) {
        let deadline = Instant::now() + self.timeout;
        let end = if gone { End::Left } else { self.listen(&mut frames, early, deadline).await };
        let exit = match end {
            End::Told(code, lingering) => Some(self.exit(code, lingering).await),
            End::Silent => self.explain(exec).await,
            End::Broken => {
                self.docker.kill_command(&self.call).await;
                None
            }
            End::Due(end) => {
                self.docker.commands.tasks.spawn(drain(frames.into_inner()));
                let dead = self.docker.kill_command(&self.call).await;
                dead.then_some(ExecExit { end, process_tree_killed: true, lingering: false })
            }
            End::Left => {
                self.docker.commands.tasks.spawn(drain(frames.into_inner()));
                self.docker.kill_command(&self.call).await;
                None
            }
        };
        if let Some(exit) = exit {
            // A reader that left needs no exit.
            let _ = self.events.send(ExecEvent::Exit(exit)).await;
        }
    }

    /// Passes output on until something ends it. Room is waited for first, so that a slow reader slows the command down.
    async fn listen(&self, frames: &mut FramedRead<impl AsyncRead + Unpin, Frames>, early: Vec<(Stream, Bytes)>, deadline: Instant) -> End {
        let mut words = (LastWord::new(&self.call.nonce), LastWord::new(&self.call.nonce));
        let (mut told, mut quiet) = (None, false);
        let mut early = early.into_iter();
        loop {
            if let Some((code, lingering)) = told.filter(|_| quiet) {
                return End::Told(code, lingering);
            }
            let permit = tokio::select! {
                biased;
                () = self.events.closed() => return End::Left,
                () = self.cancel.cancelled() => return End::Due(ExecEnd::Cancelled),
                () = tokio::time::sleep_until(deadline) => return End::Due(ExecEnd::TimedOut),
                permit = self.events.reserve() => match permit { Ok(permit) => permit, Err(_) => return End::Left },
            };
            let frame = if let Some(frame) = early.next() {
                Some(Ok(frame))
            } else {
                tokio::select! {
                    biased;
                    () = self.events.closed() => return End::Left,
                    () = self.cancel.cancelled() => return End::Due(ExecEnd::Cancelled),
                    () = tokio::time::sleep_until(deadline) => return End::Due(ExecEnd::TimedOut),
                    frame = frames.next() => frame,
                }
            };
            let (stream, output) = match frame {
                Some(Ok((Stream::Stdout, bytes))) => {
                    let (output, word) = words.0.pass(bytes);
                    told = told.or(word.as_deref().and_then(exit_word));
                    (Stream::Stdout, output)
                }
                Some(Ok((Stream::Stderr, bytes))) => {
                    let (output, word) = words.1.pass(bytes);
                    quiet |= word.is_some();
                    (Stream::Stderr, output)
                }
                None => {
                    let rest = words.0.rest();
                    if !rest.is_empty() {
                        permit.send(ExecEvent::Stdout(rest));
                    }
                    return End::Silent;
                }
                Some(Err(_)) => return if self.doomed.is_cancelled() { End::Silent } else { End::Broken },
            };
            if !output.is_empty() {
                permit.send(if stream == Stream::Stdout { ExecEvent::Stdout(output) } else { ExecEvent::Stderr(output) });
            }
        }
    }

    async fn exit(&self, code: i32, lingering: bool) -> ExecExit {
        if self.doomed.is_cancelled() && code > SIGNALS {
            return cancelled();
        }
        let signal = code - SIGNALS;
        if (1..=MOST_SIGNAL).contains(&signal) {
            if signal == 9 && self.docker.ran_out_of_memory(&self.call.container).await {
                let note = Bytes::from_static(b"berth: killed, because the sandbox's memory is used up\n");
                // A reader that left needs no note.
                let _ = self.events.send(ExecEvent::Stderr(note)).await;
            }
            return ExecExit { end: ExecEnd::Signaled(signal), process_tree_killed: false, lingering };
        }
        ExecExit { end: ExecEnd::Exited(code), process_tree_killed: false, lingering }
    }

    /// A wrapper that says no last word was killed, by its own command or from outside; or the connection was cut at a frame's end.
    async fn explain(&self, exec: &str) -> Option<ExecExit> {
        let code = self.docker.exit_code(exec).await;
        if self.doomed.is_cancelled() {
            return Some(cancelled());
        }
        match code {
            Ok(Some(code)) if code > SIGNALS => {
                let left = self.docker.kill_below(&self.call.container, &self.facts, None, Some(self.call.id)).await;
                let exit = self.exit(code, false).await;
                Some(ExecExit { process_tree_killed: left.is_ok(), ..exit })
            }
            _ => {
                self.docker.kill_command(&self.call).await;
                None
            }
        }
    }
}

fn cancelled() -> ExecExit {
    ExecExit { end: ExecEnd::Cancelled, process_tree_killed: true, lingering: false }
}

fn exit_word(word: &str) -> Option<(i32, bool)> {
    let (code, lingers) = word.split_once(' ')?;
    Some((code.parse().ok()?, lingers != "0"))
}

impl Docker {
    /// Ends one command with everything it started: by the script, and with the whole container if that does not prove it. True
    /// when it is proven.
    pub(super) async fn kill_command(&self, call: &Call) -> bool {
        for _ in 0..TRIES {
            let Ok(facts) = self.facts(&call.container).await else { break };
            let killed = timeout(PROOF, self.kill_below(&call.container, &facts, call.user.as_deref(), Some(call.id))).await;
            match killed {
                Ok(Ok(())) => return true,
                Ok(Err(error)) if error.kind == Kind::NotFound => return true,
                // Nothing runs in a container that is stopped; in a paused one it is only frozen.
                _ => match self.inspect(&call.container).await {
                    Ok(container) if container.state.status == "exited" => return true,
                    Err(error) if error.kind == Kind::NotFound => return true,
                    _ => {}
                },
            }
            tracing::warn!(instance_id = %call.instance, "a command could not be ended in its container, which is killed with it");
            self.commands.doom(&call.container, None);
            match self.kill_all(&call.container).await {
                Ok(()) => return true,
                Err(error) if error.kind == Kind::NotFound => return true,
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
        false
    }

    /// Ends one command, or everything else that is nobody's.
    pub(super) async fn kill_below(&self, container: &str, facts: &Facts, user: Option<&str>, only: Option<uuid::Uuid>) -> Result<()> {
        let only = only.map(|id| id.to_string()).unwrap_or_default();
        let said = self.control(container, facts, "kill", &[&only], user).await?;
        if said.word == "done" { Ok(()) } else { Err(unproven()) }
    }

    /// Raises the fence and ends what is below it; a container whose processes do not end is killed, and stays stopped.
    pub(super) async fn raise_fence(&self, container: &str, grant_seq: i64) -> Result<()> {
        let facts = self.facts(container).await?;
        self.commands.doom(container, Some(grant_seq));
        let height = grant_seq.max(0).to_string();
        for first in [true, false] {
            match timeout(FENCE_PROOF, self.control(container, &facts, "fence", &[&height], None)).await {
                Ok(Ok(said)) if said.word == "done" => return Ok(()),
                Ok(Err(error)) if !error.kind.is_transient() => return Err(error),
                _ if first => {
                    tracing::warn!(instance_id = %facts.tag.instance, "a container is started anew, since its commands do not end");
                    self.commands.doom(container, None);
                    self.kill_all(container).await?;
                    self.run(container).await?;
                }
                _ => {}
            }
        }
        Err(unproven())
    }

    /// How many process trees run.
    pub(super) async fn count(&self, container: &str) -> Result<u64> {
        let facts = self.facts(container).await?;
        let said = match self.control(container, &facts, "count", &[], None).await {
            Err(error) if error.kind == Kind::Refused && !self.inspect(container).await?.runs() => return Ok(0),
            said => said?,
        };
        said.word.strip_prefix("done ").and_then(|count| count.parse().ok()).ok_or_else(unproven)
    }
}

fn unproven() -> crate::provider::ProviderError {
    crate::provider::ProviderError::new(Kind::Transient, "a command could not be ended in time")
}
