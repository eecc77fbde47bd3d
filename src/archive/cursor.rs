//! Finds directories below a root one name at a time, never through a symbolic link and with few files open.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, openat};

/// How many directories on the way stay open; a tree may be far deeper than a process may have files open.
const KEPT: usize = 64;

/// The directory used last, with the way to it.
pub(super) struct Cursor<'a> {
    root: BorrowedFd<'a>,
    path: Vec<u8>,
    /// Open directories, each with the length of its path, which is the start of `path`.
    open: Vec<(usize, OwnedFd)>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(root: &'a Dir) -> Self {
        Self { root: root.as_fd(), path: Vec::new(), open: Vec::new() }
    }

    /// Opens the directory at a path in normal form; the empty path is the root. `NOTDIR` or `LOOP` when something on the
    /// way is no directory.
    pub(super) fn at(&mut self, path: &[u8]) -> rustix::io::Result<BorrowedFd<'_>> {
        while self.open.last().is_some_and(|(length, _)| !leads(&self.path[..*length], path)) {
            self.open.pop();
        }
        let mut at = self.open.last().map_or(0, |(length, _)| *length);
        while at < path.len() {
            let start = if at == 0 { 0 } else { at + 1 };
            let end = path[start..].iter().position(|&byte| byte == b'/').map_or(path.len(), |length| start + length);
            let next = open_directory(self.here(), &path[start..end])?;
            if self.open.len() == KEPT {
                // Every other one is left, so that the way back is never far from an open one.
                let mut keep = false;
                self.open.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
            self.path.truncate(at);
            self.path.extend_from_slice(&path[at..end]);
            self.open.push((end, next));
            at = end;
        }
        Ok(self.here())
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root, |(_, directory)| directory.as_fd())
    }
}

/// Opens a directory by its one name.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A path in normal form as its directory and its name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Whether `path` is `ancestor` or lies below it.
fn leads(ancestor: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
