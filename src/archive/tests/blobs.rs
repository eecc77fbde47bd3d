//! What is stored comes back as it was, or the call says why not; nothing half done is ever visible.

use std::pin::Pin;
use std::task::{Context, Poll};

use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::super::{ArchiveError, Blobs, ByteStream, Packed};
use super::round::{grow, trees};
use super::*;

struct Stored {
    root: TempDir,
    blobs: Blobs,
}

impl Stored {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&format!("file:{}/store", root.path().display())).unwrap();
        Self { root, blobs }
    }

    fn file(&self, key: &str) -> std::path::PathBuf {
        self.root.path().join("store").join(key)
    }

    /// Everything on the disk, uploads under way too.
    fn files(&self) -> usize {
        find(&self.root.path().join("store"), &["-type", "f"]).len()
    }

    async fn put(&self, tar: Vec<u8>) -> super::super::Result<Packed> {
        self.blobs.put_tree("s/a", bytes(tar), &Limits::default()).await
    }
}

fn bytes(bytes: impl Into<Vec<u8>>) -> ByteStream {
    Box::pin(std::io::Cursor::new(bytes.into()))
}

async fn all(mut stream: ByteStream) -> std::result::Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(bytes)
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

fn noisy(length: usize) -> Vec<u8> {
    Tar::default().entry(b'0', b"noise", b"", 0o644, &noise(length)).end()
}

#[tokio::test]
async fn an_archive_comes_back_as_it_was() {
    let stored = Stored::new();
    // Beyond one part, so that parts are joined.
    let tar = noisy(25 << 20);
    let packed = stored.put(tar.clone()).await.unwrap();
    assert_eq!(packed.tree, digest(&tar).unwrap());
    let raw = std::fs::read(stored.file("s/a")).unwrap();
    assert_eq!((raw.len() as u64, sha256(&raw)), (packed.size_bytes, packed.archive_sha256.clone()));
    assert_eq!(zstd::decode_all(&*raw).unwrap(), tar);
    assert_eq!(all(stored.blobs.open_tar("s/a", &Limits::default()).await.unwrap()).await.unwrap(), tar);
    assert_eq!(all(stored.blobs.open_raw("s/a", None).await.unwrap()).await.unwrap(), raw);
    assert_eq!(all(stored.blobs.open_raw("s/a", Some(5..10)).await.unwrap()).await.unwrap(), raw[5..10]);
    assert_eq!(all(stored.blobs.open_raw("s/a", Some(7..7)).await.unwrap()).await.unwrap(), b"");
    assert_eq!(stored.blobs.size("s/a").await.unwrap(), Some(packed.size_bytes));
    stored.blobs.verify("s/a", &packed.archive_sha256, packed.size_bytes).await.unwrap();
    let listed = stored.blobs.list("s").await.unwrap();
    assert_eq!((listed.len(), listed[0].0.as_str(), listed[0].1), (1, "s/a", packed.size_bytes));
    assert!(listed[0].2 > 1_600_000_000_000);
    assert_eq!(stored.blobs.list("").await.unwrap(), listed);
    assert_eq!(stored.blobs.list("other").await.unwrap(), []);
    assert!(stored.blobs.delete("s/a").await.unwrap());
    assert!(!stored.blobs.delete("s/a").await.unwrap());
    assert_eq!(stored.files(), 0);
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(bytes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_survives_the_store(makes in trees()) {
        let (from, to) = (Place::new(), Place::new());
        grow(&from.inner(), &makes);
        let stored = Stored::new();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let dir = from.dir();
        let target = to.dir();
        let (packed, unpacked) = runtime.block_on(async {
            let tar = super::super::pipe::stream(move |out| super::super::write_tar(&dir, &[], out).map(drop));
            let packed = stored.blobs.put_tree("k", tar, &Limits::default()).await.unwrap();
            let tar = stored.blobs.open_tar("k", &Limits::default()).await.unwrap();
            let mut tar = super::super::pipe::Reader::new(tar, tokio_util::sync::CancellationToken::new());
            let unpack = move || super::super::unpack(&target, &mut tar, &Limits::default(), Existing::Empty).unwrap();
            (packed, tokio::task::spawn_blocking(unpack).await.unwrap())
        });
        prop_assert_eq!(packed.tree, unpacked);
        prop_assert_eq!(picture(&to.inner()), picture(&from.inner()));
    }
}

#[tokio::test]
async fn a_bad_tar_is_refused_and_leaves_nothing() {
    let stored = Stored::new();
    let mut late = noisy(60 << 20);
    late.truncate(late.len() - 512);
    let bad = [
        (Tar::default().file("../x", "x").end(), ArchiveCode::Unsafe),
        (late, ArchiveCode::Invalid),
        (Vec::new(), ArchiveCode::Invalid),
        (zstd::encode_all(&*Tar::default().end(), 1).unwrap(), ArchiveCode::Invalid),
    ];
    for (tar, code) in bad {
        assert_eq!(stored.put(tar).await.unwrap_err().code, code);
        assert_eq!(stored.files(), 0);
        assert_eq!(stored.blobs.size("s/a").await.unwrap(), None);
    }
    let limits = Limits { unpacked_bytes: 1 << 20, ..Limits::default() };
    assert_eq!(stored.blobs.put_tree("k", bytes(noisy(2 << 20)), &limits).await.unwrap_err().code, ArchiveCode::Limit);
    assert_eq!(stored.files(), 0);
}

/// Gives some bytes, then fails or never goes on.
struct Broken {
    before: std::io::Cursor<Vec<u8>>,
    error: Option<ArchiveError>,
}

impl AsyncRead for Broken {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.before).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            return read;
        }
        self.error.clone().map_or(Poll::Pending, |error| Poll::Ready(Err(error.into())))
    }
}

