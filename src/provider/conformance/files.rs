//! Single files: content, modes, listings, and paths that lead out.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

use super::{Sandbox, Subject};
use tokio::io::AsyncWriteExt;

use crate::provider::stream::{channel, from_bytes};
use crate::provider::{ByteStream, FileKind, Kind, PutOptions, WORKSPACE, WriteMode};

/// Everything in this file.
pub async fn all(subject: Subject<'_>) {
    content_and_modes_stay(subject).await;
    wrong_paths_are_the_callers(subject).await;
    nothing_leads_out(subject).await;
    listings_are_pages(subject).await;
    moving_and_removing(subject).await;
    an_older_grant_changes_nothing(subject).await;
}

const PLAIN: PutOptions = PutOptions { mode: None, parents: false };

async fn fails<T>(what: &str, call: impl Future<Output = crate::provider::Result<T>>, kind: Kind) {
    assert_eq!(call.await.err().map(|e| e.kind), Some(kind), "{what}");
}

async fn put_kind(sandbox: &Sandbox<'_>, path: &str) -> Option<Kind> {
    sandbox.provider().write_file(&sandbox.name, 1, path, from_bytes("x"), PLAIN).await.err().map(|e| e.kind)
}

/// A put replaces content and keeps the mode; one whose body breaks off changes nothing.
pub async fn content_and_modes_stay(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    let large: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
    assert!(sandbox.put("file", b"").await, "a first put is new");
    assert!(!sandbox.put("file", &large).await, "a second is not");
    assert!(sandbox.get("file").await == large && sandbox.get(&format!("{}/file", sandbox.workspace)).await == large);
    assert_eq!(provider.stat_file(name, "file").await.expect("stat").mode, 0o644);
    let script = PutOptions { mode: Some(0o750), parents: true };
    provider.write_file(name, 1, "a/b/script", from_bytes("1"), script).await.expect("put with parents");
    sandbox.put("a/b/script", b"22").await;
    let entry = provider.stat_file(name, "a/b/script").await.expect("stat");
    assert_eq!((entry.kind, entry.size, entry.mode, entry.path.as_slice()), (FileKind::File, 2, 0o750, b"a/b/script".as_slice()));
    let (writer, broken) = channel();
    drop(writer);
    assert!(provider.write_file(name, 1, "file", broken, PLAIN).await.is_err(), "a broken body");
    assert!(sandbox.get("file").await == large, "a broken put changed the file");
    let names: Vec<_> = provider.list_files(name, "", true, None, 100).await.expect("list").into_iter().map(|e| e.path).collect();
    assert_eq!(names, [b"a".as_slice(), b"a/b", b"a/b/script", b"file"], "something was left behind");
    sandbox.end().await;
}

/// Mistakes in a path are told as such, never as a missing sandbox.
pub async fn wrong_paths_are_the_callers(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    provider.make_directory(name, 1, "dir/inner").await.expect("make_directory");
    provider.make_directory(name, 1, "dir").await.expect("an existing directory is fine");
    sandbox.put("file", b"").await;
    fails("read", provider.read_file(name, "missing"), Kind::FileNotFound).await;
    fails("stat", provider.stat_file(name, "missing/deeper"), Kind::FileNotFound).await;
    fails("list", provider.list_files(name, "missing", false, None, 1), Kind::FileNotFound).await;
    fails("remove", provider.remove_file(name, 1, "missing", true), Kind::FileNotFound).await;
    fails("read a directory", provider.read_file(name, "dir"), Kind::IsADirectory).await;
    fails("list a file", provider.list_files(name, "file", false, None, 1), Kind::NotADirectory).await;
    fails("read below a file", provider.read_file(name, "file/deeper"), Kind::NotADirectory).await;
    fails("make over a file", provider.make_directory(name, 1, "file"), Kind::FileExists).await;
    fails("remove a full directory", provider.remove_file(name, 1, "dir", false), Kind::DirectoryNotEmpty).await;
    assert_eq!(put_kind(&sandbox, "dir").await, Some(Kind::IsADirectory));
    assert_eq!(put_kind(&sandbox, "missing/file").await, Some(Kind::FileNotFound));
    assert_eq!(put_kind(&sandbox, "file/file").await, Some(Kind::NotADirectory));
    sandbox.end().await;
}

/// No path leaves the sandbox, and the workspace itself stays.
pub async fn nothing_leads_out(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    sandbox.put("file", b"").await;
    let above = format!("{}/../outside", sandbox.workspace);
    for path in ["..", "../outside", "dir/../../outside", "/", "/etc/passwd", "nul\0byte", above.as_str()] {
        if path.starts_with("dir") {
            provider.make_directory(name, 1, "dir").await.expect("make_directory");
        }
        fails(path, provider.read_file(name, path), Kind::Path).await;
        fails(path, provider.stat_file(name, path), Kind::Path).await;
        fails(path, provider.list_files(name, path, true, None, 1), Kind::Path).await;
        fails(path, provider.make_directory(name, 1, path), Kind::Path).await;
        fails(path, provider.remove_file(name, 1, path, true), Kind::Path).await;
        fails(path, provider.move_file(name, 1, "file", path, true), Kind::Path).await;
        assert_eq!(put_kind(&sandbox, path).await, Some(Kind::Path), "{path}");
    }
    fails("remove the root", provider.remove_file(name, 1, "", true), Kind::Path).await;
    fails("move the root", provider.move_file(name, 1, ".", "elsewhere", false), Kind::Path).await;
    sandbox.end().await;
}

