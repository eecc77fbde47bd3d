//! Runs a scripted command in a memory sandbox, with the same ends as a real one.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::command::{Action, Redirect, Simple, action, parse};
use super::node::join;
use super::world::{Object, Process, now};
use crate::provider::{ExecEnd, ExecEvent, ExecExit, ExecSpec, Kind, ProviderError, PutOptions, Result, Running};

/// Events and stdin chunks that may wait; small, so that tests meet back-pressure.
const QUEUE: usize = 4;
const KEEP: PutOptions = PutOptions { mode: None, parents: false };

/// Admits a command and starts it.
pub(super) fn start(inner: &Arc<Inner>, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
    if spec.argv.is_empty() {
        return Err(ProviderError::new(Kind::Invalid, "the command has no argv"));
    }
    if spec.user.is_some() {
        return Err(ProviderError::new(Kind::Invalid, "this provider cannot choose a user"));
    }
    let killed = CancellationToken::new();
    let cwd = {
        let mut world = inner.lock();
        let object = world.running(provider_ref)?;
        if object.fence > spec.grant_seq {
            return Err(ProviderError::fenced());
        }
        let cwd = object.tree.enter(spec.cwd.as_deref().unwrap_or_default().as_bytes())?;
        object.processes.insert(spec.id, Process { grant_seq: spec.grant_seq, killed: killed.clone() });
        cwd
    };
    let (stdin, input) = mpsc::channel(QUEUE);
    let (events, received) = mpsc::channel(QUEUE);
    let cancel = CancellationToken::new();
    let run = Run { inner: Arc::clone(inner), provider_ref: provider_ref.to_owned(), cwd, input, events, spec };
    inner.tasks.spawn(run.finish(killed, cancel.clone()));
    Ok(Running { stdin, events: received, cancel })
}

struct Run {
    inner: Arc<Inner>,
    provider_ref: String,
    cwd: Vec<u8>,
    input: mpsc::Receiver<Bytes>,
    events: mpsc::Sender<ExecEvent>,
    spec: ExecSpec,
}

impl Run {
    async fn finish(mut self, killed: CancellationToken, cancel: CancellationToken) {
        let (events, timeout) = (self.events.clone(), self.spec.timeout);
        let (end, linger) = tokio::select! {
            biased;
            () = killed.cancelled() => (ExecEnd::Cancelled, None),
            () = cancel.cancelled() => (ExecEnd::Cancelled, None),
            () = events.closed() => (ExecEnd::Cancelled, None),
            () = tokio::time::sleep(timeout) => (ExecEnd::TimedOut, None),
            (code, linger) = self.script() => (ExecEnd::Exited(code), linger),
        };
        if linger.is_none() {
            self.forget();
        }
        let process_tree_killed = !matches!(end, ExecEnd::Exited(_));
        // A caller that left takes no exit.
        let _ = events.send(ExecEvent::Exit(ExecExit { end, process_tree_killed, lingering: linger.is_some() })).await;
        drop(events);
        if let Some(span) = linger {
            tokio::select! {
                () = killed.cancelled() => {}
                () = tokio::time::sleep(span) => {}
            }
            self.forget();
        }
    }

    fn forget(&self) {
        if let Ok(object) = self.inner.lock().object(&self.provider_ref) {
            object.processes.remove(&self.spec.id);
        }
    }

    async fn script(&mut self) -> (i32, Option<std::time::Duration>) {
        let (mut code, mut linger) = (0, None);
        for simple in parse(&self.spec.argv) {
            match action(&simple.words) {
                Action::Sleep(span) => {
                    tokio::time::sleep(span).await;
                    code = 0;
                }
                Action::Linger(span) => {
                    linger = Some(span);
                    code = 0;
                }
                Action::Exit(with) => return (with, linger),
                Action::Copy => code = self.copy(&simple).await,
                other => code = self.act(other, simple.redirect).await,
            }
        }
        (code, linger)
    }

    async fn copy(&mut self, simple: &Simple) -> i32 {
        let mut kept = BytesMut::new();
        while let Some(bytes) = self.input.recv().await {
            if simple.redirect.is_some() {
                kept.extend_from_slice(&bytes);
            } else {
                self.say(bytes).await;
            }
        }
        self.put_out(kept.freeze(), simple.redirect.as_ref()).await
    }

    async fn act(&self, action: Action, redirect: Option<Redirect>) -> i32 {
        let path = |path: &str| self.at(path);
        let done = match &action {
            Action::Say { code, stdout, stderr } => {
                if !stderr.is_empty() {
                    // A caller that left ends the command by itself.
                    let _ = self.events.send(ExecEvent::Stderr(Bytes::from_static(stderr.as_bytes()))).await;
                }
                let written = self.put_out(Bytes::copy_from_slice(stdout), redirect.as_ref()).await;
                return if written == 0 { *code } else { written };
            }
            Action::Cat(file) => self.with(|object| object.tree.read(&path(file)).map(|(_, bytes)| bytes)),
            Action::Write { path: file, text } => {
                let text = Bytes::copy_from_slice(text.as_bytes());
                self.with(|object| object.tree.write(&path(file), text, KEEP, now()).map(|_| Bytes::new()))
            }
            Action::Remove(file) => self.with(|object| object.tree.remove(&path(file), false).map(|()| Bytes::new())),
            Action::Copy | Action::Sleep(_) | Action::Linger(_) | Action::Exit(_) => Ok(Bytes::new()),
        };
        match done {
            Ok(bytes) => self.put_out(bytes, redirect.as_ref()).await,
            Err(error) => {
                let _ = self.events.send(ExecEvent::Stderr(Bytes::from(format!("{}\n", error.message)))).await;
                1
            }
        }
    }

    /// Sends output to the caller or into the file of a redirection; the exit code of having done so.
    async fn put_out(&self, bytes: Bytes, redirect: Option<&Redirect>) -> i32 {
        let Some(Redirect { path, append }) = redirect else {
            self.say(bytes).await;
            return 0;
        };
        let path = self.at(path);
        let written = self.with(|object| {
            let before = if *append { object.tree.read(&path).map(|(_, bytes)| bytes).unwrap_or_default() } else { Bytes::new() };
            object.tree.write(&path, [before, bytes].concat().into(), KEEP, now())
        });
        i32::from(written.is_err())
    }

    /// A command's path, seen from its working directory.
    fn at(&self, path: &str) -> Vec<u8> {
        if path.starts_with('/') { path.as_bytes().to_vec() } else { join(&self.cwd, path.as_bytes()) }
    }

    async fn say(&self, bytes: Bytes) {
        if !bytes.is_empty() {
            let _ = self.events.send(ExecEvent::Stdout(bytes)).await;
        }
    }

    /// Touches the sandbox, only while this command still runs in it: what a fence has killed has no effect any more.
    fn with<T>(&self, act: impl FnOnce(&mut Object) -> Result<T>) -> Result<T> {
        let mut world = self.inner.lock();
        let object = world.running(&self.provider_ref)?;
        if object.processes.contains_key(&self.spec.id) {
            act(object)
        } else {
            Err(ProviderError::new(Kind::Refused, "the command was killed"))
        }
    }
}
