//! The machine's processes as /proc shows them, and how to kill those that run away.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Scans in which new processes appear before killing goes on anyway; a bomb must not keep us from it.
const MOST_ROUNDS: usize = 50;

/// One process; pid and start time together never name another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// Its number.
    pub(super) pid: i32,
    /// Its parent's number.
    pub(super) parent: i32,
    /// When it started, in clock ticks since boot.
    pub(super) started: u64,
}

/// The fields of a process's `stat` from its state on.
fn fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in the parentheses may hold anything, so the fields are counted from the last one.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(String::from_utf8_lossy(stat.get(end + 2..)?).split_ascii_whitespace().map(str::to_owned).collect())
}

/// The process of a pid; none when it is over. A process whose first thread ended while others run is not over.
pub(super) fn look(pid: i32) -> Option<Process> {
    let fields = fields(pid)?;
    let (state, threads) = (fields.first()?.as_str(), fields.get(17)?.parse::<u64>().ok()?);
    if matches!(state, "Z" | "X") && threads <= 1 {
        return None;
    }
    Some(Process { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
}

/// Whether a process is stopped by a signal.
pub(super) fn is_stopped(pid: i32) -> bool {
    fields(pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
}

/// Every process of the machine that is not over.
pub(super) fn all() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(pid.and_then(look));
    }
    Ok(found)
}

/// The descendants of these processes among all.
pub(super) fn descendants(roots: impl IntoIterator<Item = i32>, all: &[Process]) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = Vec::new();
    let mut rest: Vec<i32> = roots.into_iter().collect();
    while let Some(pid) = rest.pop() {
        // Taking them out makes every process count once, even if pids were reused during the scan.
        for child in children.remove(&pid).unwrap_or_default() {
            rest.push(child.pid);
            found.push(child);
        }
    }
    found
}

/// Sends a signal to exactly this process; false when it is over.
pub(super) fn signal(process: Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    let handle = pidfd_open(pid, PidfdFlags::empty());
    // Looked at after the handle is held: from here on the pid cannot come to mean another process.
    if look(process.pid).is_none_or(|now| now.started != process.started) {
        return false;
    }
    match handle {
        Ok(handle) => pidfd_send_signal(handle, signal).is_ok(),
        Err(_) => kill_process(pid, signal).is_ok(),
    }
}

/// Kills what `find` finds: stops until no new one appears, since a stopped process makes no more, then kills. True when
/// nothing was found; what was found is only surely dead once a later call finds nothing.
pub(super) fn kill(mut find: impl FnMut() -> io::Result<Vec<Process>>) -> io::Result<bool> {
    let mut stopped: HashSet<Process> = HashSet::new();
    for _ in 0..MOST_ROUNDS {
        let fresh: Vec<Process> = find()?.into_iter().filter(|process| !stopped.contains(process)).collect();
        if fresh.is_empty() {
            break;
        }
        for process in fresh {
            signal(process, Signal::STOP);
            stopped.insert(process);
        }
    }
    for process in &stopped {
        signal(*process, Signal::KILL);
    }
    Ok(stopped.is_empty())
}

/// Whether a process was started with this entry in its environment.
pub(super) fn has_environment(process: Process, entry: &[u8]) -> bool {
    fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|one| one == entry))
}

/// Whether a process works in a directory below this one.
pub(super) fn works_below(process: Process, directory: &Path) -> bool {
    fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|cwd| cwd.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_its_parent() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let this = look(pid).unwrap();
        let all = all().unwrap();
        assert!(all.iter().any(|process| process.pid == pid && process.started == this.started));
        assert!(descendants([this.parent], &all).iter().any(|process| process.pid == pid));
        assert!(look(i32::MAX).is_none());
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let process = |pid, parent| Process { pid, parent, started: 0 };
        assert_eq!(descendants([1], &[process(2, 1), process(3, 2), process(1, 3), process(5, 4)]).len(), 3);
    }
}
