//! Exec: a command is admitted, sent once, and settled once; its output is kept by its first and last bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::admit::{self, Admitted};
use super::input::{Exec, ListQuery};
use super::listen::{self, Bounds, Follow, Heard, Tee};
use super::view::{Answered, ExecView, Page};
use super::{Berth, Caller, loss};
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::model::operation::{Kind, Operation, Status};
use crate::provider::{ExecEnd, ExecSpec, Kind as ProviderKind, ProviderError};
use crate::store::Cursor;
use crate::store::operation::Settlement;

/// How much longer than its own deadline a command is waited for before its answer is called lost.
const GRACE: Duration = Duration::from_secs(30);

/// How a sent command came back.
enum Came {
    Settled(Settlement, bool),
    /// It surely did not start, since its instance was found stopped: it may be admitted anew.
    Again,
    /// It surely did not start.
    NotStarted(Error),
    Failed(Error),
}

/// Runs a command and answers when it is over; longer than the caller's wait, with `keep`, answers that it runs.
pub async fn run(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, input: Exec) -> Result<(ExecView, Answered)> {
    caller.require_on_lease(Scope::Write, lease)?;
    loop {
        let id = caller.first_id();
        let mut spec = spec(id, &input);
        let admitted = admit::admit_command(berth, caller, lease, input.carried, input.timeout + GRACE * 2, &mut spec).await?;
        let cancel = CancellationToken::new();
        berth.work.register_exec(id, cancel.clone());
        let _leave = (!input.keep_on_disconnect).then(|| cancel.clone().drop_guard());
        let receiver = spawn(berth, admitted, spec, &input, cancel, None);
        let came = match input.wait.filter(|_| input.keep_on_disconnect) {
            Some(wait) => match tokio::time::timeout(wait, receiver).await {
                Ok(came) => came,
                Err(_) => return Ok((view(berth, caller, lease, id, input.base64).await?, Answered::Pending)),
            },
            None => receiver.await,
        };
        if came.unwrap_or_else(|_| Err(task_lost()))? {
            return Ok((view(berth, caller, lease, id, input.base64).await?, Answered::Existing));
        }
        if caller.named.is_some() {
            return Err(found_stopped());
        }
    }
}

/// A command that runs and is followed. Dropping it kills the command, unless `on_disconnect: keep`.
pub struct Followed {
    /// Its row as admitted.
    pub operation: Operation,
    /// What it writes.
    pub follow: Follow,
    end: oneshot::Receiver<Result<bool>>,
    _kill: Option<DropGuard>,
}

impl Followed {
    /// Waits until the command is settled, and reads how.
    pub async fn end(&mut self, berth: &Berth) -> Result<ExecView> {
        (&mut self.end).await.unwrap_or_else(|_| Err(task_lost()))?;
        let row = &self.operation;
        read(berth, row.organization_id, row.lease_id, row.id, false).await
    }
}

/// Runs a command and answers as soon as it runs. Its output waits for the reader, and the command for its output; it is kept and
/// settled like any other.
pub async fn follow(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, input: Exec) -> Result<Followed> {
    caller.require_on_lease(Scope::Write, lease)?;
    loop {
        let id = caller.first_id();
        let mut spec = spec(id, &input);
        let admitted = admit::admit_command(berth, caller, lease, input.carried, input.timeout + GRACE * 2, &mut spec).await?;
        let operation = admitted.operation.clone();
        let cancel = CancellationToken::new();
        berth.work.register_exec(id, cancel.clone());
        let kill = (!input.keep_on_disconnect).then(|| cancel.clone().drop_guard());
        let (tee, mut follow) = listen::tee();
        let end = spawn(berth, admitted, spec, &input, cancel, Some(tee));
        if let Some(Heard::Started) = follow.heard.recv().await {
            return Ok(Followed { operation, follow, end, _kill: kill });
        }
        // It never ran: then its end says why.
        end.await.unwrap_or_else(|_| Err(task_lost()))?;
        if caller.named.is_some() {
            return Err(found_stopped());
        }
    }
}

fn task_lost() -> Error {
    Error::new(Code::OperationUnknown, "The command's task was lost; it may have run.")
}

fn found_stopped() -> Error {
    crate::store::fence::transition("The sandbox was found stopped; the next call starts it.")
}

fn spec(id: Uuid, input: &Exec) -> ExecSpec {
    ExecSpec {
        id,
        // Told when it is admitted.
        grant_seq: 0,
        argv: input.argv.clone(),
        cwd: input.cwd.clone(),
        env: input.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        user: input.user.clone(),
        timeout: input.timeout,
        stdin: !input.stdin.is_empty(),
        prepared: None,
    }
}

