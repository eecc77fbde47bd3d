//! Files of a workspace, reached only through a directory handle that no path leads out of.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata, MetadataExt, OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use rustix::fs::{OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::purge::purge;
use super::{failed, layout};
use crate::clock::Time;
use crate::id;
use crate::provider::{FileEntry, FileKind, Kind, ProviderError, Result};

/// A directory whose path is longer cannot be reached by path, so a listing does not go into it.
const MOST_PATH: usize = 4000;

/// An instance's files.
pub(super) struct Workspace {
    /// The workspace; every path of a caller is looked up in here.
    pub(super) dir: Dir,
    root: PathBuf,
    staging: PathBuf,
}

impl Workspace {
    pub(super) fn open(instance: &Path) -> Result<Self> {
        let root = layout::workspace(instance);
        let dir = Dir::open_ambient_dir(&root, ambient_authority()).map_err(failed)?;
        Ok(Self { dir, root, staging: layout::staging(instance) })
    }

    /// A caller's path as it is looked up: relative to the workspace; absolute ones must lie in it.
    pub(super) fn inside<'a>(&self, path: &'a str) -> Result<&'a Path> {
        let given = Path::new(path);
        let inside = if given.is_absolute() { given.strip_prefix(&self.root).map_err(|_| escapes())? } else { given };
        Ok(if inside.as_os_str().is_empty() { Path::new(".") } else { inside })
    }

    /// Opens a regular file; what is none is not waited for.
    pub(super) fn read(&self, path: &str) -> Result<(FileEntry, fs::File)> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0));
        let file = self.dir.open_with(self.inside(path)?, &options).map_err(wrong)?;
        let metadata = file.metadata().map_err(wrong)?;
        if metadata.is_dir() {
            return Err(ProviderError::new(Kind::IsADirectory, "is a directory"));
        }
        if !metadata.is_file() {
            return Err(ProviderError::new(Kind::Path, "is no regular file"));
        }
        Ok((entry(path.as_bytes().to_vec(), &metadata, None), file.into_std()))
    }

    pub(super) fn stat(&self, path: &str) -> Result<FileEntry> {
        let inside = self.inside(path)?;
        let metadata = self.dir.symlink_metadata(inside).map_err(wrong)?;
        let target = metadata.is_symlink().then(|| self.dir.read_link_contents(inside)).transpose().map_err(wrong)?;
        Ok(entry(path.as_bytes().to_vec(), &metadata, target))
    }

    pub(super) fn list(&self, path: &str, recursive: bool, after: Option<&[u8]>, limit: usize) -> Result<Vec<FileEntry>> {
        let top = self.dir.open_dir(self.inside(path)?).map_err(wrong)?;
        let mut page: BTreeMap<Vec<u8>, FileEntry> = BTreeMap::new();
        let mut rest = vec![Vec::new()];
        while let Some(directory) = rest.pop() {
            let here = if directory.is_empty() { top.try_clone() } else { top.open_dir(as_path(&directory)) };
            let entries = match here.and_then(|here| here.entries()) {
                Ok(entries) => entries,
                // Gone, or another thing, since it was seen.
                Err(_) if !directory.is_empty() => continue,
                Err(e) => return Err(wrong(e)),
            };
            for found in entries {
                let found = found.map_err(wrong)?;
                let name = found.file_name();
                let full = if directory.is_empty() { name.as_bytes().to_vec() } else { [&directory, name.as_bytes()].join(&b'/') };
                let Ok(metadata) = found.metadata() else { continue };
                // All names in a directory follow its own with a slash, so a whole one can lie before or behind the page.
                let end = [full.as_slice(), b"0"].concat();
                if recursive && metadata.is_dir() && full.len() <= MOST_PATH && after.is_none_or(|after| end.as_slice() > after) {
                    rest.push(full.clone());
                }
                if after.is_some_and(|after| full.as_slice() <= after) {
                    continue;
                }
                let target = metadata.is_symlink().then(|| top.read_link_contents(as_path(&full)).ok()).flatten();
                page.insert(full.clone(), entry(full, &metadata, target));
                if page.len() > limit {
                    page.pop_last();
                }
            }
        }
        Ok(page.into_values().collect())
    }

    /// Makes a directory and its parents, behind links too as long as they stay inside.
    pub(super) fn make_directory(&self, inside: &Path) -> Result<()> {
        let parents: Vec<&Path> = inside.ancestors().filter(|parent| !parent.as_os_str().is_empty()).collect();
        for directory in parents.into_iter().rev() {
            let made = match self.dir.metadata(directory) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => self.dir.create_dir(directory),
                Ok(found) if !found.is_dir() && directory == inside => Err(io::ErrorKind::AlreadyExists.into()),
                Ok(found) if !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
                found => found.map(|_| ()),
            };
            // Another call may make the same one at the same time.
            if made.is_err() && !self.dir.metadata(directory).is_ok_and(|found| found.is_dir()) {
                return made.map_err(wrong);
            }
        }
        Ok(())
    }

    pub(super) fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let (parent, name) = self.place(self.inside(path)?)?;
        match parent.remove_file(&name) {
            Err(e) if matches!(e.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::PermissionDenied) => {}
            done => return done.map_err(wrong),
        }
        if !recursive {
            return parent.remove_dir(&name).map_err(wrong);
        }
        // Out of the workspace in one step; whatever its size and modes, it is then nobody's but ours.
        let staging = self.staging()?;
        let doomed = id::new().to_string();
        let taken = parent.rename(&name, &staging, &doomed);
        if taken.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            // A read-only directory cannot change its parent.
            parent.set_permissions(&name, Permissions::from_mode(0o700)).map_err(wrong)?;
            parent.rename(&name, &staging, &doomed).map_err(wrong)?;
        } else {
            taken.map_err(wrong)?;
        }
        purge(&self.staging, &doomed).map_err(wrong)
    }

    pub(super) fn rename(&self, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let (source, name) = self.place(self.inside(from)?)?;
        let (target, new_name) = self.place(self.inside(to)?)?;
        let flags = if overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        renameat_with(&source, &name, &target, &new_name, flags).map_err(|e| wrong(e.into()))
    }

    /// The directory that holds a path's last part, and that part.
    pub(super) fn place(&self, inside: &Path) -> Result<(Dir, PathBuf)> {
        let name = inside.file_name().filter(|_| !inside.ends_with("..")).ok_or_else(|| {
            let named = if inside == Path::new(".") { "the workspace itself stays" } else { "the path has no name at its end" };
            ProviderError::new(Kind::Path, named)
        })?;
        let parent = inside.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((self.dir.open_dir(parent).map_err(wrong)?, PathBuf::from(name)))
    }

    /// Where things are made before they are renamed into the workspace.
    pub(super) fn staging(&self) -> Result<Dir> {
        Dir::open_ambient_dir(&self.staging, ambient_authority()).map_err(failed)
    }

    /// Checks that a command can work here, and says where that is.
    pub(super) fn working_directory(&self, path: Option<&str>) -> Result<PathBuf> {
        let Some(path) = path else { return Ok(self.root.clone()) };
        let inside = self.inside(path)?;
        self.dir.open_dir(inside).map_err(wrong)?;
        Ok(self.root.join(inside))
    }
}

