//! Exec: a command is admitted, sent once, and settled once; its output is kept by its first and last bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::admit::{self, Admitted};
use super::input::{Exec, ListQuery};
use super::view::{Answered, ExecView, Page};
use super::{Berth, Caller, loss};
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::model::operation::{Kind, Operation, Output, Status};
use crate::provider::{ExecEnd, ExecEvent, ExecExit, ExecSpec, Kind as ProviderKind, ProviderError, Running};
use crate::store::operation::Settlement;
use crate::store::{Carried, Cursor};

/// How much longer than its own deadline a command is waited for before its answer is called lost.
const GRACE: Duration = Duration::from_secs(30);

/// How a sent command came back.
enum Came {
    Settled(Settlement, bool),
    /// It surely did not start, since its instance was found stopped: it may be admitted anew.
    Again,
    Failed(Error),
}

/// Runs a command and answers when it is over; longer than the caller's wait, with `keep`, answers that it runs.
pub async fn run(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, input: Exec) -> Result<(ExecView, Answered)> {
    caller.require_on_lease(Scope::Write, lease)?;
    loop {
        let id = crate::id::new();
        let admitted = admit::admit(berth, caller, lease, input.carried, id, Kind::Exec, input.timeout + GRACE * 2).await?;
        let cancel = CancellationToken::new();
        berth.work.register_exec(id, cancel.clone());
        let _leave = (!input.keep_on_disconnect).then(|| cancel.clone().drop_guard());
        let receiver = spawn(berth, admitted, &input, cancel);
        let came = match input.wait.filter(|_| input.keep_on_disconnect) {
            Some(wait) => match tokio::time::timeout(wait, receiver).await {
                Ok(came) => came,
                Err(_) => return Ok((view(berth, caller, lease, id, input.base64).await?, Answered::Pending)),
            },
            None => receiver.await,
        };
        if came.unwrap_or_else(|_| Err(Error::new(Code::OperationUnknown, "The command's task was lost; it may have run.")))? {
            return Ok((view(berth, caller, lease, id, input.base64).await?, Answered::Existing));
        }
    }
}

/// In a tracked task; the receiver hears `true` when it is settled, `false` when it is to be admitted anew.
fn spawn(berth: &Arc<Berth>, admitted: Admitted, input: &Exec, cancel: CancellationToken) -> oneshot::Receiver<Result<bool>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    let operation = &admitted.operation;
    let spec = ExecSpec {
        id: operation.id,
        grant_seq: operation.grant_seq,
        argv: input.argv.clone(),
        cwd: input.cwd.clone(),
        env: input.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        user: input.user.clone(),
        timeout: input.timeout,
    };
    let (stdin, keep) = (Bytes::from(input.stdin.clone()), input.max_output_bytes);
    berth.work.spawn(async move {
        let held = task.work.hold(admitted.claim);
        let id = admitted.operation.id;
        let told = match send(&task, &admitted, spec, stdin, keep, &cancel).await {
            Came::Settled(settlement, lingering) => admit::settle(&task, &admitted, &settlement, lingering).await.map(|_| true),
            Came::Again => admit::settle(&task, &admitted, &admit::plain(Status::Cancelled, None), false).await.map(|_| false),
            Came::Failed(error) => {
                admit::settle(&task, &admitted, &admit::plain(Status::Unknown, None), false).await.ok();
                Err(error)
            }
        };
        if told.is_ok() {
            held.settled();
        }
        task.work.forget_exec(id);
        sender.send(told).ok();
    });
    receiver
}

