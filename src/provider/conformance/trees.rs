//! Whole workspaces as tars, out and in.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tar::{Archive, Builder, EntryType, Header};

use super::{LARGE, Sandbox, Subject};
use crate::provider::stream::{channel, from_bytes, read_all};
use crate::provider::{Kind, WORKSPACE, WriteMode};

/// Everything in this file.
pub async fn all(subject: Subject<'_>) {
    a_tree_comes_back_as_it_was(subject).await;
    a_directory_goes_out_and_in_alone(subject).await;
    a_bad_tar_changes_nothing(subject).await;
    links_are_data(subject).await;
    a_stat_walk_sees_every_change(subject).await;
}

/// What a tar says of one path.
#[derive(Clone, PartialEq, Eq)]
enum Entry {
    Directory(u32),
    File(u32, Vec<u8>),
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
}

/// Short, so that a failure can be read.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(mode) => write!(f, "directory {mode:o}"),
            Self::File(mode, content) => write!(f, "file {mode:o} of {} bytes", content.len()),
            Self::Symlink(target) => write!(f, "symlink to {}", target.escape_ascii()),
            Self::HardLink(target) => write!(f, "hard link to {}", target.escape_ascii()),
        }
    }
}

type Entries = BTreeMap<Vec<u8>, Entry>;

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn pack(entries: &[(Vec<u8>, Entry)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (name, entry) in entries {
        let mut header = Header::new_gnu();
        header.set_mtime(1_700_000_000);
        header.set_mode(0o777);
        header.set_size(0);
        match entry {
            Entry::Directory(mode) => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(*mode);
                tar.append_data(&mut header, path(name), std::io::empty()).expect("tar");
            }
            Entry::File(mode, content) => {
                header.set_entry_type(EntryType::Regular);
                header.set_mode(*mode);
                header.set_size(u64::try_from(content.len()).expect("small"));
                tar.append_data(&mut header, path(name), content.as_slice()).expect("tar");
            }
            Entry::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                tar.append_link(&mut header, path(name), path(target)).expect("tar");
            }
            Entry::HardLink(target) => {
                header.set_entry_type(EntryType::Link);
                tar.append_link(&mut header, path(name), path(target)).expect("tar");
            }
        }
    }
    tar.into_inner().expect("tar")
}

fn unpack(tar: &[u8]) -> Entries {
    let mut found = Entries::new();
    for entry in Archive::new(tar).entries().expect("tar") {
        let mut entry = entry.expect("tar entry");
        let name = entry.path_bytes().strip_suffix(b"/").map_or_else(|| entry.path_bytes().into_owned(), <[u8]>::to_vec);
        let mode = entry.header().mode().expect("mode") & 0o7777;
        let link = entry.link_name_bytes().unwrap_or_default().into_owned();
        let seen = match entry.header().entry_type() {
            EntryType::Directory => Entry::Directory(mode),
            EntryType::Symlink => Entry::Symlink(link),
            // A provider may keep a hard link or store its content twice.
            EntryType::Link => found.get(&link).cloned().expect("a hard link follows its file"),
            _ => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).expect("content");
                Entry::File(mode, content)
            }
        };
        found.insert(name, seen);
    }
    found
}

impl Sandbox<'_> {
    async fn tree(&self, exclude: &[&str]) -> Entries {
        let exclude: Vec<String> = exclude.iter().map(|one| (*one).to_owned()).collect();
        let read = self.provider().read_tree(&self.name, WORKSPACE, &exclude).await.expect("read_tree");
        let tar = read_all(read.tar, LARGE).await.expect("a whole tar");
        assert_eq!(read.skipped.await.expect("count"), 0);
        unpack(&tar)
    }

    async fn lay(&self, entries: &[(Vec<u8>, Entry)], mode: WriteMode) {
        self.provider().write_tree(&self.name, 1, WORKSPACE, from_bytes(pack(entries)), mode).await.expect("write_tree");
    }
}

