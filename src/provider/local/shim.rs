//! The process that stands over one command: it outlives the command's whole tree, or ends it.
//!
//! A shim is a child subreaper, so whatever its descendants do (fork twice, start a session, clear their environment), each
//! of them has an ancestor among the shim's children until it is dead. "No children" is therefore proof that nothing is
//! left, and the only proof used. Where something stands between command and machine, that is one of those descendants.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, setsid, wait};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::output::{Output, pump};
use super::registration::Registration;
use super::start::{Inside, NotStarted, Started, Word, start};
use super::wire::{Frame, Order, Refusal, STDERR, STDOUT, receive_order};
use super::{inside, layout, process};
use crate::provider::{ExecEnd, ExecExit};

/// What a time-out is cut to; moments further away cannot be told.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(366 * 24);
/// How long to wait between two rounds of killing, at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Runs as a shim until the command's whole tree is over. Descriptors 0 to 2 are as `wire` says; the shim inside is another one.
pub fn run() -> ExitCode {
    if std::env::args_os().nth(2).is_some_and(|second| second == "inside") {
        return if inside::run().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // A session of its own: a terminal's signals, and those to the server's group, pass it by.
    let _ = setsid();
    // Without subreaping a tree cannot be killed for sure, so nothing is started at all.
    if set_child_subreaper(Some(getpid())).is_err() {
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serve())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Where the word to kill comes from; in place before there is anything to kill.
struct Orders {
    control: pipe::Receiver,
    terminate: Signal,
    /// Handled, so that they end nothing; handlers, unlike ignored signals, do not pass to the command.
    _deaf: [Signal; 2],
}

impl Orders {
    /// Until someone wants the tree dead: the server is gone or cancels, or a fence was raised.
    async fn kill(&mut self) {
        let mut byte = [0];
        tokio::select! {
            _ = self.terminate.recv() => {}
            // Nothing is ever sent after the order.
            _ = self.control.read(&mut byte) => {}
        }
    }
}

async fn serve() -> io::Result<()> {
    let child_ends = signal(SignalKind::child())?;
    let mut orders = Orders {
        control: pipe::Receiver::from_owned_fd(io::stderr().as_fd().try_clone_to_owned()?)?,
        terminate: signal(SignalKind::terminate())?,
        _deaf: [signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?],
    };
    let output = Output::new(pipe::Sender::from_owned_fd(io::stdout().as_fd().try_clone_to_owned()?)?);
    let order = receive_order(&mut orders.control).await?;
    // Registered first, then the fence is read: whoever raises it afterwards finds the registration, and whoever raised it
    // before is obeyed here.
    let registration = match Registration::make(&layout::run(&order.instance), order.id, order.grant_seq) {
        Ok(registration) => registration,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return output.say(&Frame::Refused(Refusal::Repeated)).await,
        Err(_) => return output.say(&Frame::Refused(Refusal::Unable)).await,
    };
    let started = match admit(&order) {
        // The word to kill may come before what stands around the command is up.
        Ok(()) => tokio::select! {
            biased;
            () = orders.kill() => None,
            started = start(&order) => Some(started),
        },
        Err(refusal) => Some(Err(NotStarted::Refused(refusal))),
    };
    let why = match started {
        Some(Ok(child)) => return stand_over(child, &order, orders, child_ends, registration, output).await,
        Some(Err(why)) => Some(why),
        None => None,
    };
    // It may have started and then lacked a pipe.
    kill_all().await;
    registration.release();
    let over = |end, killed| Frame::Exit(ExecExit { end, process_tree_killed: killed, lingering: false });
    let exit = match why {
        Some(NotStarted::Refused(refusal)) => return output.say(&Frame::Refused(refusal)).await,
        Some(NotStarted::NoProgram(code)) => over(ExecEnd::Exited(code), false),
        None => over(ExecEnd::Cancelled, true),
    };
    output.say(&Frame::Started).await?;
    output.say(&exit).await
}

fn admit(order: &Order) -> Result<(), Refusal> {
    match (layout::fence(&order.instance), layout::state(&order.instance)) {
        (Ok(fence), _) if fence > order.grant_seq => Err(Refusal::Fenced),
        (Ok(_), Ok(layout::State::Running)) => Ok(()),
        (Ok(_), Ok(_)) => Err(Refusal::Stopped),
        _ => Err(Refusal::Unable),
    }
}

async fn stand_over(
    child: Started,
    order: &Order,
    mut orders: Orders,
    mut child_ends: Signal,
    registration: Registration,
    output: Output,
) -> io::Result<()> {
    let timeout = Duration::from_millis(order.timeout_ms).min(LONGEST_TIMEOUT);
    let deadline = Instant::now() + timeout;
    let output = Arc::new(output);
    let over = CancellationToken::new();
    let mut pumps = JoinSet::new();
    let Started { pid, stdout, stderr, mut inside } = child;
    pumps.spawn(pump(stdout, STDOUT, Arc::clone(&output), over.clone()));
    pumps.spawn(pump(stderr, STDERR, Arc::clone(&output), over.clone()));
    // If the server is gone already, its end of the control pipe says so too.
    let _ = output.say(&Frame::Started).await;

    let (mut end, mut killed) = tokio::select! {
        biased;
        end = command_ends(pid, inside.as_mut(), &mut child_ends) => (end, false),
        () = orders.kill() => (ExecEnd::Cancelled, true),
        () = sleep_until(deadline) => (ExecEnd::TimedOut, true),
    };
    if killed {
        kill_all().await;
    }
    // Held for as long as anything runs, and not longer: a slow reader of the output delays no fence.
    let mut registration = Some(registration);
    if !reap().alive {
        release(&mut registration);
    }

    over.cancel();
    let mut drains = JoinSet::new();
    while !pumps.is_empty() {
        tokio::select! {
            Some(drain) = pumps.join_next() => { drains.spawn(drain.map_err(io::Error::other)?.discard()); }
            () = orders.kill(), if registration.is_some() => {
                kill_all().await;
                release(&mut registration);
                (end, killed) = (ExecEnd::Cancelled, true);
            }
        }
    }
    if registration.is_some() && !reap().alive {
        release(&mut registration);
    }
    let exit = Frame::Exit(ExecExit { end, process_tree_killed: killed, lingering: registration.is_some() });
    let outlive = async {
        if let Some(registration) = registration {
            tokio::select! {
                () = all_end(&mut child_ends) => {}
                () = orders.kill() => kill_all().await,
            }
            registration.release();
        }
    };
    // Both at once: a server that does not read delays no fence, and one that is gone hears nothing.
    let _ = tokio::join!(output.say(&exit), outlive);
    Ok(())
}

/// Says that nothing runs any more.
fn release(registration: &mut Option<Registration>) {
    if let Some(registration) = registration.take() {
        registration.release();
    }
}

fn end_of(status: ExitStatus) -> ExecEnd {
    match status.signal() {
        Some(signal) => ExecEnd::Signaled(signal),
        None => ExecEnd::Exited(status.code().unwrap_or(-1)),
    }
}

/// What a round of reaping saw.
struct Reaped {
    /// Children are left.
    alive: bool,
    ended: Vec<(Pid, ExitStatus)>,
}

/// Takes in every child that is over, orphans of the tree included.
fn reap() -> Reaped {
    let mut reaped = Reaped { alive: false, ended: Vec::new() };
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => reaped.ended.push((pid, ExitStatus::from_raw(status.as_raw()))),
            Ok(None) => {
                reaped.alive = true;
                return reaped;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return reaped,
        }
    }
}

/// How the command ended: the shim's own child, or the one that the shim inside tells of.
async fn command_ends(child: Pid, inside: Option<&mut Inside>, child_ends: &mut Signal) -> ExecEnd {
    let Some(inside) = inside else { return end_of(main_ends(child, child_ends).await) };
    let Some(Word::Ended { status, alone }) = inside.hear().await else {
        // Somebody killed the shim inside, and with it everything.
        all_end(child_ends).await;
        return ExecEnd::Signaled(9);
    };
    if alone {
        // What stood around it is about to be over too, and nothing lingers.
        all_end(child_ends).await;
    }
    end_of(ExitStatus::from_raw(status))
}

async fn main_ends(main: Pid, child_ends: &mut Signal) -> ExitStatus {
    loop {
        if let Some((_, status)) = reap().ended.into_iter().find(|(pid, _)| *pid == main) {
            return status;
        }
        child_ends.recv().await;
    }
}

async fn all_end(child_ends: &mut Signal) {
    while reap().alive {
        child_ends.recv().await;
    }
}

/// Kills every descendant and does not rest before the last is gone; a shim that gave up would set it free.
async fn kill_all() {
    let own = getpid().as_raw_pid();
    let mut pause = Duration::from_millis(1);
    while reap().alive {
        // A scan that failed is repeated like one that found too little.
        let _ = process::kill(|| Ok(process::descendants([own], &process::all()?)));
        if reap().alive {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
