//! A workspace as one portable file: a tar, judged by what it holds and never by how it was written.

pub mod blob;
mod cursor;
pub mod descriptor;
mod entries;
mod exclude;
mod header;
pub mod incoming;
mod ledger;
pub mod measure;
mod pax;
pub mod pipe;
pub mod receipt;
pub mod relay;
mod scan;
mod squeeze;
pub mod tree;
pub mod unpack;
pub mod walk;

use std::error::Error as _;
use std::fmt;
use std::io;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

pub use blob::{Blobs, Packed};
pub use exclude::Exclude;
pub use header::Owner;
pub use tree::{ALGORITHM, digest};
pub use unpack::{Existing, unpack};
pub use walk::{Walked, stat_digest, write_tar};

/// A stream of bytes that is read with back-pressure; an error in it means the bytes so far prove nothing.
pub type ByteStream = Pin<Box<dyn AsyncRead + Send>>;

/// What an archive may ask of whoever unpacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries at most, directories that are only implied by a path included.
    pub entries: u64,
    /// Bytes of content at most, all files together.
    pub unpacked_bytes: u64,
    /// Bytes of one path at most, as it is after normalization.
    pub path_bytes: usize,
    /// How many times larger than its compressed form an uploaded archive may be.
    pub ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 2_000_000, unpacked_bytes: 50 << 30, path_bytes: 4096, ratio: 200 }
    }
}

/// What a tree is, whoever packed it and in whatever order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// How `digest` was made; two trees compare only under the same one.
    pub algorithm: String,
    /// SHA-256 over the canonical entries, in hexadecimal.
    pub digest: String,
    /// Files, links and directories; the root itself is not one.
    pub entries: u64,
    /// Regular files; every name of a hard-linked file counts.
    pub files: u64,
    /// Bytes of content; a hard-linked file counts once.
    pub bytes: u64,
}

/// Which kind of trouble an archive is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArchiveCode {
    /// It asks for something that no workspace holds or that would leave the workspace.
    Unsafe,
    /// It is not a complete, well-formed archive.
    Invalid,
    /// It is larger than allowed.
    Limit,
    /// The stored bytes are not the ones that were stored.
    HashMismatch,
    /// There is no such object.
    Missing,
    /// No space left where it was to be written.
    Full,
    /// A disk or the store failed.
    Storage,
}

impl ArchiveCode {
    /// The code as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsafe => "unsafe",
            Self::Invalid => "invalid",
            Self::Limit => "limit",
            Self::HashMismatch => "hash_mismatch",
            Self::Missing => "missing",
            Self::Full => "full",
            Self::Storage => "storage",
        }
    }
}

/// Why an archive was refused or could not be handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("archive {}: {detail}", code.as_str())]
pub struct ArchiveError {
    /// Which kind of trouble.
    pub code: ArchiveCode,
    /// What happened, for a person; names at most one path.
    pub detail: String,
}

/// A result of handling an archive.
pub type Result<T> = std::result::Result<T, ArchiveError>;

impl ArchiveError {
    fn new(code: ArchiveCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    fn unsafe_at(path: &[u8], what: impl fmt::Display) -> Self {
        Self::new(ArchiveCode::Unsafe, format!("\"{}\" {what}", shown(path)))
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ArchiveCode::Invalid, detail)
    }

    fn limit(detail: impl Into<String>) -> Self {
        Self::new(ArchiveCode::Limit, detail)
    }
}

/// An error that travelled through a byte stream comes out as it went in.
impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        if let Some(ours) = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return ours.clone();
        }
        if let Some(store) = error.get_ref().and_then(|inner| inner.downcast_ref::<object_store::Error>()) {
            return Self::of_store(store);
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::invalid("the archive is truncated"),
            kind if is_full(kind) => Self::new(ArchiveCode::Full, "no space is left"),
            _ => Self::new(ArchiveCode::Storage, error.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for ArchiveError {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<object_store::Error> for ArchiveError {
    fn from(error: object_store::Error) -> Self {
        Self::of_store(&error)
    }
}

impl ArchiveError {
    fn of_store(error: &object_store::Error) -> Self {
        if matches!(error, object_store::Error::NotFound { .. }) {
            return Self::new(ArchiveCode::Missing, "there is no such archive in the store");
        }
        let mut cause = error.source();
        while let Some(inner) = cause {
            if inner.downcast_ref::<io::Error>().is_some_and(|io| is_full(io.kind())) || says_full(&inner.to_string()) {
                return Self::new(ArchiveCode::Full, "the archive store is full");
            }
            cause = inner.source();
        }
        Self::new(ArchiveCode::Storage, error.to_string())
    }
}

/// How stores reached over HTTP say that they are full: by the status, or by the code in their answer.
fn says_full(answer: &str) -> bool {
    ["507 Insufficient Storage", "XMinioStorageFull", "QuotaExceeded"].iter().any(|words| answer.contains(words))
}

fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        Self::other(error)
    }
}

/// A path as a message shows it: short, and without control characters.
fn shown(path: &[u8]) -> String {
    let cut = &path[..path.len().min(200)];
    cut.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