/// In a tracked task; the receiver hears `true` when it is settled, `false` when it is to be admitted anew.
fn spawn(
    berth: &Arc<Berth>,
    admitted: Admitted,
    spec: ExecSpec,
    input: &Exec,
    cancel: CancellationToken,
    tee: Option<Tee>,
) -> oneshot::Receiver<Result<bool>> {
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    let (stdin, keep) = (Bytes::from(input.stdin.clone()), input.max_output_bytes);
    berth.work.spawn(async move {
        let held = task.work.hold(admitted.claim);
        let id = admitted.operation.id;
        let told = match send(&task, &admitted, spec, stdin, keep, &cancel, tee).await {
            Came::Settled(settlement, lingering) => admit::settle(&task, &admitted, &settlement, lingering).await.map(|_| true),
            Came::Again => admit::settle(&task, &admitted, &admit::plain(Status::Cancelled, None), false).await.map(|_| false),
            Came::NotStarted(error) => {
                admit::settle(&task, &admitted, &admit::plain(Status::Cancelled, None), false).await.ok();
                Err(error)
            }
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

async fn send(
    berth: &Arc<Berth>,
    admitted: &Admitted,
    spec: ExecSpec,
    stdin: Bytes,
    keep: usize,
    cancel: &CancellationToken,
    tee: Option<Tee>,
) -> Came {
    let provider = match berth.provider_of(&admitted.instance).await {
        Ok(provider) => provider,
        Err(error) => return Came::NotStarted(error),
    };
    let bounds = Bounds { end: spec.timeout + GRACE, reader: spec.timeout + GRACE / 2 };
    let provider_ref = admitted.instance.provider_ref.as_deref().unwrap_or_default();
    let running = match super::make::call(berth, provider.exec(provider_ref, spec)).await {
        Ok(running) => running,
        Err(error) => return not_started(berth, admitted, &error).await,
    };
    let (stdout, stderr, exit) = listen::listen(running, stdin, keep, bounds, cancel, tee).await;
    let Some(exit) = exit else {
        if let Ok(loss::Found::Lost) = loss::investigate(berth, &admitted.instance).await {
            return Came::Failed(crate::store::fence::instance_lost());
        }
        // Whoever would know is not there.
        if let Err(error) = berth.provider_of(&admitted.instance).await {
            return Came::Failed(error);
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
            Ok(loss::Found::Unproven) => Came::NotStarted(if error.kind == ProviderKind::NotFound {
                Error::new(Code::ProviderUnavailable, "The provider does not find the sandbox, and nothing proves that it is gone.")
                    .retry_after(Duration::from_secs(2))
            } else {
                super::provider_failed(error)
            }),
            Err(error) => Came::NotStarted(error),
        },
        ProviderKind::Fenced => Came::NotStarted(admit::overtaken(berth, &admitted.operation, error).await),
        // The one file a start needs; a missing program is no refusal but exit code 127.
        ProviderKind::FileNotFound => {
            Came::NotStarted(Error::new(Code::FileNotFound, "The command's working directory does not exist in the sandbox."))
        }
        ProviderKind::Transient | ProviderKind::Indeterminate => Came::Failed(super::provider_failed(error)),
        _ => Came::NotStarted(super::provider_failed(error)),
    }
}

/// One exec of a lease; with a wait, a long poll that answers when it is over or the wait is.
pub async fn get(berth: &Berth, caller: &Caller, lease: Uuid, exec: Uuid, wait: Duration) -> Result<ExecView> {
    caller.require_on_lease(Scope::Read, lease)?;
    let first = view(berth, caller, lease, exec, false).await?;
    if wait.is_zero() || first.operation.status != Status::Running {
        return Ok(first);
    }
    await_end(berth, caller, &first, wait).await
}

/// Waits, bounded, until a command is over.
async fn await_end(berth: &Berth, caller: &Caller, running: &ExecView, wait: Duration) -> Result<ExecView> {
    let row = &running.operation;
    let line = berth.work.line(row.sandbox_id);
    let patience = tokio::time::Instant::now() + wait;
    loop {
        let again = line.until_changed(patience).await;
        let now = view(berth, caller, row.lease_id, row.id, false).await?;
        if now.operation.status != Status::Running || !again {
            return Ok(now);
        }
    }
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
    await_end(berth, caller, &first, Duration::from_secs(20)).await
}

async fn view(berth: &Berth, caller: &Caller, lease: Uuid, exec: Uuid, base64: bool) -> Result<ExecView> {
    read(berth, caller.organization, lease, exec, base64).await
}

async fn read(berth: &Berth, organization: Uuid, lease: Uuid, exec: Uuid, base64: bool) -> Result<ExecView> {
    let mut tx = berth.store.read().await?;
    let unknown = || Error::new(Code::ExecNotFound, "This lease has no such exec, or it ended more than 24 hours ago.");
    if tx.lease(organization, lease).await?.is_none() {
        return Err(Error::not_found("lease"));
    }
    let operation = tx.operation(organization, lease, exec).await?.filter(|o| o.kind == Kind::Exec).ok_or_else(unknown)?;
    let (stdout, stderr) = tx.operation_output(exec).await?;
    let server_time = tx.now().await?;
    Ok(ExecView { operation, stdout, stderr, base64, server_time })
}