async fn send(berth: &Arc<Berth>, admitted: &Admitted, spec: ExecSpec, stdin: Bytes, keep: usize, cancel: &CancellationToken) -> Came {
    let provider = match berth.provider_of(&admitted.instance) {
        Ok(provider) => provider,
        Err(error) => return Came::Failed(error),
    };
    let bound = spec.timeout + GRACE;
    let provider_ref = admitted.instance.provider_ref.as_deref().unwrap_or_default();
    let running = match super::make::call(berth, provider.exec(provider_ref, spec)).await {
        Ok(running) => running,
        Err(error) => return not_started(berth, admitted, &error).await,
    };
    let (stdout, stderr, exit) = listen(running, stdin, keep, bound, cancel).await;
    let Some(exit) = exit else {
        if let Ok(loss::Found::Lost) = loss::investigate(berth, &admitted.instance).await {
            return Came::Failed(crate::store::fence::instance_lost());
        }
        let unknown = Settlement { status: Status::Unknown, exit_code: None, signal: None, process_tree_killed: false, stdout, stderr };
        return Came::Settled(unknown, true);
    };
    let (status, exit_code, signal) = match exit.end {
        ExecEnd::Exited(code) => (Status::Exited, Some(i64::from(code)), None),
        ExecEnd::Signaled(signal) => (Status::Exited, None, Some(i64::from(signal))),
        ExecEnd::TimedOut => (Status::TimedOut, None, None),
        ExecEnd::Cancelled => (Status::Cancelled, None, None),
    };
    let lingering = exit.lingering;
    Came::Settled(Settlement { status, exit_code, signal, process_tree_killed: exit.process_tree_killed, stdout, stderr }, lingering)
}

async fn not_started(berth: &Arc<Berth>, admitted: &Admitted, error: &ProviderError) -> Came {
    match error.kind {
        ProviderKind::NotFound | ProviderKind::Refused => match loss::investigate(berth, &admitted.instance).await {
            Ok(loss::Found::Lost) => Came::Failed(crate::store::fence::instance_lost()),
            Ok(loss::Found::Stopped) => Came::Again,
            Ok(loss::Found::Unproven) => Came::Failed(if error.kind == ProviderKind::NotFound {
                Error::new(Code::ProviderUnavailable, "The provider does not find the sandbox, and nothing proves that it is gone.")
                    .retry_after(Duration::from_secs(2))
            } else {
                super::provider_failed(error)
            }),
            Err(error) => Came::Failed(error),
        },
        ProviderKind::Fenced => {
            let operation = &admitted.operation;
            let carried = Carried { generation: Some(operation.generation), epoch: Some(operation.epoch) };
            let why = match berth.store.begin().await {
                Ok(mut tx) => tx.fence(operation.organization_id, operation.lease_id, carried).await.err(),
                Err(error) => Some(error.into()),
            };
            Came::Failed(why.unwrap_or_else(|| super::provider_failed(error)))
        }
        // The one file a start needs; a missing program is no refusal but exit code 127.
        ProviderKind::FileNotFound => {
            Came::Failed(Error::new(Code::FileNotFound, "The command's working directory does not exist in the sandbox."))
        }
        _ => Came::Failed(super::provider_failed(error)),
    }
}

/// Feeds standard input and gathers output until the command's end, its cancellation, or the bound.
async fn listen(
    running: Running,
    stdin: Bytes,
    keep: usize,
    bound: Duration,
    cancel: &CancellationToken,
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
        let deadline = tokio::time::sleep(bound);
        tokio::pin!(deadline);
        let mut asked = false;
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(ExecEvent::Stdout(bytes)) => stdout.add(&bytes),
                    Some(ExecEvent::Stderr(bytes)) => stderr.add(&bytes),
                    Some(ExecEvent::Exit(end)) => { exit = Some(end); break; }
                    None => break,
                },
                () = cancel.cancelled(), if !asked => { asked = true; kill.cancel(); }
                () = &mut deadline => { kill.cancel(); break; }
            }
        }
    };
    let ((), ()) = tokio::join!(feed, hear);
    (stdout.done(), stderr.done(), exit)
}

fn chunks(stdin: &Bytes) -> Vec<Bytes> {
    (0..stdin.len()).step_by(64 * 1024).map(|at| stdin.slice(at..stdin.len().min(at + 64 * 1024))).collect()
}

