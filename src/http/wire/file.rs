//! Files on the wire.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::words;
use crate::clock::Time;
use crate::http::body::Checked;
use crate::ops::files;

/// Makes a directory with its parents.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectoryMake {
    /// Relative to the workspace, or absolute inside the sandbox. An existing directory is fine.
    #[schema(min_length = 1, max_length = 4096)]
    pub path: String,
}

impl Checked for DirectoryMake {}

/// Renames a file or directory inside the sandbox.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileMove {
    /// What is moved.
    #[schema(min_length = 1, max_length = 4096)]
    pub from: String,
    /// Where to.
    #[schema(min_length = 1, max_length = 4096)]
    pub to: String,
    /// Replace what is at the target.
    pub overwrite: Option<bool>,
}

impl Checked for FileMove {}

/// A file was written.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileWritten {
    /// Whether the file is new.
    pub created: bool,
    /// The sandbox's count of writes with this one.
    pub workspace_seq: i64,
}

/// The workspace was changed.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileChanged {
    /// The sandbox's count of writes with this one.
    pub workspace_seq: i64,
}

/// A directory entry. Names need not be UTF-8: exactly one of `path` and `path_base64` is set.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileEntry {
    /// Relative to what was listed; null when it is not UTF-8.
    pub path: Option<String>,
    /// The same in base64, when it is not UTF-8.
    pub path_base64: Option<String>,
    /// What it is.
    #[schema(value_type = words::FileKind)]
    pub kind: files::FileKind,
    /// Bytes, for a regular file.
    pub size: u64,
    /// Permission bits in octal, such as `0644`.
    #[schema(examples("0644"))]
    pub mode: String,
    /// Last change of the content.
    #[schema(value_type = Option<words::Timestamp>)]
    pub modified_at: Option<Time>,
    /// Where a symbolic link points, if that is UTF-8. It is data and not followed.
    pub link_target: Option<String>,
    /// The same in base64, when it is not UTF-8.
    pub link_target_base64: Option<String>,
}

/// Text where bytes are UTF-8, else base64.
fn named(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(raw) => (None, Some(STANDARD.encode(raw.as_bytes()))),
    }
}

impl From<files::FileEntry> for FileEntry {
    fn from(entry: files::FileEntry) -> Self {
        let (path, path_base64) = named(entry.path);
        let (link_target, link_target_base64) = entry.link_target.map_or((None, None), named);
        Self {
            path,
            path_base64,
            kind: entry.kind,
            size: entry.size,
            mode: octal(entry.mode),
            modified_at: entry.modified_at,
            link_target,
            link_target_base64,
        }
    }
}

/// Permission bits as text.
pub fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

/// A page of directory entries, in byte order of their paths.
#[derive(Debug, Serialize, ToSchema)]
pub struct FilePage {
    /// At most `limit` of them.
    pub items: Vec<FileEntry>,
    /// Pass it as `cursor` for the next page; null at the end.
    pub next_cursor: Option<String>,
}
