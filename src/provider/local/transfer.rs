//! Content in and out: one file, or the whole workspace as a tar.

use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use cap_std::fs::{Dir, MetadataExt, Permissions, PermissionsExt};
use rustix::fs::{Mode, RenameFlags, fchmod, renameat_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::files::{Workspace, create, wrong};
use super::purge::purge;
use super::{blocking, failed, fence, layout};
use crate::archive::{self, ArchiveCode, ArchiveError, Existing, Limits};
use crate::id;
use crate::provider::{ByteStream, Kind, ProviderError, PutOptions, Result, TreeRead, WORKSPACE, WriteMode, stream};

const BUFFER: usize = 64 * 1024;

/// Something in `staging/` that is not left behind, whatever happens.
struct Staged {
    staging: PathBuf,
    name: String,
}

impl Staged {
    fn new(instance: &Path) -> Self {
        Self { staging: layout::staging(instance), name: id::new().to_string() }
    }

    fn path(&self) -> PathBuf {
        self.staging.join(&self.name)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What cannot be removed now goes with the instance.
        let _ = purge(&self.staging, &self.name);
    }
}

/// Replaces a file's content in one step; true when the file is new.
pub(super) async fn put(instance: PathBuf, grant_seq: i64, path: String, body: ByteStream, options: PutOptions) -> Result<bool> {
    let staged = Staged::new(&instance);
    let (name, place) = (staged.name.clone(), instance.clone());
    let (workspace, file) = blocking(move || {
        let workspace = Workspace::open(&instance)?;
        let file = create(&workspace.staging()?, &name).map_err(failed)?;
        Ok((workspace, file))
    })
    .await?;
    let mut file = tokio::fs::File::from_std(file.into_std());
    copy(body, &mut file).await?;
    let file = file.into_std().await;
    blocking(move || {
        let _passed = fence::pass(&place, grant_seq)?;
        if options.parents
            && let Some(parent) = workspace.inside(&path)?.parent().filter(|parent| !parent.as_os_str().is_empty())
        {
            workspace.make_directory(parent)?;
        }
        let target = target(&workspace, &path)?;
        let before = match workspace.dir.symlink_metadata(&target) {
            Ok(metadata) if metadata.is_dir() => return Err(ProviderError::new(Kind::IsADirectory, "is a directory")),
            Ok(metadata) => Some(metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(wrong(e)),
        };
        let kept = before.as_ref().filter(|before| before.is_file()).map(MetadataExt::mode);
        let mode = options.mode.or(kept).unwrap_or(0o644);
        fchmod(&file, Mode::from_raw_mode(mode & 0o7777)).map_err(|e| failed(e.into()))?;
        let (parent, last) = workspace.place(&target)?;
        workspace.staging()?.rename(&staged.name, &parent, last).map_err(wrong)?;
        Ok(before.is_none())
    })
    .await
}

/// The place a put goes to: behind a final link, if that leads to something inside.
fn target(workspace: &Workspace, path: &str) -> Result<PathBuf> {
    let inside = workspace.inside(path)?;
    if !workspace.dir.symlink_metadata(inside).is_ok_and(|metadata| metadata.is_symlink()) {
        return Ok(inside.to_owned());
    }
    match workspace.dir.canonicalize(inside) {
        Ok(behind) => Ok(behind),
        // A link to nothing is replaced itself.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(inside.to_owned()),
        Err(e) => Err(wrong(e)),
    }
}

async fn copy(mut body: ByteStream, file: &mut tokio::fs::File) -> Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = body
            .read(&mut buffer)
            .await
            .map_err(|e| ProviderError::new(Kind::Refused, "the body broke off; nothing was changed").because(e))?;
        if length == 0 {
            return file.flush().await.map_err(failed);
        }
        file.write_all(&buffer[..length]).await.map_err(failed)?;
    }
}

/// A directory as a tar.
pub(super) async fn read_tree(instance: PathBuf, path: String, exclude: Vec<String>) -> Result<TreeRead> {
    let top = blocking(move || {
        let workspace = Workspace::open(&instance)?;
        workspace.dir.open_dir(workspace.inside(&path)?).map_err(wrong)
    })
    .await?;
    let (mut writer, tar) = stream::channel();
    let (count, skipped) = oneshot::channel();
    // Ends by itself: with the walk, or when the reader leaves.
    tokio::task::spawn_blocking(move || {
        if let Ok(walked) = archive::write_tar(&top, &exclude, &mut writer) {
            // A reader that left needs neither; a tar that was cut short shows as a broken stream.
            let _ = count.send(walked.skipped);
            let _ = writer.finish();
        }
    });
    Ok(TreeRead { tar, skipped })
}

