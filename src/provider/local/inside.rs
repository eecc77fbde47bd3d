//! The shim inside: the first process of a command's own process namespace. It starts the command, tells how it ended, and is there
//! until nothing else is, since with it everything in the namespace ends.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, WaitOptions, wait};

use super::start::{Word, spawn};
use super::wire::Task;

/// Runs until the namespace is empty. Descriptor 0 is the way to the shim outside.
pub(super) fn run() -> io::Result<()> {
    let mut outside = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (task, descriptors) = receive(&mut outside)?;
    let main = match spawn(&task, descriptors) {
        Ok(child) => Pid::from_child(&child),
        Err(why) => return say(&mut outside, Word::NotStarted(why)),
    };
    say(&mut outside, Word::Started)?;
    let mut ended = None;
    loop {
        // Until the command's end each is waited for; then it is first seen whether any is left.
        let options = if ended.is_some() { WaitOptions::NOHANG } else { WaitOptions::empty() };
        let found = match wait(options) {
            Err(rustix::io::Errno::INTR) => continue,
            found => found,
        };
        match (found, ended) {
            (Ok(Some((pid, status))), None) if pid == main => ended = Some(status.as_raw()),
            (Ok(Some(_)), _) => {}
            (Ok(None), Some(status)) => {
                say(&mut outside, Word::Ended { status, alone: false })?;
                return rest();
            }
            (Err(_), Some(status)) => return say(&mut outside, Word::Ended { status, alone: true }),
            (Ok(None) | Err(_), None) => return Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Waits for everything that the command left.
fn rest() -> io::Result<()> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// The command, and its standard input, output and error.
fn receive(outside: &mut UnixStream) -> io::Result<(Task, [OwnedFd; 3])> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let got = recvmsg(&*outside, &mut [IoSliceMut::new(&mut length)], &mut passed, RecvFlags::CMSG_CLOEXEC)?;
    let rights = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = rights.flatten().collect();
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let descriptors = <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| broken())?;
    if got.bytes != length.len() {
        return Err(broken());
    }
    let mut told = vec![0; usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?];
    outside.read_exact(&mut told)?;
    Ok((serde_json::from_slice(&told)?, descriptors))
}

fn say(outside: &mut UnixStream, word: Word) -> io::Result<()> {
    let mut line = serde_json::to_vec(&word)?;
    line.push(b'\n');
    outside.write_all(&line)
}
