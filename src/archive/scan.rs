//! Carries checked entries from a tar to wherever they go, so that judging an archive and unpacking it cannot differ.

use std::io::Read;

use sha2::{Digest, Sha256};

use super::cursor::split;
use super::entries::{Entries, Kind};
use super::header::Mtime;
use super::ledger::{Directory, File, Ledger, MODE_BITS, child};
use super::{ArchiveError, Limits, Result, Tree};

/// Where checked entries go. Paths are in normal form and their directories were told before.
pub(super) trait Sink {
    /// A directory, seen for the first time. Directories are numbered in this order from 1; `parent` is such a number, or
    /// 0 for the root.
    fn directory(&mut self, path: &[u8], parent: u32) -> Result<()>;
    /// A file begins, perhaps in place of an earlier one.
    fn file(&mut self, path: &[u8]) -> Result<()>;
    /// More of that file.
    fn content(&mut self, bytes: &[u8]) -> Result<()>;
    /// That file ends.
    fn file_end(&mut self, mode: u16, mtime: Mtime) -> Result<()>;
    /// A symbolic link, perhaps in place of an earlier one.
    fn symlink(&mut self, path: &[u8], target: &[u8], mtime: Mtime) -> Result<()>;
    /// A further name of the file at `target`, perhaps in place of another file.
    fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<()>;
    /// Nothing follows; these are all directories, by number.
    fn end(&mut self, directories: &[Directory]) -> Result<()>;
}

/// Reads a whole tar, hands each entry on as soon as it is checked, and says what tree it makes.
pub(super) fn scan(tar: &mut dyn Read, limits: &Limits, sink: &mut dyn Sink) -> Result<Tree> {
    let mut entries = Entries::new(tar, limits);
    let mut ledger = Ledger::new(limits.entries);
    let mut buffer = vec![0; 64 << 10];
    while let Some(entry) = entries.next()? {
        let path = &entry.path;
        if matches!(entry.kind, Kind::Special) {
            return Err(ArchiveError::unsafe_at(path, "is a device or a pipe"));
        }
        let (parent, name) = split(path);
        let inner = if matches!(entry.kind, Kind::Directory) { path } else { parent };
        let (at, number) = ledger.enter(inner, &mut |path, parent| sink.directory(path, parent))?;
        let key = child(&at, name);
        match entry.kind {
            // The root belongs to whoever unpacks.
            Kind::Directory if number == 0 => {}
            Kind::Special => {}
            Kind::Directory => ledger.tell(number, entry.mode, entry.mtime),
            Kind::File => {
                ledger.expect_file(&key, path)?;
                sink.file(path)?;
                let mut sum = Sha256::new();
                let mut size = 0;
                loop {
                    let read = entries.read(&mut buffer)?;
                    if read == 0 {
                        break;
                    }
                    sum.update(&buffer[..read]);
                    sink.content(&buffer[..read])?;
                    size += read as u64;
                }
                let mode = entry.mode & MODE_BITS;
                sink.file_end(mode, entry.mtime)?;
                ledger.file(key, File { mode, size, content: sum.finalize().into() })?;
            }
            Kind::Symlink(target) => {
                ledger.expect_symlink(&key, path)?;
                sink.symlink(path, &target, entry.mtime)?;
                ledger.symlink(key, &target)?;
            }
            Kind::HardLink(target) => {
                ledger.expect_file(&key, path)?;
                if ledger.hard_link(key, path, &target)? {
                    sink.hard_link(path, &target)?;
                }
            }
        }
    }
    sink.end(ledger.directories())?;
    Ok(ledger.tree())
}
