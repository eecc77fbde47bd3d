//! The entry by which everyone can see that a command runs: a file in `run/` that its shim holds a lock on for its life.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::process::getpid;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::process::{Process, look};

/// What the entry says.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    pid: i32,
    started: u64,
    grant_seq: i64,
}

/// A shim's own registration.
#[derive(Debug)]
pub(super) struct Registration {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Registration {
    /// Registers this process. The entry appears whole and locked, or not at all; `AlreadyExists` when the operation has one.
    pub(super) fn make(run: &Path, id: Uuid, grant_seq: i64) -> io::Result<Self> {
        let pid = getpid().as_raw_pid();
        let this = look(pid).ok_or(io::ErrorKind::NotFound)?;
        let hidden = run.join(format!(".{id}.{pid}"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden)?;
        let path = run.join(id.to_string());
        let shown = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(&serde_json::to_vec(&Entry { pid, started: this.started, grant_seq })?))
            .and_then(|()| Ok(renameat_with(CWD, &hidden, CWD, &path, RenameFlags::NOREPLACE)?));
        if shown.is_err() {
            // Nobody else knows the name; what is left of it disappears with the instance.
            let _ = fs::remove_file(&hidden);
        }
        shown.map(|()| Self { path, _file: file })
    }

    /// Nothing of the command runs any more.
    pub(super) fn release(self) {
        // The lock goes with the file; an entry that cannot be removed is then seen to be nobody's.
        let _ = fs::remove_file(&self.path);
    }
}

/// A registration as others see it.
#[derive(Debug)]
pub(super) struct Seen {
    /// The entry's file.
    pub(super) path: PathBuf,
    /// The grant; the lowest there is when the entry cannot be read, so that every fence ends it.
    pub(super) grant_seq: i64,
    /// The shim, if the entry could be read.
    pub(super) shim: Option<Process>,
    /// Whether the shim still holds its lock.
    pub(super) live: bool,
}

/// Every registration in `run/`.
pub(super) fn seen(run: &Path) -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(run) {
        // Half removed already; a command cannot start without it.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_none_or(|name| Uuid::parse_str(name).is_err()) {
            continue;
        }
        let path = entry.path();
        let file = match File::open(&path) {
            Ok(file) => file,
            // Released since the listing.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let said: Option<Entry> = serde_json::from_reader(&file).ok();
        let live = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        found.push(Seen {
            path,
            grant_seq: said.map_or(i64::MIN, |said| said.grant_seq),
            shim: said.map(|said| Process { pid: said.pid, parent: 0, started: said.started }),
            live,
        });
    }
    Ok(found)
}