/// Entries come in byte order of whole paths, and each page goes on where the one before ended.
pub async fn listings_are_pages(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    for path in ["b/x", "b/y/z", "b-c", "a", "ä", "b.d/e"] {
        let options = PutOptions { mode: None, parents: true };
        provider.write_file(name, 1, path, from_bytes("x"), options).await.expect("put");
    }
    let wanted = ["a", "b", "b-c", "b.d", "b.d/e", "b/x", "b/y", "b/y/z", "ä"];
    for size in [1, 2, 4, 100] {
        let mut seen: Vec<String> = Vec::new();
        for _ in 0..=wanted.len() {
            let after = seen.last().map(|last| last.as_bytes().to_vec());
            let page = provider.list_files(name, "", true, after.as_deref(), size).await.expect("list");
            assert!(page.len() <= size);
            seen.extend(page.into_iter().map(|entry| String::from_utf8(entry.path).expect("UTF-8")));
        }
        assert_eq!(seen, wanted, "in pages of {size}");
    }
    let flat: Vec<_> =
        provider.list_files(name, "b", false, None, 100).await.expect("list").into_iter().map(|e| (e.path, e.kind)).collect();
    assert_eq!(flat, [(b"x".to_vec(), FileKind::File), (b"y".to_vec(), FileKind::Directory)]);
    sandbox.end().await;
}

/// A move replaces nothing unless told to; a removal takes whole trees only when told to.
pub async fn moving_and_removing(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    sandbox.put("one", b"1").await;
    sandbox.put("two", b"2").await;
    provider.make_directory(name, 1, "dir/inner").await.expect("make_directory");
    fails("move over", provider.move_file(name, 1, "one", "two", false), Kind::FileExists).await;
    fails("move what is missing", provider.move_file(name, 1, "three", "four", false), Kind::FileNotFound).await;
    fails("move into itself", provider.move_file(name, 1, "dir", "dir/inner/dir", false), Kind::Path).await;
    provider.move_file(name, 1, "one", "two", true).await.expect("move over");
    assert_eq!(sandbox.get("two").await, b"1");
    provider.move_file(name, 1, "two", "dir/inner/three", false).await.expect("move");
    provider.move_file(name, 1, "dir", "moved", false).await.expect("move a directory");
    assert_eq!(sandbox.get("moved/inner/three").await, b"1");
    provider.remove_file(name, 1, "moved/inner/three", false).await.expect("remove a file");
    provider.remove_file(name, 1, "moved/inner", false).await.expect("remove an empty directory");
    provider.make_directory(name, 1, "moved/again").await.expect("make_directory");
    provider.remove_file(name, 1, "moved", true).await.expect("remove a tree");
    assert!(provider.list_files(name, "", true, None, 10).await.expect("list").is_empty());
    sandbox.end().await;
}

/// From a fence on nothing of a lower grant changes a file, however late its bytes arrive; the fence's own grant may.
pub async fn an_older_grant_changes_nothing(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let (provider, name) = (subject.provider, sandbox.name.as_str());
    sandbox.put("kept", b"1").await;
    provider.make_directory(name, 1, "dir").await.expect("make_directory");
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    tar.append_data(&mut header, "kept", b"late".as_slice()).expect("tar");
    let tar = tar.into_inner().expect("tar");
    let state = async || provider.stat_walk(name, &[]).await.expect("stat_walk");
    let before = state().await;
    // Under way when the fence is raised: their last bytes come afterwards.
    let (mut put, mut merge, mut replace) = (late(&tar), late(&tar), late(&tar));
    let fencing = async {
        provider.fence(name, 2).await.expect("fence");
        for rest in [&mut put.1, &mut merge.1, &mut replace.1] {
            let (mut writer, bytes) = rest.take().expect("once");
            // A provider that looks before it reads is gone.
            let _ = writer.write_all(&bytes).await;
        }
    };
    let (put, merge, replace, ()) = tokio::join!(
        provider.write_file(name, 1, "kept", put.0, PLAIN),
        provider.write_tree(name, 1, WORKSPACE, merge.0, WriteMode::Merge),
        provider.write_tree(name, 1, WORKSPACE, replace.0, WriteMode::Replace),
        fencing
    );
    for (what, told) in [("put", put.map(|_| ())), ("merge", merge), ("replace", replace)] {
        assert_eq!(told.err().map(|e| e.kind), Some(Kind::Fenced), "{what}");
    }
    fails("put anew", provider.write_file(name, 1, "new", from_bytes("x"), PLAIN), Kind::Fenced).await;
    fails("remove", provider.remove_file(name, 1, "kept", false), Kind::Fenced).await;
    fails("make", provider.make_directory(name, 1, "other"), Kind::Fenced).await;
    fails("move", provider.move_file(name, 1, "kept", "moved", false), Kind::Fenced).await;
    assert_eq!(state().await, before, "something was changed");
    assert_eq!(sandbox.get("kept").await, b"1");
    provider.write_file(name, 2, "kept", from_bytes("2"), PLAIN).await.expect("the next grant's put");
    provider.write_tree(name, 2, WORKSPACE, from_bytes(tar), WriteMode::Merge).await.expect("the next grant's tree");
    provider.make_directory(name, 3, "other").await.expect("a later grant's directory");
    provider.move_file(name, 2, "kept", "moved", false).await.expect("the next grant's move");
    provider.remove_file(name, 2, "dir", false).await.expect("the next grant's removal");
    assert_eq!(sandbox.get("moved").await, b"late");
    sandbox.end().await;
}

/// A body of which all but the first bytes come when its writer is taken.
fn late(content: &[u8]) -> (ByteStream, Option<(tokio::io::DuplexStream, Vec<u8>)>) {
    let (near, far) = tokio::io::duplex(content.len().max(1));
    (Box::pin(far), Some((near, content.to_vec())))
}
