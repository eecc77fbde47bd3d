//! Unpacks a tar below a directory.
//!
//! Nothing leaves that directory, whatever the archive says or another process does meanwhile: every system call names one
//! component of a path, relative to a directory that was itself opened so, and none follows a symbolic link.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::cursor::{Cursor, split};
use super::header::Mtime;
use super::ledger::{Directory, IMPLIED_MODE};
use super::scan::{Sink, scan};
use super::{ArchiveError, Limits, Result, Tree, shown};

/// What may be in the directory before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing; a directory with anything in it is refused (`Invalid`) before the first write.
    Empty,
    /// Anything. Files and links in the way are replaced, existing directories are kept and filled, and everything else
    /// stays; a directory where the archive has something else is refused (`Invalid`).
    Merge,
}

/// Unpacks a whole tar into `dir` and returns the tree it makes, which is what `digest` says of the same tar.
///
/// Content, permission bits and times are restored, owners are not; set-user-id and set-group-id are dropped. A symbolic
/// link's target is kept verbatim and never followed. After an error what was unpacked so far is left behind, so a caller
/// that promises all or nothing unpacks beside the place and renames. `Unsafe`, `Invalid` and `Limit` are the archive's
/// fault, `Full` and `Storage` the disk's or the stream's.
pub fn unpack(dir: &Dir, tar: &mut dyn Read, limits: &Limits, existing: Existing) -> Result<Tree> {
    if existing == Existing::Empty && dir.entries()?.next().is_some() {
        return Err(ArchiveError::invalid("the directory to unpack into is not empty"));
    }
    let root = Made { parent: 0, name: Box::default(), mode: IMPLIED_MODE };
    let mut disk = Disk { here: Cursor::new(dir), source: Cursor::new(dir), made: vec![root], file: None };
    scan(tar, limits, &mut disk)
}

/// A directory of the archive. Kept by parent and name, so that deep trees do not cost the sum of their paths.
struct Made {
    parent: u32,
    name: Box<[u8]>,
    /// What it gets unless the archive says more.
    mode: u16,
}

struct Disk<'a> {
    here: Cursor<'a>,
    /// A second place to stand, for hard links that cross directories.
    source: Cursor<'a>,
    made: Vec<Made>,
    file: Option<std::fs::File>,
}

impl Sink for Disk<'_> {
    fn directory(&mut self, path: &[u8], parent: u32) -> Result<()> {
        let (place, name) = split(path);
        let place = self.here.at(place).map_err(|errno| disk(path, errno))?;
        let mode = make_directory(place, name).map_err(|errno| disk(path, errno))?;
        self.made.push(Made { parent, name: name.into(), mode });
        Ok(())
    }

    fn file(&mut self, path: &[u8]) -> Result<()> {
        let (place, name) = split(path);
        let place = self.here.at(place).map_err(|errno| disk(path, errno))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = replacing(place, name, path, || rustix::fs::openat(place, name, flags, Mode::RUSR | Mode::WUSR))?;
        self.file = Some(file.into());
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
        }
        Ok(())
    }

    fn file_end(&mut self, mode: u16, mtime: Mtime) -> Result<()> {
        if let Some(file) = self.file.take() {
            rustix::fs::fchmod(&file, bits(mode))?;
            rustix::fs::futimens(&file, &times(mtime))?;
        }
        Ok(())
    }

    fn symlink(&mut self, path: &[u8], target: &[u8], mtime: Mtime) -> Result<()> {
        let (place, name) = split(path);
        let place = self.here.at(place).map_err(|errno| disk(path, errno))?;
        replacing(place, name, path, || rustix::fs::symlinkat(target, place, name))?;
        Ok(rustix::fs::utimensat(place, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let (from, old) = split(target);
        let (place, name) = split(path);
        let from = self.source.at(from).map_err(|errno| disk(target, errno))?;
        let place = self.here.at(place).map_err(|errno| disk(path, errno))?;
        replacing(place, name, path, || rustix::fs::linkat(from, old, place, name, AtFlags::empty()))
    }

    /// Gives directories their modes and times last, since neither would survive the filling. A parent always comes before
    /// its children, so the way back closes no door that is still needed.
    fn end(&mut self, directories: &[Directory]) -> Result<()> {
        for number in (1..self.made.len()).rev() {
            let path = self.path(number);
            let directory = self.here.at(&path).map_err(|errno| disk(&path, errno))?;
            let told = directories.get(number).and_then(|directory| directory.told);
            rustix::fs::fchmod(directory, bits(told.map_or(self.made[number].mode, |(mode, _)| mode)))?;
            if let Some((_, mtime)) = told {
                rustix::fs::futimens(directory, &times(mtime))?;
            }
        }
        Ok(())
    }
}

impl Disk<'_> {
    fn path(&self, number: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = number;
        while at != 0 {
            names.push(&*self.made[at].name);
            at = self.made[at].parent as usize;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// Makes a directory that can be filled, or makes an existing one fillable; returns the mode it should end up with.
fn make_directory(place: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<u16> {
    match rustix::fs::mkdirat(place, name, Mode::RWXU) {
        Err(Errno::EXIST) => {}
        done => return done.map(|()| IMPLIED_MODE),
    }
    let stat = rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        rustix::fs::unlinkat(place, name, AtFlags::empty())?;
        return rustix::fs::mkdirat(place, name, Mode::RWXU).map(|()| IMPLIED_MODE);
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(Mode::RWXU) {
        // A directory that may not be read can be named by a handle but not changed through it, and a change by name would
        // follow a link put there meanwhile; the handle's own name in /proc does neither.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(place, name, flags, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), mode | Mode::RWXU)?;
    }
    Ok(u16::try_from(mode.as_raw_mode()).unwrap_or(IMPLIED_MODE))
}

/// Makes something new at a name, after taking away what is there unless that is a directory.
fn replacing<T>(place: BorrowedFd<'_>, name: &[u8], path: &[u8], make: impl Fn() -> rustix::io::Result<T>) -> Result<T> {
    match make() {
        Err(Errno::EXIST) => {}
        done => return done.map_err(|errno| disk(path, errno)),
    }
    match rustix::fs::unlinkat(place, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => Err(ArchiveError::invalid(format!("a directory is in the way of \"{}\"", shown(path)))),
        Err(errno) => Err(disk(path, errno)),
        Ok(()) => make().map_err(|errno| disk(path, errno)),
    }
}

fn bits(mode: u16) -> Mode {
    Mode::from_raw_mode(mode.into())
}

fn times(mtime: Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos },
    }
}

fn disk(path: &[u8], errno: Errno) -> ArchiveError {
    match errno {
        // The archive's own directories were made as directories, so somebody else put a link there.
        Errno::LOOP | Errno::NOTDIR => ArchiveError::unsafe_at(path, "leads through something that is not a directory"),
        Errno::NAMETOOLONG => ArchiveError::limit("a name is too long for this disk"),
        _ => {
            let error = ArchiveError::from(errno);
            ArchiveError::new(error.code, format!("\"{}\": {}", shown(path), error.detail))
        }
    }
}
