//! Keeps archives in an object store, compressed, and gives them back only as they were.

use std::fmt;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio_util::io::{StreamReader, SyncIoBridge};
use tokio_util::sync::CancellationToken;

use super::pipe::{self, Reader, pump};
use super::squeeze::{Squeezed, Sum, open_stored, open_upload, squeeze};
use super::{ArchiveCode, ArchiveError, ByteStream, Limits, Result, Tree};

/// A part of a multipart upload; with S3's 10 000 parts at most this allows 97 GiB compressed.
const PART: usize = 10 << 20;
/// Parts on their way at once; with `PART` this bounds the memory of an upload.
const PARTS_AT_ONCE: usize = 3;

/// The schemes of stores that are not a directory.
const CLOUDS: [&str; 3] = ["s3", "gs", "az"];

/// What was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// SHA-256 of the stored bytes, in hexadecimal.
    pub archive_sha256: String,
    /// Stored bytes, compressed.
    pub size_bytes: u64,
    /// The tree that the archive unpacks to.
    pub tree: Tree,
}

/// A store of archives. Keys are relative paths such as `sandbox/archive`, without empty, `.` or `..` segments (`Invalid`);
/// whoever makes a key sees to it that it is new.
#[derive(Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
}

impl fmt::Debug for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blobs({})", self.store)
    }
}

/// How the bytes that come in may be written.
#[derive(Clone, Copy)]
enum Form {
    Tar,
    TarOrZstd,
}