#[tokio::test]
async fn a_stream_that_fails_keeps_its_error_and_leaves_nothing() {
    let stored = Stored::new();
    let error = ArchiveError::invalid("the workspace changed during capture");
    let tar = Broken { before: std::io::Cursor::new(noisy(60 << 20)), error: Some(error.clone()) };
    assert_eq!(stored.blobs.put_tree("k", Box::pin(tar), &Limits::default()).await.unwrap_err(), error);
    assert_eq!(stored.files(), 0);
}

#[tokio::test]
async fn an_upload_that_is_given_up_leaves_nothing() {
    let stored = Stored::new();
    // Much more than a part, since the compression holds some back.
    let tar = Broken { before: std::io::Cursor::new(noisy(60 << 20)), error: None };
    let limits = Limits::default();
    let mut put = Box::pin(stored.blobs.put_tree("k", Box::pin(tar), &limits));
    while stored.files() == 0 {
        assert!(futures_util::future::poll_immediate(&mut put).await.is_none());
        tokio::task::yield_now().await;
    }
    drop(put);
    // The store removes what it had begun on another thread.
    while stored.files() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stored.blobs.size("k").await.unwrap(), None);
}

#[tokio::test]
async fn damage_in_the_store_has_its_own_code() {
    let stored = Stored::new();
    let packed = stored.put(noisy(3 << 20)).await.unwrap();
    let raw = std::fs::read(stored.file("s/a")).unwrap();
    let verify = async || stored.blobs.verify("s/a", &packed.archive_sha256, packed.size_bytes).await.unwrap_err().code;
    let open = async || match stored.blobs.open_tar("s/a", &Limits::default()).await {
        Ok(stream) => all(stream).await.map(drop).unwrap_err().code,
        Err(error) => error.code,
    };
    for at in [0, raw.len() / 2, raw.len() - 1] {
        let mut flipped = raw.clone();
        flipped[at] ^= 0x10;
        std::fs::write(stored.file("s/a"), flipped).unwrap();
        assert_eq!(verify().await, ArchiveCode::HashMismatch, "{at}");
        assert_eq!(open().await, ArchiveCode::HashMismatch, "{at}");
    }
    std::fs::write(stored.file("s/a"), &raw[..raw.len() - 1]).unwrap();
    assert_eq!((verify().await, open().await), (ArchiveCode::HashMismatch, ArchiveCode::HashMismatch));
    std::fs::write(stored.file("s/a"), [&raw[..], b"x"].concat()).unwrap();
    assert_eq!((verify().await, open().await), (ArchiveCode::HashMismatch, ArchiveCode::HashMismatch));
    std::fs::remove_file(stored.file("s/a")).unwrap();
    assert_eq!((verify().await, open().await), (ArchiveCode::Missing, ArchiveCode::Missing));
}

