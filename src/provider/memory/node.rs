//! One entry of a tree in memory, and its place.

use bytes::Bytes;

use crate::clock::Time;
use crate::provider::{FileEntry, FileKind};

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A regular file.
    File(Bytes),
    /// A directory; its entries are the keys below it.
    Directory,
    /// A symbolic link and its target, verbatim.
    Symlink(Vec<u8>),
}

/// One entry of the tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// What it holds.
    pub(super) content: Content,
    /// Permission bits.
    pub(super) mode: u32,
    /// Last change of the content.
    pub(super) at: Time,
    /// Stands in for inode and ctime: never the same after any change, and the same for all names of one file.
    pub(super) change: u64,
}

/// The entry as listings show it.
pub(super) fn entry(path: &[u8], node: &Node) -> FileEntry {
    let (kind, size, link_target) = match &node.content {
        Content::File(bytes) => (FileKind::File, bytes.len(), None),
        Content::Directory => (FileKind::Directory, 0, None),
        Content::Symlink(target) => (FileKind::Symlink, 0, Some(target.clone())),
    };
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    FileEntry { path: path.to_vec(), kind, size, mode: node.mode, modified_at: Some(node.at), link_target }
}

/// The key of a name in a directory.
pub(super) fn join(key: &[u8], name: &[u8]) -> Vec<u8> {
    if key.is_empty() { name.to_vec() } else { [key, b"/", name].concat() }
}

/// The key of the directory that holds a key.
pub(super) fn parent(key: &[u8]) -> &[u8] {
    key.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &key[..slash])
}
