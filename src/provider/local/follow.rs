//! Follows one command: passes on what happens, and holds the pipe whose end kills the tree.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio::time::interval;
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use super::fence::{kill_below, overrule};
use super::process::is_stopped;
use super::wire::{Frame, Frames, Order, Refusal, send_order};
use crate::provider::ExecEvent;

/// How often a shim is looked at.
const PATROL: Duration = Duration::from_secs(2);

/// What it takes to follow one command.
pub(super) struct Follower {
    pub(super) child: Child,
    pub(super) frames: FramedRead<ChildStdout, Frames>,
    pub(super) events: mpsc::Sender<ExecEvent>,
    /// Told once whether the command started; dropped when that cannot be known.
    pub(super) answer: Option<oneshot::Sender<Result<(), Refusal>>>,
    /// The caller's word.
    pub(super) cancel: CancellationToken,
    /// The provider's word.
    pub(super) kill: CancellationToken,
    /// Cancelled when the command is over.
    pub(super) over: CancellationToken,
    pub(super) provider_ref: String,
}

/// How a command ended, as far as the frames tell.
enum End {
    /// Nothing was started.
    Refused,
    Exit {
        lingering: bool,
    },
    /// Nothing is known: the shim is dead.
    Broken,
}

impl Follower {
    pub(super) async fn follow(mut self, mut control: pipe::Sender, order: Order) {
        // A shim that is gone already shows as a missing answer.
        let sent = tokio::select! {
            sent = send_order(&mut control, &order) => sent.is_ok(),
            () = self.events.closed() => false,
        };
        let mut held = Some(control).filter(|_| sent);
        let mut look = interval(PATROL);
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let end = loop {
            tokio::select! {
                biased;
                () = self.events.closed(), if held.is_some() => held = None,
                () = ended(&self.cancel, &self.kill), if held.is_some() && self.answer.is_none() => held = None,
                _ = look.tick() => overrule_if_stopped(pid).await,
                end = pass(&mut self.frames, &self.events, &mut self.answer) => if let Some(end) = end { break end },
            }
        };
        self.over.cancel();
        // What waits for the answer or the end of the events waits until nothing runs any more, unless it saw an exit.
        let Self { mut child, mut frames, events, answer, kill, provider_ref, .. } = self;
        let unfinished = matches!(end, End::Broken).then_some((events, answer));
        if let End::Exit { lingering: true } = end {
            loop {
                tokio::select! {
                    () = kill.cancelled() => break,
                    _ = frames.next() => break,
                    _ = look.tick() => overrule_if_stopped(pid).await,
                }
            }
        }
        // Both pipes: a shim must not wait for a reader either.
        drop((held, frames));
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                _ = look.tick() => overrule_if_stopped(pid).await,
            }
        };
        if unfinished.is_some() || !status.is_ok_and(|status| status.success()) {
            // The shim was killed, and its tree may be free. Nobody waits for an answer here; every later fence, stop and
            // destroy looks again.
            let instance: PathBuf = order.instance;
            let _ = tokio::task::spawn_blocking(move || kill_below(&instance, &provider_ref, Some(i64::MIN))).await;
        }
        drop(unfinished);
    }
}

/// Until the caller or the provider wants the command dead. Before it started only the shim can tell whether it did, and why
/// not: it is asked to its end.
async fn ended(cancel: &CancellationToken, kill: &CancellationToken) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = kill.cancelled() => {}
    }
}

/// Ends a shim that its own command has stopped: it would neither see the deadline nor hear that it is to end.
async fn overrule_if_stopped(pid: Option<i32>) {
    if let Some(pid) = pid.filter(|pid| is_stopped(*pid)) {
        // What this does not achieve is done when the shim's end is seen.
        let _ = tokio::task::spawn_blocking(move || overrule(pid)).await;
    }
}

/// Passes one frame on; says how the command ended, if that was it. Room is waited for first, so that a slow reader slows the
/// command down and nothing piles up. May be given up at any moment without losing a frame.
async fn pass(
    frames: &mut FramedRead<ChildStdout, Frames>,
    events: &mpsc::Sender<ExecEvent>,
    answer: &mut Option<oneshot::Sender<Result<(), Refusal>>>,
) -> Option<End> {
    // A reader that left gets nothing, but the frames up to the exit are still taken in.
    let permit = events.reserve().await.ok();
    let (event, end) = match frames.next().await {
        Some(Ok(Frame::Started)) => {
            // A caller that left is seen by its events.
            let _ = answer.take().map(|answer| answer.send(Ok(())));
            return None;
        }
        Some(Ok(Frame::Refused(why))) => {
            let _ = answer.take().map(|answer| answer.send(Err(why)));
            return Some(End::Refused);
        }
        Some(Ok(Frame::Stdout(bytes))) => (ExecEvent::Stdout(bytes), None),
        Some(Ok(Frame::Stderr(bytes))) => (ExecEvent::Stderr(bytes), None),
        Some(Ok(Frame::Exit(exit))) => {
            let lingering = exit.lingering;
            (ExecEvent::Exit(exit), Some(End::Exit { lingering }))
        }
        Some(Err(_)) | None => return Some(End::Broken),
    };
    if let Some(permit) = permit {
        permit.send(event);
    }
    end
}
