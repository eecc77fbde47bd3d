//! Walks a directory in a fixed order: to write it as a tar, or to tell whether anything in it was touched.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::cursor::{Cursor, open_directory, split};
use super::exclude::Exclude;
use super::header::{BLOCK, Owner, Plain, pad};
use super::ledger::MODE_BITS;
use super::{ArchiveError, Result, shown};

/// What a walk left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Sockets, pipes and devices.
    pub skipped: u64,
}

/// Writes what is in `dir` as an uncompressed tar: directories, regular files, symbolic links with their targets verbatim,
/// hard links, permission bits and whole seconds of modification times; every directory in the byte order of its names, so
/// an unchanged directory is the same tar again. Owners and the root directory itself are not in it.
///
/// `exclude` holds names (`node_modules`, anywhere) or paths from the root (`build/cache`), `*` standing for any bytes
/// within a component. No symbolic link is followed.
///
/// `Invalid` when something changes, vanishes or cannot be read while it is being written; the bytes so far then prove
/// nothing. Other errors are those of `out`.
pub fn write_tar(dir: &Dir, exclude: &[String], out: &mut dyn Write) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut linked: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
    let mut buffer = vec![0; 128 << 10];
    walk(dir, exclude, &mut |item| {
        let mode = mode(item.stat);
        let mut plain =
            Plain { kind: b'0', path: item.path, link: b"", mode, size: 0, seconds: item.stat.st_mtime, owner: Owner::default() };
        match FileType::from_raw_mode(item.stat.st_mode) {
            FileType::Directory => Plain { kind: b'5', ..plain }.write(out),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(item.place, item.name, Vec::new()).map_err(|errno| changed(item.path, errno))?;
                Plain { kind: b'2', link: target.as_bytes(), ..plain }.write(out)
            }
            FileType::RegularFile => {
                if item.stat.st_nlink > 1 {
                    let id = (item.stat.st_dev, item.stat.st_ino);
                    if let Some(first) = linked.get(&id) {
                        return Plain { kind: b'1', link: first, ..plain }.write(out);
                    }
                    linked.insert(id, item.path.to_vec());
                }
                plain.size = u64::try_from(item.stat.st_size).unwrap_or(0);
                plain.write(out)?;
                copy(item, plain.size, &mut buffer, out)
            }
            _ => {
                walked.skipped += 1;
                Ok(())
            }
        }
    })?;
    out.write_all(&[0; 2 * BLOCK])?;
    out.flush()?;
    Ok(walked)
}

/// SHA-256, in hexadecimal, over path, type, size, mode, modification and change time in nanoseconds and inode of everything
/// that `write_tar` would write, the root included. Equal before and after means that nothing was touched in between.
///
/// `Invalid` when something vanishes during the walk or cannot be looked at.
pub fn stat_digest(dir: &Dir, exclude: &[String]) -> Result<String> {
    let mut sum = Sha256::new();
    let mut add = |path: &[u8], stat: &Stat| {
        sum.update(path.len().to_be_bytes());
        sum.update(path);
        for part in [u64::from(stat.st_mode), stat.st_ino, stat.st_dev, stat.st_mtime_nsec, stat.st_ctime_nsec] {
            sum.update(part.to_be_bytes());
        }
        for part in [stat.st_size, stat.st_mtime, stat.st_ctime] {
            sum.update(part.to_be_bytes());
        }
    };
    add(b"", &rustix::fs::fstat(dir)?);
    walk(dir, exclude, &mut |item| {
        if matches!(FileType::from_raw_mode(item.stat.st_mode), FileType::Directory | FileType::RegularFile | FileType::Symlink) {
            add(item.path, item.stat);
        }
        Ok(())
    })?;
    Ok(hex::encode(sum.finalize()))
}

/// Something found on the way.
struct Item<'a> {
    path: &'a [u8],
    /// Its directory and its name in there.
    place: BorrowedFd<'a>,
    name: &'a [u8],
    stat: &'a Stat,
}

/// Visits everything below `dir`, a directory before what is in it.
fn walk(dir: &Dir, exclude: &[String], visit: &mut dyn FnMut(&Item<'_>) -> Result<()>) -> Result<()> {
    let exclude = Exclude::new(exclude);
    let mut cursor = Cursor::new(dir);
    // For each directory on the way: its path, and the names in it that are still to come, last one first.
    let mut open: Vec<(Vec<u8>, Vec<Vec<u8>>)> = vec![(Vec::new(), names(&mut cursor, b"")?)];
    while let Some((parent, left)) = open.last_mut() {
        let Some(name) = left.pop() else {
            open.pop();
            continue;
        };
        let path = if parent.is_empty() { name } else { [parent.as_slice(), &name].join(&b'/') };
        if exclude.matches(&path) {
            continue;
        }
        let name = split(&path).1;
        let place = cursor.at(parent).map_err(|errno| changed(&path, errno))?;
        let stat = rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| changed(&path, errno))?;
        visit(&Item { path: &path, place, name, stat: &stat })?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let inside = names(&mut cursor, &path)?;
            open.push((path, inside));
        }
    }
    Ok(())
}

/// The names in a directory, in falling byte order.
fn names(cursor: &mut Cursor<'_>, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut read = || -> rustix::io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        // The root may be open as a mere place, which cannot be listed.
        for entry in rustix::fs::Dir::new(open_directory(cursor.at(path)?, b".")?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    };
    read().map_err(|errno| changed(path, errno))
}

/// Copies a file of exactly this size that stays as it was found.
fn copy(item: &Item<'_>, size: u64, buffer: &mut [u8], out: &mut dyn Write) -> Result<()> {
    // Non-blocking, should a pipe have taken the file's place.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(item.place, item.name, flags, Mode::empty()).map_err(|errno| changed(item.path, errno))?;
    let mut file = std::fs::File::from(file);
    let same = |file: &std::fs::File| -> Result<()> {
        let now = rustix::fs::fstat(file).map_err(|errno| changed(item.path, errno))?;
        if identity(&now) == identity(item.stat) { Ok(()) } else { Err(moved(item.path)) }
    };
    same(&file)?;
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = file.read(&mut buffer[..most]).map_err(|error| moved_by(item.path, &error))?;
        if read == 0 {
            return Err(moved(item.path));
        }
        out.write_all(&buffer[..read])?;
        left -= read as u64;
    }
    same(&file)?;
    Ok(pad(out, size)?)
}

/// What must not differ between the look at a file and the end of its reading.
fn identity(stat: &Stat) -> impl PartialEq {
    (stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
}

fn mode(stat: &Stat) -> u16 {
    u16::try_from(stat.st_mode & u32::from(MODE_BITS)).unwrap_or(0)
}

fn moved(path: &[u8]) -> ArchiveError {
    ArchiveError::invalid(format!("\"{}\" changed during capture", shown(path)))
}

fn moved_by(path: &[u8], error: &std::io::Error) -> ArchiveError {
    ArchiveError::invalid(format!("\"{}\" changed during capture or cannot be read: {error}", shown(path)))
}

fn changed(path: &[u8], errno: Errno) -> ArchiveError {
    moved_by(path, &errno.into())
}
