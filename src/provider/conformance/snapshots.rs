//! A provider's own snapshots: as declared, or refused by every verb.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

use super::{Sandbox, Subject, nobody, tag};
use crate::id;
use crate::provider::stream::{from_bytes, read_all};
use crate::provider::{Destroyed, Kind, PutOptions, Takeover};

/// Everything in this file.
pub async fn all(subject: Subject<'_>) {
    if subject.provider.traits().snapshots.is_none() {
        without_snapshots_every_verb_says_so(subject).await;
        return;
    }
    a_snapshot_is_the_files_as_they_were(subject).await;
    a_snapshot_is_there_until_it_is_deleted(subject).await;
    the_same_request_finds_the_same_snapshot(subject).await;
}

async fn put(sandbox: &Sandbox<'_>, content: &str) {
    let options = PutOptions { mode: None, parents: true };
    let body = from_bytes(content.as_bytes().to_vec());
    sandbox.provider().write_file(&sandbox.name, 1, "dir/f", body, options).await.expect("write");
}

async fn get(subject: Subject<'_>, name: &str) -> Vec<u8> {
    let read = subject.provider.read_file(name, "dir/f").await.expect("read");
    read_all(read.body, 1 << 20).await.expect("its bytes")
}

/// None can be asked for by mistake.
pub async fn without_snapshots_every_verb_says_so(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let provider = sandbox.provider();
    let binding = provider.binding().await.expect("binding");
    assert_eq!(provider.snapshot_ref(id::new()), None);
    assert_eq!(provider.snapshot(&sandbox.name, id::new()).await.expect_err("it must not").kind, Kind::Unsupported);
    assert_eq!(provider.restore(subject.spec, &tag(), "any").await.expect_err("it must not").kind, Kind::Unsupported);
    assert_eq!(provider.probe_snapshot(&binding, "any").await.expect_err("it must not").kind, Kind::Unsupported);
    assert_eq!(provider.list_snapshots(sandbox.tag.deployment).await.expect_err("it must not").kind, Kind::Unsupported);
    assert_eq!(provider.delete_snapshot(&binding, "any").await.expect_err("it must not").kind, Kind::Unsupported);
    provider.destroy(&sandbox.name).await.expect("destroy");
}

/// Later changes, and the end of the object itself, leave it alone; what is made of it is another object, once for a tag.
pub async fn a_snapshot_is_the_files_as_they_were(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let provider = sandbox.provider();
    put(&sandbox, "then").await;
    let named = id::new();
    let taken = provider.snapshot(&sandbox.name, named).await.expect("snapshot");
    if let Some(foretold) = provider.snapshot_ref(named) {
        assert_eq!(taken.snapshot_ref, foretold, "it is called as was foretold");
    }
    put(&sandbox, "later").await;
    provider.destroy(&sandbox.name).await.expect("destroy");
    let owner = tag();
    let made = provider.restore(subject.spec, &owner, &taken.snapshot_ref).await.expect("restore");
    assert_eq!(provider.restore(subject.spec, &owner, &taken.snapshot_ref).await.expect("again"), made, "twice is once");
    provider.realize(&made.provider_ref, subject.spec).await.expect("realize");
    assert_eq!(get(subject, &made.provider_ref).await, b"then");
    provider.destroy(&made.provider_ref).await.expect("destroy");
    let binding = provider.binding().await.expect("binding");
    provider.delete_snapshot(&binding, &taken.snapshot_ref).await.expect("delete");
}

/// And what is gone is told from what cannot be asked for.
pub async fn a_snapshot_is_there_until_it_is_deleted(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let provider = sandbox.provider();
    let taken = provider.snapshot(&sandbox.name, id::new()).await.expect("snapshot").snapshot_ref;
    let binding = provider.binding().await.expect("binding");
    assert!(provider.probe_snapshot(&binding, &taken).await.expect("probe"));
    provider.probe_snapshot("another account", &taken).await.expect_err("nothing is proven under another binding");
    assert_eq!(provider.delete_snapshot("another account", &taken).await.expect_err("it must not").kind, Kind::Refused);
    assert!(provider.probe_snapshot(&binding, &taken).await.expect("probe"), "it was not deleted");
    let listed = async |deployment| -> Vec<String> {
        let listed = provider.list_snapshots(deployment).await.expect("list_snapshots");
        listed.into_iter().map(|one| one.snapshot_ref).collect()
    };
    assert_eq!(listed(sandbox.tag.deployment).await, [taken.as_str()]);
    assert!(listed(nobody()).await.is_empty(), "another deployment's is not listed");
    assert_eq!(provider.delete_snapshot(&binding, &taken).await.expect("delete"), Destroyed::Ended);
    assert_eq!(provider.delete_snapshot(&binding, &taken).await.expect("again"), Destroyed::AlreadyGone);
    assert!(!provider.probe_snapshot(&binding, &taken).await.expect("probe"));
    assert!(listed(sandbox.tag.deployment).await.is_empty());
    assert_eq!(provider.restore(subject.spec, &tag(), &taken).await.expect_err("it must not").kind, Kind::NotFound);
    provider.destroy(&sandbox.name).await.expect("destroy");
}

/// Where that is declared.
pub async fn the_same_request_finds_the_same_snapshot(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let provider = sandbox.provider();
    if provider.traits().snapshots.is_some_and(|s| s.takeover == Takeover::SameRequest) {
        let named = id::new();
        let first = provider.snapshot(&sandbox.name, named).await.expect("snapshot").snapshot_ref;
        let again = provider.snapshot(&sandbox.name, named).await.expect("snapshot").snapshot_ref;
        assert_eq!(again, first);
        let binding = provider.binding().await.expect("binding");
        provider.delete_snapshot(&binding, &first).await.expect("delete");
    }
    provider.destroy(&sandbox.name).await.expect("destroy");
}
