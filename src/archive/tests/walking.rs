//! What is walked, what is left out, and what counts as a change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::{ArchiveCode, Walked, stat_digest, write_tar};
use super::*;

#[test]
fn sockets_pipes_and_excluded_paths_stay_out() {
    let place = Place::new();
    let inner = place.inner();
    fs::create_dir_all(inner.join("src/node_modules/x")).unwrap();
    fs::create_dir_all(inner.join("build/cache")).unwrap();
    fs::write(inner.join("src/main.log"), "x").unwrap();
    fs::write(inner.join("src/main.rs"), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(inner.join("socket")).unwrap();
    rustix::fs::mkfifoat(place.dir(), "pipe", rustix::fs::Mode::RUSR).unwrap();
    let mut tar = Vec::new();
    let exclude = ["node_modules", "build/cache", "*.log"].map(str::to_owned);
    assert_eq!(write_tar(&place.dir(), &exclude, &mut tar).unwrap(), Walked { skipped: 2 });
    let same = Tar::default().dir("build", 0o755).dir("src", 0o755).file("src/main.rs", "x").end();
    assert_eq!(digest(&tar).unwrap(), digest(&same).unwrap());
}

#[test]
fn an_unchanged_directory_is_the_same_tar_again() {
    let place = Place::new();
    for name in ["b", "a", "c-d", "c"] {
        fs::create_dir(place.inner().join(name)).unwrap();
        fs::write(place.inner().join(name).join("f"), name).unwrap();
    }
    assert_eq!(pack(&place.inner()), pack(&place.inner()));
}

#[test]
fn links_are_kept_verbatim_and_never_followed() {
    let place = Place::new();
    symlink("../victim", place.inner().join("out")).unwrap();
    symlink("/usr//bin/./python3/", place.inner().join("venv")).unwrap();
    symlink("loop", place.inner().join("loop")).unwrap();
    let tar = pack(&place.inner());
    let same = Tar::default().symlink("loop", "loop").symlink("out", "../victim").symlink("venv", "/usr//bin/./python3/").end();
    assert_eq!(digest(&tar).unwrap(), digest(&same).unwrap());
    let second = Place::new();
    second.unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!(picture(&second.inner()), picture(&place.inner()));
}

#[test]
fn a_file_that_grows_or_shrinks_while_it_is_read_is_noticed() {
    for grow in [true, false] {
        let place = Place::new();
        let file = place.inner().join("f");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let mut out = Meddling { file: file.clone(), grow, seen: 0 };
        let error = write_tar(&place.dir(), &[], &mut out).unwrap_err();
        assert_eq!(error.code, ArchiveCode::Invalid);
        assert!(error.detail.contains("changed during capture"), "{error}");
    }
}

/// Changes the file once half of it was written out.
struct Meddling {
    file: std::path::PathBuf,
    grow: bool,
    seen: usize,
}

impl std::io::Write for Meddling {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let before = self.seen;
        self.seen += bytes.len();
        if before <= 1 << 19 && self.seen > 1 << 19 {
            let length = if self.grow { 2 << 20 } else { 1 << 10 };
            fs::OpenOptions::new().write(true).open(&self.file)?.set_len(length)?;
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_touch_changes_the_stat_digest_and_reading_does_not() {
    let place = Place::new();
    let inner = place.inner();
    fs::create_dir(inner.join("d")).unwrap();
    fs::write(inner.join("d/f"), "one").unwrap();
    fs::create_dir(inner.join("skip")).unwrap();
    let exclude = vec!["skip".to_owned()];
    let look = || stat_digest(&place.dir(), &exclude).unwrap();
    let mut before = look();
    fs::read(inner.join("d/f")).unwrap();
    pack(&inner);
    fs::write(inner.join("skip/x"), "not looked at").unwrap();
    assert_eq!(look(), before);
    let touches: [&dyn Fn(); 6] = [
        &|| fs::write(inner.join("d/f"), "two").unwrap(),
        &|| fs::set_permissions(inner.join("d/f"), fs::Permissions::from_mode(0o600)).unwrap(),
        &|| fs::rename(inner.join("d/f"), inner.join("d/g")).unwrap(),
        &|| symlink("x", inner.join("s")).unwrap(),
        &|| fs::hard_link(inner.join("d/g"), inner.join("h")).unwrap(),
        &|| fs::remove_dir(inner.join("empty")).or_else(|_| fs::create_dir(inner.join("empty"))).unwrap(),
    ];
    for touch in touches {
        touch();
        let after = look();
        assert_ne!(after, before);
        before = after;
    }
}

#[test]
fn a_tree_deeper_than_files_may_be_open_is_walked_and_unpacked() {
    let path = format!("{}f", "d/".repeat(1100));
    let tar = Tar::default().file(&path, "deep").dir("d/e", 0o500).file("d/e/g", "x").end();
    let place = Place::new();
    let tree = place.unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!(tree.entries, 1100 + 3);
    assert_eq!(digest(&pack(&place.inner())).unwrap(), tree);
    assert_eq!(stat_digest(&place.dir(), &[]).unwrap(), stat_digest(&place.dir(), &[]).unwrap());
}
