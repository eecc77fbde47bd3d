//! Removes whole trees, however deep and whatever their modes, without ever leaving them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmodat, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::id;

/// Passes over one directory before it is given up, because something fills it as fast as it is emptied.
const MOST_PASSES: usize = 16;

/// Removes what is at `name` in `base`, which must be a directory of Berth's own: directories found inside are moved up
/// into it and emptied there, so that neither depth nor path length matters. Nothing being there is fine.
pub(super) fn purge(base: &std::path::Path, name: &str) -> io::Result<()> {
    let base = openat(CWD, base, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut rest = vec![name.to_owned()];
    while let Some(next) = rest.pop() {
        for pass in 0.. {
            if remove(&base, &next)? {
                break;
            }
            if pass == MOST_PASSES {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            match empty(&base, &next, &mut rest) {
                // Someone else removes the same tree.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                emptied => emptied?,
            }
        }
    }
    Ok(())
}

/// Removes a file or an empty directory; false when it is a directory with entries.
fn remove(base: &OwnedFd, name: &str) -> io::Result<bool> {
    match unlinkat(base, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Err(Errno::NOENT) | Ok(()) => return Ok(true),
        Err(e) => return Err(e.into()),
    }
    match unlinkat(base, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOENT) | Ok(()) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Unlinks a directory's files and moves its directories up.
fn empty(base: &OwnedFd, name: &str, rest: &mut Vec<String>) -> io::Result<()> {
    // What a command made read-only would neither let its entries go nor be moved itself.
    chmodat(base, name, Mode::RWXU, AtFlags::empty())?;
    let directory = openat(base, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let inner = entry.file_name();
        if matches!(inner.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(&directory, inner, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                chmodat(&directory, inner, Mode::RWXU, AtFlags::empty())?;
                let moved = id::new().to_string();
                renameat(&directory, inner, base, &moved)?;
                rest.push(moved);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn deep_read_only_and_linked_trees_go_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let (base, outside) = (home.path().join("base"), home.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let mut at = base.join("tree");
        for depth in 0..400 {
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("file"), "").unwrap();
            std::os::unix::fs::symlink(&outside, at.join("link")).unwrap();
            at.push(format!("d{depth}"));
        }
        for depth in [3, 0] {
            let closed = base.join("tree").join((0..depth).map(|d| format!("d{d}")).collect::<std::path::PathBuf>());
            fs::set_permissions(closed, fs::Permissions::from_mode(0o555)).unwrap();
        }
        purge(&base, "tree").unwrap();
        purge(&base, "tree").unwrap();
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0);
        assert!(outside.join("kept").exists());
    }
}