impl Blobs {
    /// Opens the store at a URL: `file:<directory>`, made if it is missing and readable by its owner alone, or `s3://`, `gs://` or
    /// `az://` with a bucket and a prefix in it, whose credentials and endpoint the environment names as that service's own tools have
    /// them (`AWS_…`, `GOOGLE_…`, `AZURE_…`). `Invalid` for any other scheme. Blocks for a moment; meant for the start of the server.
    pub fn open(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("file", rest)) => Self::open_directory(rest.strip_prefix("//").unwrap_or(rest)),
            Some((scheme, _)) if CLOUDS.contains(&scheme) => Self::open_bucket(url),
            _ => Err(ArchiveError::invalid("the archive store's URL has no known scheme; known are: file, s3, gs, az")),
        }
    }

    fn open_directory(directory: &str) -> Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let files = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true).with_automatic_cleanup(true);
        Ok(Self { store: Arc::new(files) })
    }

    fn open_bucket(url: &str) -> Result<Self> {
        // Whichever is installed first stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = reqwest::Url::parse(url).map_err(|_| ArchiveError::invalid("the archive store's URL cannot be read"))?;
        // Names without a service's prefix, such as TOKEN, are somebody else's.
        let settings = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(key, _)| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|service| key.starts_with(service)));
        let (store, prefix) = object_store::parse_url_opts(&parsed, settings)?;
        let store: Arc<dyn ObjectStore> = if prefix.as_ref().is_empty() { store.into() } else { Arc::new(PrefixStore::new(store, prefix)) };
        Ok(Self { store })
    }

    /// Stores a tar under a key, checked and compressed as it streams, then reads it back.
    ///
    /// Nothing is visible under the key unless the whole tar was good (`Unsafe`, `Invalid`, `Limit` otherwise, or the error
    /// that the stream ended with) and what was stored reads back as it was sent (`HashMismatch`). `Full` when the store is.
    /// Memory does not grow with the archive. When the call is dropped, the upload is given up; in its last moments that can
    /// leave a whole archive behind, so a key is written down before it is used.
    pub async fn put_tree(&self, key: &str, tar: ByteStream, limits: &Limits) -> Result<Packed> {
        self.put(key, tar, limits, Form::Tar).await
    }

    /// As `put_tree`, for what somebody uploads: a tar, or a tar compressed with zstd, told apart by its first bytes. It is
    /// always compressed anew, so that every stored archive has one form. `Limit` also beyond `limits.ratio`, judged after
    /// the first MiB.
    pub async fn put_upload(&self, key: &str, body: ByteStream, limits: &Limits) -> Result<Packed> {
        self.put(key, body, limits, Form::TarOrZstd).await
    }

    /// Stores a few bytes as they are, then reads them back; their SHA-256 in hexadecimal and their number.
    pub async fn put_bytes(&self, key: &str, bytes: Vec<u8>) -> Result<(String, u64)> {
        let mut sum = Sum::new(io::sink());
        io::Write::write_all(&mut sum, &bytes)?;
        let (size, sha256) = (sum.size, sum.hex());
        self.store.put(&location(key)?, bytes.into()).await?;
        self.verify(key, &sha256, size).await?;
        Ok((sha256, size))
    }

    /// Reads a stored archive to its end and compares. `Missing`, or `HashMismatch` when size or hash differ.
    pub async fn verify(&self, key: &str, sha256: &str, size: u64) -> Result<()> {
        let found = self.get(key, GetOptions::default()).await?;
        let differs = |what: &str| ArchiveError::new(ArchiveCode::HashMismatch, format!("the stored archive's {what} differs"));
        if found.meta.size != size {
            return Err(differs("size"));
        }
        let cancel = CancellationToken::new();
        let _given_up = cancel.clone().drop_guard();
        let mut reader = Reader::new(body(found)?, cancel);
        let sum = blocking(move || {
            let mut sum = Sum::new(io::sink());
            pump(&mut reader, &mut sum)?;
            Ok(sum)
        })
        .await?;
        if sum.size != size {
            return Err(differs("size"));
        }
        if sum.hex().eq_ignore_ascii_case(sha256) { Ok(()) } else { Err(differs("hash")) }
    }

    /// The tar of a stored archive, uncompressed. `Missing` at once; what goes wrong later ends the stream with an error from
    /// which `ArchiveError::from` gets its code: `HashMismatch` for damage, `Limit` beyond what `limits` can mean at all.
    pub async fn open_tar(&self, key: &str, limits: &Limits) -> Result<ByteStream> {
        let reader = Reader::new(self.open_raw(key, None).await?, CancellationToken::new());
        let limits = limits.clone();
        Ok(pipe::stream(move |out| pump(&mut *open_stored(reader, &limits)?, out).map(drop)))
    }

    /// The bytes of a stored archive as they are stored, or those of `range` in them, which must begin before their end.
    pub async fn open_raw(&self, key: &str, range: Option<Range<u64>>) -> Result<ByteStream> {
        if range.as_ref().is_some_and(Range::is_empty) {
            return Ok(Box::pin(tokio::io::empty()));
        }
        body(self.get(key, GetOptions::new().with_range(range.map(GetRange::Bounded))).await?)
    }

    /// Deletes an archive; `false` when the store says that there was none, which is success too. Some stores do not say.
    pub async fn delete(&self, key: &str) -> Result<bool> {
        match self.store.delete(&location(key)?).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The stored size in bytes; `None` when there is no such archive.
    pub async fn size(&self, key: &str) -> Result<Option<u64>> {
        match self.store.head(&location(key)?).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Key, stored bytes and time of last change (milliseconds since the Unix epoch) of every archive whose key has
    /// `prefix` as its first segments, in no particular order; all when it is empty. Uploads under way are not listed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(String, u64, i64)>> {
        let prefix = if prefix.is_empty() { None } else { Some(location(prefix.trim_end_matches('/'))?) };
        let found = self.store.list(prefix.as_ref());
        let found = found.map_ok(|meta| (meta.location.to_string(), meta.size, meta.last_modified.timestamp_millis()));
        Ok(found.try_collect().await?)
    }

    async fn put(&self, key: &str, body: ByteStream, limits: &Limits, form: Form) -> Result<Packed> {
        let path = location(key)?;
        let cancel = CancellationToken::new();
        let _given_up = cancel.clone().drop_guard();
        let mut source = Reader::new(body, cancel.clone());
        let limits = limits.clone();
        let (near, mut far) = tokio::io::duplex(pipe::AHEAD);
        let squeezing = blocking(move || {
            let out = SyncIoBridge::new(near);
            match form {
                Form::Tar => squeeze(&mut source, out, &limits),
                Form::TarOrZstd => squeeze(&mut *open_upload(source, &limits)?, out, &limits),
            }
        });
        let mut upload = BufWriter::with_capacity(self.store.clone(), path, PART).with_max_concurrency(PARTS_AT_ONCE);
        let sending = async {
            let sent = tokio::io::copy(&mut far, &mut upload).await;
            // Once the store fails nobody reads what is still to come.
            drop(far);
            sent.inspect_err(|_| cancel.cancel())
        };
        let (sent, squeezed) = tokio::join!(sending, squeezing);
        match sent.map_err(ArchiveError::from).and(squeezed) {
            Ok(squeezed) => {
                upload.shutdown().await?;
                self.read_back(key, squeezed).await
            }
            Err(error) => {
                // The first error is the one to tell; parts that stay behind are invisible and the store's to expire.
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    async fn read_back(&self, key: &str, squeezed: Squeezed) -> Result<Packed> {
        let Squeezed { sha256, size, tree } = squeezed;
        if let Err(error) = self.verify(key, &sha256, size).await {
            let _ = self.delete(key).await;
            return Err(error);
        }
        Ok(Packed { archive_sha256: sha256, size_bytes: size, tree })
    }

    async fn get(&self, key: &str, options: GetOptions) -> Result<GetResult> {
        Ok(self.store.get_opts(&location(key)?, options).await?)
    }
}

fn location(key: &str) -> Result<Path> {
    match Path::parse(key) {
        Ok(path) if !key.is_empty() && !key.starts_with('/') && !key.ends_with('/') => Ok(path),
        _ => Err(ArchiveError::invalid("this cannot be the key of an archive")),
    }
}

/// The bytes that a store found. A file is read in large pieces, which the store itself would not do.
fn body(found: GetResult) -> Result<ByteStream> {
    let Range { start, end } = found.range;
    match found.payload {
        GetResultPayload::File(mut file, _) => {
            file.seek(SeekFrom::Start(start))?;
            Ok(Box::pin(tokio::fs::File::from_std(file).take(end - start)))
        }
        GetResultPayload::Stream(stream) => Ok(Box::pin(StreamReader::new(stream.map_err(io::Error::from)))),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| ArchiveError::new(ArchiveCode::Storage, error.to_string()))?
}
