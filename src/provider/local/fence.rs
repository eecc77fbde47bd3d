//! Ends the commands of lower grants and proves that none of them runs.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Signal, getpid};

use super::command::MARKER;
use super::process::{self, Process};
use super::registration::{Seen, seen};
use super::{failed, layout};
use crate::provider::{Kind, ProviderError, Result};

/// How long killing may take in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a shim may take before it is taken for stopped by its own command, and done for.
const SHIM_PATIENCE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Raises the fence; never lowers it, whoever else is raising it. `Transient` when a change of files goes on for longer than our
/// patience: it may be a server's that stands still in the middle of one.
pub(super) fn raise(instance: &Path, grant_seq: i64) -> Result<()> {
    let begun = Instant::now();
    let lock = File::open(instance).map_err(failed)?;
    while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if errno != Errno::WOULDBLOCK {
            return Err(failed(errno.into()));
        }
        if begun.elapsed() > PATIENCE {
            return Err(ProviderError::new(Kind::Transient, "a change of files did not end in time"));
        }
        std::thread::sleep(LONGEST_PAUSE);
    }
    if layout::fence(instance).map_err(failed)? < grant_seq {
        layout::write_fence(instance, grant_seq).map_err(failed)?;
    }
    Ok(())
}

/// Lets a change of files through, unless its grant is below the fence, which is not raised until what is returned is dropped.
pub(super) fn pass(instance: &Path, grant_seq: i64) -> Result<File> {
    let lock = File::open(instance).map_err(failed)?;
    flock(&lock, FlockOperation::LockShared).map_err(|errno| failed(errno.into()))?;
    if layout::fence(instance).map_err(failed)? > grant_seq {
        return Err(ProviderError::fenced());
    }
    Ok(lock)
}

/// Kills every tree of a grant below this one (all when `None`), and every process whose shim is dead. `Transient` when
/// something is still there at the end of our patience.
pub(super) fn kill_below(instance: &Path, provider_ref: &str, grant_seq: Option<i64>) -> Result<()> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let due = due(instance, grant_seq).map_err(failed)?;
        for entry in &due {
            end(entry, begun.elapsed() > SHIM_PATIENCE).map_err(failed)?;
        }
        // With the shims' trees gone, what is left has lost its shim; the entries that prove it go last.
        if due.iter().all(|entry| !entry.live) && process::kill(|| strays(instance, provider_ref)).map_err(failed)? {
            for entry in &due {
                // Someone else may have removed it.
                let _ = fs::remove_file(&entry.path);
            }
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(ProviderError::new(Kind::Transient, "a command could not be killed in time"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// How many trees run: those under a shim, and those that lost theirs, as one.
pub(super) fn count(instance: &Path, provider_ref: &str) -> Result<u64> {
    let live = seen(&layout::run(instance)).map_err(failed)?.iter().filter(|entry| entry.live).count();
    let strays = usize::from(!strays(instance, provider_ref).map_err(failed)?.is_empty());
    Ok(u64::try_from(live + strays).unwrap_or(u64::MAX))
}

/// The registrations to end: those of lower grants, and those whose shim is dead.
fn due(instance: &Path, grant_seq: Option<i64>) -> io::Result<Vec<Seen>> {
    let mut entries = seen(&layout::run(instance))?;
    entries.retain(|entry| !entry.live || grant_seq.is_none_or(|grant_seq| entry.grant_seq < grant_seq));
    Ok(entries)
}

/// Tells a shim to end its tree; by force when it does not listen.
fn end(entry: &Seen, by_force: bool) -> io::Result<()> {
    let Some(shim) = entry.shim.filter(|_| entry.live) else { return Ok(()) };
    process::signal(shim, Signal::TERM);
    // Its own command may have stopped it.
    process::signal(shim, Signal::CONT);
    if by_force {
        force(shim)?;
    }
    Ok(())
}

/// Kills a shim's tree from outside, and then the shim; false when another pass is needed.
fn force(shim: Process) -> io::Result<bool> {
    // Stopped, it stays the parent of the whole tree for as long as that is being killed.
    process::signal(shim, Signal::STOP);
    let dead = process::kill(|| Ok(process::descendants([shim.pid], &process::all()?)))?;
    if dead {
        process::signal(shim, Signal::KILL);
    }
    Ok(dead)
}

/// Ends a shim that does not listen, with its tree. A shim that is over is left alone.
pub(super) fn overrule(pid: i32) {
    let begun = Instant::now();
    while let Some(shim) = process::look(pid) {
        if force(shim).is_ok_and(|dead| dead) {
            return;
        }
        if begun.elapsed() > PATIENCE {
            // Free of it, the tree is found by its marker.
            process::signal(shim, Signal::KILL);
            return;
        }
        std::thread::sleep(LONGEST_PAUSE);
    }
}

/// Processes of this instance that stand under no living shim: they carry its marker, or, where a shim is known to have
/// been killed, work in its directory and are younger than that shim.
fn strays(instance: &Path, provider_ref: &str) -> io::Result<Vec<Process>> {
    let first = suspects(instance, provider_ref)?;
    if first.is_empty() {
        return Ok(first);
    }
    // A chain of parents can look broken while one of them ends. Its child is then under the shim, and a second look sees that.
    let second: HashSet<(i32, u64)> = suspects(instance, provider_ref)?.into_iter().map(|process| (process.pid, process.started)).collect();
    Ok(first.into_iter().filter(|process| second.contains(&(process.pid, process.started))).collect())
}

fn suspects(instance: &Path, provider_ref: &str) -> io::Result<Vec<Process>> {
    // In this order: every process seen was started after its shim registered.
    let all = process::all()?;
    let entries = seen(&layout::run(instance))?;
    let shims: Vec<i32> = entries.iter().filter(|entry| entry.live).filter_map(|entry| entry.shim.map(|shim| shim.pid)).collect();
    let mut known: HashSet<i32> = process::descendants(shims.iter().copied(), &all).iter().map(|process| process.pid).collect();
    known.extend(shims);
    known.insert(getpid().as_raw_pid());
    let unclean = entries.iter().filter(|entry| !entry.live).filter_map(|entry| entry.shim.map(|shim| shim.started)).min();
    let marker = format!("{MARKER}={provider_ref}").into_bytes();
    let stray = |process: &Process| {
        !known.contains(&process.pid)
            && (process::has_environment(*process, &marker)
                || unclean.is_some_and(|since| process.started >= since && process::works_below(*process, instance)))
    };
    Ok(all.into_iter().filter(stray).collect())
}