/// The first and the last half of a stream, within a bound.
struct Gathered {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    half: usize,
    total: i64,
}

impl Gathered {
    fn new(keep: usize) -> Self {
        Self { head: Vec::new(), tail: std::collections::VecDeque::new(), half: keep / 2, total: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    fn done(self) -> Output {
        let mut kept = self.head;
        kept.extend(self.tail);
        Output { kept, total: self.total }
    }
}

/// One exec of a lease.
pub async fn get(berth: &Berth, caller: &Caller, lease: Uuid, exec: Uuid) -> Result<ExecView> {
    caller.require_on_lease(Scope::Read, lease)?;
    view(berth, caller, lease, exec, false).await
}

/// A page of a lease's execs, without their output.
pub async fn list(berth: &Berth, caller: &Caller, lease: Uuid, query: ListQuery) -> Result<Page<ExecView>> {
    caller.require_on_lease(Scope::Read, lease)?;
    super::lease::read(berth, caller.organization, lease).await?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, &format!("execs:{lease}"), &query).await?;
    let mut tx = berth.store.read().await?;
    let rows = tx.execs(caller.organization, lease, cursor, query.limit + 1).await?;
    let server_time = tx.now().await?;
    let (rows, next_cursor) = super::lease::cut(rows, query.limit, &bound, |o: &Operation| Cursor { created_at: o.started_at, id: o.id });
    let mut items = Vec::with_capacity(rows.len());
    for operation in rows {
        let (stdout, stderr) = tx.operation_output(operation.id).await?;
        items.push(ExecView { operation, stdout, stderr, base64: false, server_time });
    }
    Ok(Page { items, next_cursor })
}

/// Kills a command's whole tree; what is over already is answered as it ended.
pub async fn cancel(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, exec: Uuid) -> Result<ExecView> {
    caller.require_on_lease(Scope::Write, lease)?;
    let first = view(berth, caller, lease, exec, false).await?;
    if first.operation.status != Status::Running {
        return Ok(first);
    }
    if !berth.work.cancel_exec(exec) {
        return Err(Error::new(
            Code::TransitionInProgress,
            "Another server runs this command; it is not reached from here. It ends with its lease or its deadline.",
        )
        .retry_after(Duration::from_secs(5)));
    }
    let line = berth.work.line(first.operation.sandbox_id);
    let patience = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let again = line.until_changed(patience).await;
        let now = view(berth, caller, lease, exec, false).await?;
        if now.operation.status != Status::Running || !again {
            return Ok(now);
        }
    }
}

async fn view(berth: &Berth, caller: &Caller, lease: Uuid, exec: Uuid, base64: bool) -> Result<ExecView> {
    let mut tx = berth.store.read().await?;
    let unknown = || Error::new(Code::ExecNotFound, "This lease has no such exec, or it ended more than 24 hours ago.");
    if tx.lease(caller.organization, lease).await?.is_none() {
        return Err(Error::not_found("lease"));
    }
    let operation = tx.operation(caller.organization, lease, exec).await?.filter(|o| o.kind == Kind::Exec).ok_or_else(unknown)?;
    let (stdout, stderr) = tx.operation_output(exec).await?;
    let server_time = tx.now().await?;
    Ok(ExecView { operation, stdout, stderr, base64, server_time })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_half_are_kept() {
        let mut all = Gathered::new(10);
        for chunk in [&b"abc"[..], b"defghij", b"klmnopqrstuvwxyz"] {
            all.add(chunk);
        }
        let output = all.done();
        assert_eq!(output.kept, b"abcdevwxyz");
        assert_eq!(output.total, 26);
        assert!(output.is_truncated());
        let mut small = Gathered::new(10);
        small.add(b"abcdefg");
        assert_eq!(small.done(), Output { kept: b"abcdefg".to_vec(), total: 7 });
    }
}