/// Directories, files, symlinks and hard links, with modes, content and names of any bytes.
pub async fn a_tree_comes_back_as_it_was(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    sandbox.put("before", b"gone after a replace").await;
    let long = [b"long/".as_slice(), &[b'n'; 200]].concat();
    let entries = vec![
        (b"dir".to_vec(), Entry::Directory(0o750)),
        (b"dir/script".to_vec(), Entry::File(0o755, b"#!/bin/sh\n".to_vec())),
        (b"dir/secret".to_vec(), Entry::File(0o600, vec![0, 255, 10])),
        (b"empty".to_vec(), Entry::Directory(0o755)),
        (b"hard".to_vec(), Entry::HardLink(b"dir/script".to_vec())),
        (b"leaves".to_vec(), Entry::Symlink(b"/etc/passwd".to_vec())),
        (b"long".to_vec(), Entry::Directory(0o755)),
        (long, Entry::File(0o644, vec![7; 100_000])),
        (b"odd \n \xff\xfe".to_vec(), Entry::File(0o644, Vec::new())),
        (b"to".to_vec(), Entry::Symlink(b"dir/../dir/script".to_vec())),
    ];
    sandbox.lay(&entries, WriteMode::Replace).await;
    let mut wanted: Entries = entries.iter().cloned().collect();
    wanted.insert(b"hard".to_vec(), Entry::File(0o755, b"#!/bin/sh\n".to_vec()));
    assert_eq!(sandbox.tree(&[]).await, wanted);
    let more = [(b"dir/secret".to_vec(), Entry::File(0o640, b"new".to_vec())), (b"more".to_vec(), Entry::File(0o644, Vec::new()))];
    sandbox.lay(&more, WriteMode::Merge).await;
    wanted.extend(more);
    assert_eq!(sandbox.tree(&[]).await, wanted, "a merge keeps what it does not name");
    wanted.retain(|name, _| !name.starts_with(b"dir") && !name.starts_with(b"long/") && name != b"hard");
    assert_eq!(sandbox.tree(&["dir", "/hard", "n".repeat(200).as_str()]).await, wanted, "excluded paths");
    sandbox.lay(&[], WriteMode::Replace).await;
    assert!(sandbox.tree(&[]).await.is_empty());
    assert!(sandbox.put("still", b"usable").await);
    sandbox.end().await;
}

/// A directory of the workspace goes out and in alone, by the paths that files have.
pub async fn a_directory_goes_out_and_in_alone(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    sandbox.put("beside", b"stays").await;
    let file = |content: &[u8]| Entry::File(0o644, content.to_vec());
    let tree = [(b"f".to_vec(), Entry::File(0o640, b"1".to_vec())), (b"hard".to_vec(), Entry::HardLink(b"f".to_vec()))];
    provider.write_tree(name, 1, "new/deep", from_bytes(pack(&tree)), WriteMode::Replace).await.expect("a directory that was missing");
    assert_eq!(sandbox.get("new/deep/hard").await, b"1");
    sandbox.lay(&[(b"link".to_vec(), Entry::Symlink(b"new".to_vec()))], WriteMode::Merge).await;
    provider.write_tree(name, 1, "link/deep", from_bytes(pack(&[(b"g".to_vec(), file(b"2"))])), WriteMode::Merge).await.expect("merged");
    let whole = async |path: &str| unpack(&read_all(provider.read_tree(name, path, &[]).await.expect(path).tar, LARGE).await.expect(path));
    let merged = whole("new/deep").await;
    assert_eq!(merged.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"f".as_slice(), b"g", b"hard"]);
    assert_eq!((&merged[b"g".as_slice()], &merged[b"hard".as_slice()]), (&file(b"2"), &Entry::File(0o640, b"1".to_vec())));
    provider
        .write_tree(name, 1, "link/deep/", from_bytes(pack(&[(b"h".to_vec(), file(b"3"))])), WriteMode::Replace)
        .await
        .expect("replaced");
    assert_eq!(whole("link/deep").await.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"h".as_slice()]);
    assert_eq!(sandbox.get("beside").await, b"stays");
    let kind = |error: Option<crate::provider::ProviderError>| error.map(|e| e.kind);
    assert_eq!(kind(provider.read_tree(name, "missing", &[]).await.err()), Some(Kind::FileNotFound));
    assert_eq!(kind(provider.read_tree(name, "beside", &[]).await.err()), Some(Kind::NotADirectory));
    assert_eq!(kind(provider.read_tree(name, "../..", &[]).await.err()), Some(Kind::Path));
    for (path, refused) in [("beside", Kind::FileExists), ("../out", Kind::Path)] {
        let written = provider.write_tree(name, 1, path, from_bytes(pack(&[(b"x".to_vec(), file(b"4"))])), WriteMode::Replace).await;
        assert_eq!(kind(written.err()), Some(refused), "{path}");
    }
    sandbox.end().await;
}

