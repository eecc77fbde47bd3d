//! Small files that are there whole or not at all, also after the machine lost power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::id;

/// Makes a file that must not exist yet.
pub(super) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Replaces a file's content, or makes the file.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(id::new().to_string());
    let replaced = create(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if replaced.is_err() {
        // The name is nobody else's; the failure is what counts.
        let _ = fs::remove_file(&beside);
    }
    replaced?;
    path.parent().map_or(Ok(()), sync)
}

/// Makes what was created, renamed or removed in a directory last.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
