//! Starts commands, and knows which of them run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::Docker;
use super::agent::{Call, FIRST_WORD, Grant, NotOpen, Open, first_line, nonce};
use super::follow::Follower;
use super::frames::{Frames, Stream};
use super::lifecycle::Facts;
use super::paths;
use super::words::FirstWord;
use crate::id;
use crate::provider::{ExecSpec, FileKind, Kind, Prepared, ProviderError, Result, Running};

/// Events, and chunks of stdin, that may wait for their reader.
const QUEUE: usize = 8;

/// How long an exec may take to be made for its start to be waited for anew; nobody waits for it longer.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(1);

/// The commands that this server started.
#[derive(Debug, Default)]
pub(super) struct Commands {
    pub(super) tasks: TaskTracker,
    live: Mutex<HashMap<Uuid, Live>>,
}

#[derive(Debug)]
struct Live {
    container: String,
    grant_seq: i64,
    doomed: CancellationToken,
}

impl Commands {
    /// Notes that a container's commands of lower grants are about to be ended by whoever calls this.
    pub(super) fn doom(&self, container: &str, below: Option<i64>) {
        for live in self.lock().values() {
            if live.container == container && below.is_none_or(|below| live.grant_seq < below) {
                live.doomed.cancel();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a started command is followed with.
struct Started {
    exec: String,
    frames: FramedRead<tokio::io::ReadHalf<reqwest::Upgraded>, Frames>,
    input: tokio::io::WriteHalf<reqwest::Upgraded>,
    /// Output that came with the first word.
    early: Vec<(Stream, Bytes)>,
}

impl Docker {
    /// Starts a command. Given up at any point, whatever was started ends.
    pub(super) async fn start_command(&self, container: &str, spec: ExecSpec) -> Result<Running> {
        let facts = self.facts(container).await?;
        let call = self.call_of(container, &facts, &spec).await?;
        let (input_sender, input) = mpsc::channel(QUEUE);
        let (events, received) = mpsc::channel(QUEUE);
        let (answer, answered) = oneshot::channel();
        let (cancel, doomed) = (CancellationToken::new(), CancellationToken::new());
        let (docker, follower_cancel) = (self.clone(), cancel.clone());
        // In a task of its own: whoever asks may leave at any time, and what was started must be followed to its end.
        self.commands.tasks.spawn(async move {
            let name = id::new();
            let live = Live { container: call.container.clone(), grant_seq: spec.grant_seq, doomed: doomed.clone() };
            docker.commands.lock().insert(name, live);
            let started = docker.begin_command(&call, &facts).await;
            match started {
                Ok(started) => {
                    let over = CancellationToken::new();
                    if call.stdin {
                        docker.commands.tasks.spawn(feed(started.input, input, over.clone()));
                    }
                    let gone = answer.send(Ok(())).is_err();
                    let follower =
                        Follower { docker: docker.clone(), facts, call, events, cancel: follower_cancel, doomed, timeout: spec.timeout };
                    follower.follow(&started.exec, started.frames, started.early, gone).await;
                    over.cancel();
                }
                Err(error) => {
                    // A caller that left hears nothing.
                    let _ = answer.send(Err(error));
                }
            }
            docker.commands.lock().remove(&name);
        });
        match answered.await {
            Ok(Ok(())) => Ok(Running { stdin: input_sender, events: received, cancel }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ProviderError::new(Kind::Indeterminate, "the command's task was lost")),
        }
    }

    /// Makes the exec of a command, if the engine does so at once.
    pub(super) async fn prepare_command(&self, container: &str, spec: &ExecSpec) -> Option<Prepared> {
        // Where it is to run would have to be looked up.
        if spec.cwd.is_some() {
            return None;
        }
        let making = async {
            let facts = self.facts(container).await.ok()?;
            let call = self.call_of(container, &facts, spec).await.ok()?;
            Some(Prepared { name: self.create_exec(&call).await.ok()?, nonce: call.nonce })
        };
        timeout(AT_ONCE, making).await.ok().flatten()
    }

    async fn call_of(&self, container: &str, facts: &Facts, spec: &ExecSpec) -> Result<Call> {
        if spec.argv.is_empty() {
            return Err(ProviderError::new(Kind::Invalid, "a command has at least one word"));
        }
        let cwd = match &spec.cwd {
            Some(cwd) => Some(self.working_directory(container, facts, cwd).await?),
            None => None,
        };
        let (prepared, nonce) = match &spec.prepared {
            Some(ready) => (Some(ready.name.clone()), ready.nonce.clone()),
            None => (None, nonce()),
        };
        Ok(Call {
            container: container.to_owned(),
            instance: facts.tag.instance,
            id: spec.id,
            grant: Grant::Command(spec.grant_seq),
            verb: "run",
            arguments: spec.argv.clone(),
            env: spec.env.clone(),
            cwd,
            user: spec.user.clone(),
            stdin: spec.stdin,
            prepared,
            nonce,
        })
    }

    async fn begin_command(&self, call: &Call, facts: &Facts) -> Result<Started> {
        for first in [true, false] {
            // What was made before can be started once.
            let call = &Call { prepared: call.prepared.clone().filter(|_| first), ..call.clone() };
            let (word, started) = match self.hear(call).await {
                Ok(heard) => heard,
                Err(NotOpen::Surely(error)) => return Err(error),
                Err(NotOpen::Perhaps(error)) => {
                    // It may run with nobody to follow it.
                    let (docker, call) = (self.clone(), call.clone());
                    self.commands.tasks.spawn(async move { docker.kill_command(&call).await });
                    return Err(error);
                }
            };
            match word {
                FirstWord::Started => return Ok(started),
                FirstWord::Fenced => {
                    return Err(ProviderError::fenced());
                }
                FirstWord::Unregistered if first => self.make_state(&call.container, facts).await?,
                FirstWord::Unregistered => break,
            }
        }
        Err(ProviderError::new(Kind::Invalid, "the container has no place where a command can be registered"))
    }

    /// Starts the exec and reads its first word.
    async fn hear(&self, call: &Call) -> std::result::Result<(FirstWord, Started), NotOpen> {
        let Open { exec, io } = self.open_exec(call).await?;
        let (output, input) = tokio::io::split(io);
        let mut frames = FramedRead::with_capacity(output, Frames::default(), 64 * 1024);
        let lost = || NotOpen::Perhaps(ProviderError::new(Kind::Indeterminate, "the command's first word was lost"));
        match timeout(FIRST_WORD, first_line(&mut frames)).await {
            Ok(Ok(Some((line, early)))) => match FirstWord::read(&line, &call.nonce) {
                Some(word) => Ok((word, Started { exec, frames, input, early })),
                // The engine's own words, in the place of the command's.
                None => Err(NotOpen::Surely(self.silent(&exec).await)),
            },
            Ok(Ok(None)) => match self.silent(&exec).await {
                error if error.kind == Kind::Invalid => Err(NotOpen::Surely(error)),
                _ => Err(lost()),
            },
            _ => Err(lost()),
        }
    }

    /// Where a command is to run.
    async fn working_directory(&self, container: &str, facts: &Facts, cwd: &str) -> Result<String> {
        // Outside the workspace, a command may stand wherever its container has a directory.
        let found = if cwd.starts_with('/') && paths::inside(&facts.workspace, cwd).is_err() {
            if cwd.split('/').any(|part| part == "..") {
                return Err(paths::escapes());
            }
            self.head(container, cwd).await?.map(|stat| (cwd.to_owned(), stat))
        } else {
            let place = self.resolve(container, facts, cwd, true).await?;
            place.found.map(|found| (place.path, found))
        };
        match found {
            Some((path, stat)) if stat.kind() == FileKind::Directory => Ok(path),
            Some(_) => Err(ProviderError::new(Kind::NotADirectory, "the working directory is no directory")),
            None => Err(ProviderError::new(Kind::FileNotFound, "the working directory is missing")),
        }
    }
}

/// Passes standard input on until its sender is dropped, then closes it; the command may be over before.
async fn feed(mut stdin: impl AsyncWrite + Unpin, mut input: mpsc::Receiver<Bytes>, over: CancellationToken) {
    let pass = async {
        while let Some(bytes) = input.recv().await {
            if stdin.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // Half of the connection: output goes on.
        let _ = stdin.shutdown().await;
        over.cancelled().await;
    };
    tokio::select! {
        () = over.cancelled() => {}
        () = pass => {}
    }
}
