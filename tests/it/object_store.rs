//! Archives in an S3-compatible store: the server that tests/run.sh starts on loopback, named by `BERTH_TEST_S3`.

use std::io::Cursor;

use berth::archive::{ArchiveCode, ArchiveError, Blobs, ByteStream, Limits};
use tokio::io::AsyncReadExt;

/// A prefix of its own; `None`, loudly, when there is no store to test against.
fn store(prefix: &str) -> Option<Blobs> {
    let Ok(bucket) = std::env::var("BERTH_TEST_S3") else {
        eprintln!("*** SKIPPED: BERTH_TEST_S3 names no store ***");
        return None;
    };
    Some(Blobs::open(&format!("{bucket}/{prefix}-{}", uuid::Uuid::now_v7())).unwrap())
}

/// Content that no compression shortens.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn tar_of(content: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    tar.append_data(&mut header, "f", content).unwrap();
    tar.into_inner().unwrap()
}

fn stream(bytes: Vec<u8>) -> ByteStream {
    Box::pin(Cursor::new(bytes))
}

async fn all(mut stream: ByteStream) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_comes_back_whole_or_in_ranges() {
    let Some(blobs) = store("whole") else { return };
    // One part, and several.
    for length in [1000, 25 << 20] {
        let tar = tar_of(&noise(length));
        let key = format!("o/s/{length}.tar.zst");
        let packed = blobs.put_tree(&key, stream(tar), &Limits::default()).await.unwrap();
        assert_eq!((packed.tree.files, packed.tree.bytes), (1, length as u64));
        assert_eq!(blobs.size(&key).await.unwrap(), Some(packed.size_bytes));
        blobs.verify(&key, &packed.archive_sha256, packed.size_bytes).await.unwrap();
        let back = all(blobs.open_tar(&key, &Limits::default()).await.unwrap()).await.unwrap();
        assert!(back.windows(64).any(|window| window == &noise(64)[..]));
        let raw = all(blobs.open_raw(&key, None).await.unwrap()).await.unwrap();
        assert_eq!(all(blobs.open_raw(&key, Some(10..100)).await.unwrap()).await.unwrap(), raw[10..100]);
    }
    let mut listed: Vec<String> = blobs.list("o").await.unwrap().into_iter().map(|(key, ..)| key).collect();
    listed.sort();
    assert_eq!(listed, ["o/s/1000.tar.zst", "o/s/26214400.tar.zst"], "keys are told without the prefix");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_or_is_gone_is_never_taken_for_what_was_stored() {
    let Some(blobs) = store("differs") else { return };
    let limits = Limits::default();
    let first = blobs.put_tree("o/s/a", stream(tar_of(b"one")), &limits).await.unwrap();
    blobs.put_tree("o/s/a", stream(tar_of(b"two")), &limits).await.unwrap();
    let swapped = blobs.verify("o/s/a", &first.archive_sha256, first.size_bytes).await.unwrap_err();
    assert_eq!(swapped.code, ArchiveCode::HashMismatch);
    blobs.delete("o/s/a").await.unwrap();
    blobs.delete("o/s/a").await.expect("gone already is success");
    assert_eq!(blobs.verify("o/s/a", &first.archive_sha256, first.size_bytes).await.unwrap_err().code, ArchiveCode::Missing);
    assert_eq!(blobs.size("o/s/a").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tar_that_breaks_off_leaves_nothing_visible() {
    let Some(blobs) = store("broken") else { return };
    for length in [1000, 25 << 20] {
        let mut tar = tar_of(&noise(length));
        tar.truncate(tar.len() - 2000);
        let refused = blobs.put_tree("o/s/a", stream(tar), &Limits::default()).await.unwrap_err();
        assert_eq!(refused.code, ArchiveCode::Invalid);
    }
    assert!(blobs.list("").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_not_there_is_an_error_of_the_store() {
    let Some(_) = store("none") else { return };
    let blobs = Blobs::open("s3://there-is-no-such-bucket/p").unwrap();
    let refused = blobs.put_tree("o/s/a", stream(tar_of(b"one")), &Limits::default()).await.unwrap_err();
    assert!(matches!(refused.code, ArchiveCode::Missing | ArchiveCode::Storage), "{refused}");
}

#[test]
fn a_scheme_nobody_knows_is_refused() {
    for url in ["ftp://host/path", "http://host", "bucket", ""] {
        assert_eq!(Blobs::open(url).unwrap_err().code, ArchiveCode::Invalid, "{url}");
    }
}