#[tokio::test]
async fn uploads_are_told_apart_and_stored_in_one_form() {
    let stored = Stored::new();
    let tar = Tar::default().dir("d", 0o755).file("d/f", "x").end();
    let frames = [&zstd::encode_all(&tar[..512], 19).unwrap()[..], &zstd::encode_all(&tar[512..], 1).unwrap()].concat();
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &frames].concat();
    let plain = stored.blobs.put_upload("a", bytes(tar.clone()), &Limits::default()).await.unwrap();
    for body in [zstd::encode_all(&*tar, 3).unwrap(), frames, skippable] {
        assert_eq!(stored.blobs.put_upload("b", bytes(body), &Limits::default()).await.unwrap(), plain);
    }
    assert_eq!(all(stored.blobs.open_tar("b", &Limits::default()).await.unwrap()).await.unwrap(), tar);
}

#[tokio::test]
async fn a_bomb_is_refused_and_its_harmless_neighbour_is_not() {
    let stored = Stored::new();
    let zeros = |length: usize| Tar::default().entry(b'0', b"zeros", b"", 0o644, &vec![0; length]).end();
    let put = async |tar: &[u8], limits: Limits| {
        stored.blobs.put_upload("k", bytes(zstd::encode_all(tar, 1).unwrap()), &limits).await.map_err(|error| error.code)
    };
    assert_eq!(put(&zeros(40 << 20), Limits::default()).await, Err(ArchiveCode::Limit));
    assert_eq!(stored.files(), 0);
    assert!(put(&zeros(1 << 19), Limits::default()).await.is_ok());
    assert!(put(&zeros(40 << 20), Limits { ratio: 1 << 20, ..Limits::default() }).await.is_ok());
    // What a capture stored must come back, however well it compressed.
    let own = stored.put(zeros(40 << 20)).await.unwrap();
    assert!(own.size_bytes < 200_000);
    assert_eq!(all(stored.blobs.open_tar("s/a", &Limits::default()).await.unwrap()).await.unwrap(), zeros(40 << 20));
}

#[tokio::test]
async fn damaged_uploads_are_refused() {
    let stored = Stored::new();
    let good = zstd::encode_all(&*noisy(1 << 20), 1).unwrap();
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    let mut window = good[..4].to_vec();
    // A frame header that asks for a window of 2 GiB.
    window.extend_from_slice(&[0x00, 21 << 3]);
    window.extend_from_slice(&good[6..]);
    for body in [good[..good.len() / 2].to_vec(), [&good[..], b"junk"].concat(), flipped, window, good[..4].to_vec()] {
        let error = stored.blobs.put_upload("k", bytes(body), &Limits::default()).await.unwrap_err();
        assert_eq!(error.code, ArchiveCode::Invalid, "{error}");
    }
    assert_eq!(stored.files(), 0);
}

#[tokio::test]
async fn a_body_in_single_bytes_is_told_apart_too() {
    let stored = Stored::new();
    let body = zstd::encode_all(&*Tar::default().file("f", "x").end(), 1).unwrap();
    let (mut near, far) = tokio::io::duplex(1);
    let feed = async move {
        near.write_all(&body).await.unwrap();
        drop(near);
    };
    let limits = Limits::default();
    let (packed, ()) = tokio::join!(stored.blobs.put_upload("k", Box::pin(far), &limits), feed);
    assert_eq!(packed.unwrap().tree.files, 1);
}

#[tokio::test]
async fn keys_that_lead_elsewhere_are_refused() {
    let stored = Stored::new();
    for key in ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", "a\0b"] {
        assert_eq!(
            stored.blobs.put_tree(key, bytes(Tar::default().end()), &Limits::default()).await.unwrap_err().code,
            ArchiveCode::Invalid,
            "{key}"
        );
        assert_eq!(stored.blobs.size(key).await.unwrap_err().code, ArchiveCode::Invalid, "{key}");
    }
    assert_eq!(Blobs::open("ftp:x").unwrap_err().code, ArchiveCode::Invalid);
    assert_eq!(Blobs::open("x").unwrap_err().code, ArchiveCode::Invalid);
}

#[test]
fn a_full_store_says_so() {
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let told = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic { store: "x", source };
    assert_eq!(ArchiveError::from(full()).code, ArchiveCode::Full);
    assert_eq!(ArchiveError::from(told(Box::new(full()))).code, ArchiveCode::Full);
    assert_eq!(ArchiveError::from(std::io::Error::from(told(Box::new(full())))).code, ArchiveCode::Full);
    assert_eq!(ArchiveError::from(told(Box::new(std::io::Error::other("x")))).code, ArchiveCode::Storage);
    assert_eq!(ArchiveError::from(rustix::io::Errno::DQUOT).code, ArchiveCode::Full);
}