/// Makes a new file that only its owner can read while it is filled.
pub(super) fn create(staging: &Dir, name: &str) -> io::Result<File> {
    staging.open_with(name, OpenOptions::new().write(true).create_new(true).mode(0o600))
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn entry(path: Vec<u8>, metadata: &Metadata, target: Option<PathBuf>) -> FileEntry {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let modified = metadata.modified().ok().and_then(|at| at.into_std().duration_since(UNIX_EPOCH).ok());
    FileEntry {
        path,
        kind,
        size: if kind == FileKind::File { metadata.len() } else { 0 },
        mode: metadata.mode() & 0o7777,
        modified_at: modified.and_then(|at| i64::try_from(at.as_millis()).ok()).map(Time),
        link_target: target.map(|target| target.as_os_str().as_bytes().to_vec()),
    }
}

fn escapes() -> ProviderError {
    ProviderError::new(Kind::Path, "the path leaves the workspace")
}

/// What a failed file operation means for the caller's path.
pub(super) fn wrong(error: io::Error) -> ProviderError {
    let told = |kind, message| ProviderError::new(kind, message);
    let error_kind = error.kind();
    let made = match error_kind {
        io::ErrorKind::NotFound => told(Kind::FileNotFound, "no such file or directory"),
        io::ErrorKind::NotADirectory => told(Kind::NotADirectory, "a part of the path is no directory"),
        io::ErrorKind::IsADirectory => told(Kind::IsADirectory, "is a directory"),
        io::ErrorKind::DirectoryNotEmpty => told(Kind::DirectoryNotEmpty, "the directory has entries"),
        io::ErrorKind::AlreadyExists => told(Kind::FileExists, "a file of this name exists"),
        // The confinement's own refusal carries no number.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => escapes(),
        io::ErrorKind::PermissionDenied => told(Kind::Refused, "the file's mode forbids it"),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => told(Kind::Path, "the path is malformed"),
        _ if Errno::from_io_error(&error).is_some_and(|errno| matches!(errno, Errno::LOOP | Errno::NXIO)) => {
            told(Kind::Path, "the path leads to nothing that can be opened")
        }
        _ => return failed(error),
    };
    made.because(error)
}
