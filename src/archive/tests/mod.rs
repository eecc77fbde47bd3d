//! What the tests of this room share: hand-made tars, directories and an independent look at them.

mod blobs;
mod hostile;
mod order;
mod round;
mod walking;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use tempfile::TempDir;

use super::header::{Owner, Plain, pad};
use super::{ArchiveCode, Existing, Limits, Result, Tree};

/// A tar made by hand, entry by entry.
#[derive(Clone, Default)]
pub(super) struct Tar(pub(super) Vec<u8>);

impl Tar {
    /// Any entry at all, however wrong.
    pub(super) fn entry(mut self, kind: u8, path: &[u8], link: &[u8], mode: u16, content: &[u8]) -> Self {
        let size = content.len() as u64;
        Plain { kind, path, link, mode, size, seconds: 1_700_000_000, owner: Owner::default() }.write(&mut self.0).unwrap();
        self.0.extend_from_slice(content);
        pad(&mut self.0, size).unwrap();
        self
    }

    pub(super) fn file(self, path: &str, content: &str) -> Self {
        self.entry(b'0', path.as_bytes(), b"", 0o644, content.as_bytes())
    }

    pub(super) fn dir(self, path: &str, mode: u16) -> Self {
        self.entry(b'5', path.as_bytes(), b"", mode, b"")
    }

    pub(super) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path.as_bytes(), target.as_bytes(), 0o777, b"")
    }

    pub(super) fn link(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path.as_bytes(), target.as_bytes(), 0o644, b"")
    }

    /// A PAX header for the next entry.
    pub(super) fn pax(self, kind: u8, key: &str, value: &[u8]) -> Self {
        let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
        let length = (1..99_999).find(|n| n - n.to_string().len() == body.len()).unwrap();
        self.entry(kind, b"pax", b"", 0o644, &[length.to_string().as_bytes(), &body].concat())
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

/// A directory to unpack into, inside another one with a witness that must not change.
pub(super) struct Place {
    pub(super) outer: TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        std::fs::create_dir(outer.path().join("inner")).unwrap();
        std::fs::create_dir(outer.path().join("victim")).unwrap();
        std::fs::write(outer.path().join("victim/file"), "untouched").unwrap();
        Self { outer }
    }

    pub(super) fn inner(&self) -> std::path::PathBuf {
        self.outer.path().join("inner")
    }

    pub(super) fn dir(&self) -> Dir {
        open(&self.inner())
    }

    pub(super) fn unpack(&self, tar: &[u8], limits: &Limits, existing: Existing) -> Result<Tree> {
        super::unpack(&self.dir(), &mut &*tar, limits, existing)
    }

    /// Nothing outside the inner directory was made, changed or removed.
    pub(super) fn assert_untouched(&self) {
        let names = |path: &Path| {
            let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.outer.path()), ["inner", "victim"]);
        assert_eq!(names(&self.outer.path().join("victim")), ["file"]);
        let file = std::fs::metadata(self.outer.path().join("victim/file")).unwrap();
        assert_eq!((file.nlink(), file.mode() & 0o7777), (1, 0o644));
        assert_eq!(std::fs::read(self.outer.path().join("victim/file")).unwrap(), b"untouched");
    }
}

pub(super) fn open(path: &Path) -> Dir {
    Dir::open_ambient_dir(path, ambient_authority()).unwrap()
}

pub(super) fn pack(path: &Path) -> Vec<u8> {
    let mut tar = Vec::new();
    super::write_tar(&open(path), &[], &mut tar).unwrap();
    tar
}

pub(super) fn digest(tar: &[u8]) -> Result<Tree> {
    super::digest(&mut &*tar, &Limits::default())
}

pub(super) fn code(result: Result<Tree>) -> ArchiveCode {
    result.unwrap_err().code
}

/// What `find` says of a directory, in byte order; `arguments` print one line of whatever per thing found.
pub(super) fn find(path: &Path, arguments: &[&str]) -> Vec<Vec<u8>> {
    let output = Command::new("find").current_dir(path).arg(".").args(arguments).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<Vec<u8>> = output.stdout.split_inclusive(|&byte| byte == b'\n').map(|line| line.trim_ascii_end().to_vec()).collect();
    lines.sort();
    lines
}

/// Everything that must survive: names, kinds, modes, sizes, link targets, times, number of names, content.
pub(super) fn picture(path: &Path) -> Vec<Vec<u8>> {
    let mut all = find(path, &["-mindepth", "1", "-type", "d", "-printf", "%P|d|%m|%Ts\\0\n"]);
    all.extend(find(path, &["-mindepth", "1", "-not", "-type", "d", "-printf", "%P|%y|%m|%s|%l|%n|%Ts\\0\n"]));
    all.extend(find(path, &["-type", "f", "-exec", "sha256sum", "-z", "{}", ";", "-printf", "\n"]));
    all.extend(link_groups(path));
    all
}

/// The names of every file that has several, as sets.
fn link_groups(path: &Path) -> Vec<Vec<u8>> {
    let mut groups = std::collections::BTreeMap::<Vec<u8>, Vec<Vec<u8>>>::new();
    for line in find(path, &["-type", "f", "-links", "+1", "-printf", "%i %P\\0\n"]) {
        let space = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        groups.entry(line[..space].to_vec()).or_default().push(line[space..].to_vec());
    }
    let mut groups: Vec<Vec<u8>> = groups.into_values().map(|names| names.concat()).collect();
    groups.sort();
    groups
}

/// Lets another tar unpack, so that the two are compared and not one with itself.
pub(super) fn gnu_unpack(tar: &[u8], into: &Path) {
    std::fs::write(into.with_extension("tar"), tar).unwrap();
    let status = Command::new("tar").arg("-xpf").arg(into.with_extension("tar")).arg("-C").arg(into).status().unwrap();
    assert!(status.success());
}

/// Lets another tar pack.
pub(super) fn gnu_pack(path: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").args(arguments).args(["-cf", "-", "-C"]).arg(path).arg(".").output().unwrap();
    assert!(output.status.success());
    output.stdout
}

pub(super) fn os(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Whether modes keep nothing from these tests, as from root.
pub(super) fn reads_everything() -> bool {
    rustix::process::geteuid().is_root()
}