/// A tar that is cut off, leads out or writes through a link is refused before it changes anything.
pub async fn a_bad_tar_changes_nothing(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    sandbox.put("kept", b"content").await;
    let before = sandbox.tree(&[]).await;
    let file = |content: &[u8]| Entry::File(0o644, content.to_vec());
    let good = pack(&[(b"a".to_vec(), file(&[1; 5000])), (b"b".to_vec(), file(b"2"))]);
    let through = pack(&[(b"link".to_vec(), Entry::Symlink(b"/tmp".to_vec())), (b"link/file".to_vec(), file(b"out"))]);
    let hard = pack(&[(b"a".to_vec(), file(b"1")), (b"hard".to_vec(), Entry::HardLink(b"../../etc/passwd".to_vec()))]);
    // The tar crate refuses to write such a name, so it is patched in, with the checksum made right again.
    let mut climbing = pack(&[(b"first".to_vec(), file(b"1")), (b"xx/outside".to_vec(), file(b"out"))]);
    climbing[1024..1026].copy_from_slice(b"..");
    let mut header = Header::from_byte_slice(&climbing[1024..1536]).clone();
    header.set_cksum();
    climbing[1024..1536].copy_from_slice(header.as_bytes());
    for (what, tar) in [("cut off", good[..3000].to_vec()), ("through a link", through), ("a hard link out", hard), ("climbing", climbing)]
    {
        for mode in [WriteMode::Replace, WriteMode::Merge] {
            let refused = subject.provider.write_tree(&sandbox.name, 1, WORKSPACE, from_bytes(tar.clone()), mode).await;
            let kind = refused.expect_err(what).kind;
            assert!(matches!(kind, Kind::Path | Kind::Invalid), "{what}: {kind:?}");
            assert_eq!(sandbox.tree(&[]).await, before, "{what}, {mode:?}");
        }
    }
    for mode in [WriteMode::Replace, WriteMode::Merge] {
        let (writer, broken) = channel();
        drop(writer);
        let refused = subject.provider.write_tree(&sandbox.name, 1, WORKSPACE, broken, mode).await;
        assert_eq!(refused.err().map(|e| e.kind), Some(Kind::Refused), "a broken body, {mode:?}");
        // Given up while the tar is still on its way.
        let (_writer, silent) = channel();
        let given_up = tokio::time::timeout(
            std::time::Duration::from_millis(50),
            subject.provider.write_tree(&sandbox.name, 1, WORKSPACE, silent, mode),
        );
        assert!(given_up.await.is_err(), "a tree without a tar");
        assert_eq!(sandbox.tree(&[]).await, before, "{mode:?}");
    }
    sandbox.end().await;
}

/// A link that leaves is kept, and never followed out.
pub async fn links_are_data(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    let link = |from: &[u8], to: &[u8]| (from.to_vec(), Entry::Symlink(to.to_vec()));
    let links = [link(b"etc", b"/etc"), link(b"in", b"file"), link(b"loop", b"loop"), link(b"up", b"../..")];
    sandbox.put("file", b"inside").await;
    sandbox.lay(&links, WriteMode::Merge).await;
    assert_eq!(sandbox.get("in").await, b"inside");
    for out in ["etc/passwd", "up/x", "loop"] {
        assert_eq!(provider.read_file(name, out).await.err().map(|e| e.kind), Some(Kind::Path), "{out}");
    }
    assert_eq!(provider.stat_file(name, "etc").await.expect("stat").link_target.as_deref(), Some(b"/etc".as_slice()));
    let put = provider.write_file(name, 1, "etc", from_bytes("x"), crate::provider::PutOptions { mode: None, parents: false }).await;
    assert_eq!(put.err().map(|e| e.kind), Some(Kind::Path), "a put through a link that leaves");
    assert!(!sandbox.put("in", b"through").await, "a put follows a link inside");
    assert_eq!(sandbox.get("file").await, b"through");
    provider.remove_file(name, 1, "etc", true).await.expect("removing a link removes the link");
    sandbox.end().await;
}

/// Equal while nothing happens, different after any change, blind to what is excluded.
pub async fn a_stat_walk_sees_every_change(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    sandbox.put("file", b"1").await;
    let walk = async |exclude: &[String]| subject.provider.stat_walk(&sandbox.name, exclude).await.expect("stat_walk");
    let first = walk(&[]).await;
    assert_eq!(first, walk(&[]).await);
    sandbox.put("file", b"2").await;
    let second = walk(&[]).await;
    assert_ne!(first, second, "a change of the same size");
    sandbox.put("other", b"").await;
    assert_ne!(second, walk(&[]).await);
    sandbox.end().await;
}
