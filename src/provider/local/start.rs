//! Starting a command: as a child of the shim, or within what stands between it and the machine.

use std::fs;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;

use super::command::MARKER;
use super::wire::{Order, Refusal, Task};

/// Why a command did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NotStarted {
    /// It cannot, whatever it is.
    Refused(Refusal),
    /// The program cannot be run, for which a shell has a code.
    NoProgram(i32),
}

const UNABLE: NotStarted = NotStarted::Refused(Refusal::Unable);

/// What the shim inside says, one a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The command runs.
    Started,
    /// It does not, and never will.
    NotStarted(NotStarted),
    /// It is over, with this status of the kernel's.
    Ended {
        /// As `wait` gives it.
        status: i32,
        /// Nothing else is left.
        alone: bool,
    },
}

/// A command that was started.
pub(super) struct Started {
    /// The shim's own child: the command, or what stands around it.
    pub(super) pid: Pid,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
    /// Where the shim inside tells of the command's end, if there is one.
    pub(super) inside: Option<Inside>,
}

/// The shim inside, as the shim outside hears it.
pub(super) struct Inside(BufReader<tokio::net::UnixStream>);

impl Inside {
    /// Its next word; none once it is gone.
    pub(super) async fn hear(&mut self) -> Option<Word> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.ok()?;
        serde_json::from_str(&line).ok()
    }
}

/// Starts a command with these three descriptors.
pub(super) fn spawn(task: &Task, [stdin, stdout, stderr]: [OwnedFd; 3]) -> Result<Child, NotStarted> {
    let Some((program, arguments)) = task.argv.split_first() else { return Err(UNABLE) };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(task.env.iter().cloned()).current_dir(&task.cwd).process_group(0);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound if !fs::metadata(&task.cwd).is_ok_and(|cwd| cwd.is_dir()) => NotStarted::Refused(Refusal::NoDirectory),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => NotStarted::NoProgram(127),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => UNABLE,
        _ => NotStarted::NoProgram(126),
    })
}

/// Starts an order's command as it is to be started. What was started and then failed is left to the caller to kill.
pub(super) async fn start(order: &Order) -> Result<Started, NotStarted> {
    let unable = |_| UNABLE;
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(unable)?;
    let ((stdout, out), (stderr, err)) = (io::pipe().map_err(unable)?, io::pipe().map_err(unable)?);
    let descriptors = [stdin, out.into(), err.into()];
    let (pid, inside) = match &order.around {
        None => (Pid::from_child(&spawn(&order.task, descriptors)?), None),
        Some(around) => {
            let (pid, inside) = enclose(around, &order.task, descriptors).await?;
            (pid, Some(inside))
        }
    };
    let receiver = |end: OwnedFd| pipe::Receiver::from_owned_fd(end).map_err(unable);
    Ok(Started { pid, stdout: receiver(stdout.into())?, stderr: receiver(stderr.into())?, inside })
}

/// Starts what stands around a command, and hands the command with its descriptors to the shim inside. The environment goes along
/// with it: what stands around the command has the mark by which strays are found, and nothing else.
async fn enclose(around: &[String], task: &Task, descriptors: [OwnedFd; 3]) -> Result<(Pid, Inside), NotStarted> {
    let unable = |_: io::Error| UNABLE;
    let (ours, theirs) = UnixStream::pair().map_err(unable)?;
    let [program, arguments @ ..] = around else { return Err(UNABLE) };
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(task.env.iter().filter(|(name, _)| name == MARKER).cloned())
        .current_dir("/")
        .process_group(0)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(unable)?;
    let told = serde_json::to_vec(task).map_err(|_| UNABLE)?;
    let length = u32::try_from(told.len()).map_err(|_| UNABLE)?.to_be_bytes();
    let borrowed = descriptors.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    let fits = passed.push(SendAncillaryMessage::ScmRights(&borrowed));
    let sent = sendmsg(&ours, &[IoSlice::new(&length)], &mut passed, SendFlags::NOSIGNAL).map_err(|e| unable(e.into()))?;
    if !fits || sent != length.len() {
        return Err(UNABLE);
    }
    ours.set_nonblocking(true).map_err(unable)?;
    let mut ours = tokio::net::UnixStream::from_std(ours).map_err(unable)?;
    ours.write_all(&told).await.map_err(unable)?;
    let mut inside = Inside(BufReader::new(ours));
    match inside.hear().await {
        Some(Word::Started) => Ok((Pid::from_child(&child), inside)),
        Some(Word::NotStarted(why)) => Err(why),
        // What stands around the command could not be put up.
        _ => Err(UNABLE),
    }
}