/// Lays a tar over a directory, or makes the directory exactly the tar.
pub(super) async fn write_tree(instance: PathBuf, grant_seq: i64, path: String, tar: ByteStream, mode: WriteMode) -> Result<()> {
    // Goes along with the work on it, so that it is cleared away after the last write, also when the caller has left.
    let staged = Staged::new(&instance);
    let (feeding, input) = stream::feed(tar);
    match mode {
        WriteMode::Replace => {
            let unpacking = blocking(move || {
                fs::create_dir(staged.path()).map_err(failed)?;
                let into = Dir::open_ambient_dir(staged.path(), cap_std::ambient_authority()).map_err(failed)?;
                unpack(&into, input, Existing::Empty).map(|()| staged)
            });
            let (fed, unpacked) = tokio::join!(feeding, unpacking);
            let staged = unpacked.map_err(|e| fed.err().unwrap_or(e))?;
            // Only now, and not if the caller left meanwhile. What was there is then cleared away.
            blocking(move || {
                let _passed = fence::pass(&instance, grant_seq)?;
                let workspace = Workspace::open(&instance)?;
                let (parent, name) = if let Some(inside) = made(&workspace, &path)? {
                    workspace.place(&inside)?
                } else {
                    let above = Dir::open_ambient_dir(&instance, cap_std::ambient_authority()).map_err(failed)?;
                    (above, PathBuf::from(layout::workspace(&instance).file_name().unwrap_or_default()))
                };
                exchange(&workspace.staging()?, Path::new(&staged.name), &parent, &name)
            })
            .await
        }
        WriteMode::Merge => {
            let spooling = blocking(move || spool_checked(&staged.path(), input).map(|tar| (tar, staged)));
            let (fed, spooled) = tokio::join!(feeding, spooling);
            let (tar, staged) = spooled.map_err(|e| fed.err().unwrap_or(e))?;
            blocking(move || {
                let _until_unpacked = staged;
                let _passed = fence::pass(&instance, grant_seq)?;
                let workspace = Workspace::open(&instance)?;
                let inside = made(&workspace, &path)?.unwrap_or_else(|| PathBuf::from(WORKSPACE));
                let into = workspace.dir.open_dir(inside).map_err(wrong)?;
                unpack(&into, tar, Existing::Merge).map_err(|e| match e.kind {
                    Kind::Full => e,
                    Kind::Invalid => ProviderError::new(Kind::IsADirectory, "a directory is in the way of an entry").because(e),
                    _ => ProviderError::new(Kind::Indeterminate, "the tree was laid over in part").because(e),
                })
            })
            .await
        }
    }
}

/// Makes a directory where it is missing; returns where it is, behind every link, or nothing for the workspace itself.
fn made(workspace: &Workspace, path: &str) -> Result<Option<PathBuf>> {
    let inside = workspace.inside(path)?;
    workspace.make_directory(inside)?;
    let real = workspace.dir.canonicalize(inside).map_err(wrong)?;
    Ok(Some(real).filter(|real| !real.as_os_str().is_empty() && real != Path::new(WORKSPACE)))
}

fn unpack(into: &Dir, mut tar: impl Read, existing: Existing) -> Result<()> {
    archive::unpack(into, &mut tar, &Limits::default(), existing).map(|_| ()).map_err(refused)
}

/// Keeps the whole tar, so that one that would be refused half way is refused before it changes anything.
fn spool_checked(spool: &Path, mut input: impl Read) -> Result<fs::File> {
    let mut file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(spool).map_err(failed)?;
    io::copy(&mut input, &mut file).map_err(failed)?;
    file.rewind().map_err(failed)?;
    archive::digest(&mut io::BufReader::new(&file), &Limits::default()).map_err(refused)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Puts a new directory in the old one's place in one step, with the old one's mode.
fn exchange(staging: &Dir, new: &Path, parent: &Dir, old: &Path) -> Result<()> {
    let mode = parent.metadata(old).map_err(failed)?.permissions();
    // A read-only directory cannot change its parent.
    parent.set_permissions(old, Permissions::from_mode(mode.mode() | 0o700)).map_err(failed)?;
    renameat_with(staging, new, parent, old, RenameFlags::EXCHANGE).map_err(|e| failed(e.into()))?;
    parent.set_permissions(old, mode).map_err(failed)
}

fn refused(error: ArchiveError) -> ProviderError {
    let (kind, message) = match error.code {
        ArchiveCode::Unsafe => (Kind::Path, "the tar leads out of the workspace"),
        ArchiveCode::Invalid => (Kind::Invalid, "the tar is malformed"),
        ArchiveCode::Limit => (Kind::Invalid, "the tar is larger than allowed"),
        ArchiveCode::Full => (Kind::Full, "the disk is full"),
        ArchiveCode::HashMismatch | ArchiveCode::Missing | ArchiveCode::Storage => (Kind::Transient, "the disk failed"),
    };
    ProviderError::new(kind, message).because(error)
}

/// Whether anything in the workspace was touched between two calls.
pub(super) async fn stat_walk(instance: PathBuf, exclude: Vec<String>) -> Result<String> {
    blocking(move || {
        archive::stat_digest(&Workspace::open(&instance)?.dir, &exclude)
            .map_err(|e| ProviderError::new(Kind::Transient, "the workspace changed during the walk").because(e))
    })
    .await
}
