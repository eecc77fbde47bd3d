//! A file tree in memory: paths, links and modes as a file system has them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::node::{Content, Node, entry, join, parent};
use crate::clock::Time;
use crate::provider::{FileEntry, Kind, ProviderError, PutOptions, Result};

/// As many links as Linux follows in one path.
const MOST_LINKS: usize = 40;

/// Every entry by its path below the root, which is the empty path; so byte order of the keys is the order of listings.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: Vec<u8>,
    nodes: BTreeMap<Vec<u8>, Node>,
    changes: u64,
}

impl Tree {
    /// An empty directory that commands see at `root`.
    pub(super) fn new(root: &str) -> Self {
        let mut tree = Self { root: root.as_bytes().to_vec(), nodes: BTreeMap::new(), changes: 0 };
        tree.set(Vec::new(), Content::Directory, 0o755, Time(0));
        tree
    }

    /// The same root without entries; the count of changes goes on.
    pub(super) fn emptied(&self) -> Self {
        let mut tree = Self { root: self.root.clone(), nodes: BTreeMap::new(), changes: self.changes };
        tree.set(Vec::new(), Content::Directory, 0o755, Time(0));
        tree
    }

    /// A directory of this tree as a tree of its own; the count of changes goes on.
    pub(super) fn taken_out(&self, key: &[u8]) -> Self {
        let prefix = if key.is_empty() { Vec::new() } else { join(key, b"") };
        let mut tree = self.emptied();
        let inner = self.below(key).into_iter().filter_map(|full| Some((full[prefix.len()..].to_vec(), self.nodes.get(&full)?.clone())));
        tree.nodes.extend(inner);
        if let Some(top) = self.nodes.get(key) {
            tree.nodes.insert(Vec::new(), top.clone());
        }
        tree
    }

    /// Makes a tree the whole content of a directory.
    pub(super) fn put_back(&mut self, key: &[u8], tree: Self) {
        for inner in self.below(key) {
            self.nodes.remove(&inner);
        }
        self.changes = tree.changes;
        let named = |path: Vec<u8>| if path.is_empty() { key.to_vec() } else { join(key, &path) };
        self.nodes.extend(tree.nodes.into_iter().map(|(path, node)| (named(path), node)));
    }

    /// Moves the root to another absolute path.
    pub(super) fn place(&mut self, root: &str) {
        self.root = root.as_bytes().to_vec();
    }

    /// Where commands see the root.
    pub(super) fn root(&self) -> String {
        String::from_utf8_lossy(&self.root).into_owned()
    }

    /// Every entry but the root, in byte order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Node)> {
        self.nodes.iter().filter(|(path, _)| !path.is_empty()).map(|(path, node)| (path.as_slice(), node))
    }

    /// The node of an exact key.
    pub(super) fn node(&self, key: &[u8]) -> Option<&Node> {
        self.nodes.get(key)
    }

    /// Adds or replaces the node of an exact key.
    pub(super) fn set(&mut self, key: Vec<u8>, content: Content, mode: u32, at: Time) {
        self.changes += 1;
        self.nodes.insert(key, Node { content, mode: mode & 0o7777, at, change: self.changes });
    }

    /// Gives the file of an exact key another name.
    pub(super) fn link(&mut self, key: Vec<u8>, target: &[u8]) {
        if let Some(node) = self.nodes.get(target).cloned() {
            self.nodes.insert(key, node);
        }
    }

    /// The key a path leads to. Everything but its last part must exist; links are followed and may not leave.
    pub(super) fn resolve(&self, path: &[u8], follow_last: bool) -> Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.push(path, &mut rest)?;
        let (mut key, mut links) = (Vec::new(), 0);
        while let Some(part) = rest.pop() {
            self.directory(&key)?;
            if part == b".." {
                if key.is_empty() {
                    return Err(escapes());
                }
                key.truncate(parent(&key).len());
                continue;
            }
            let next = join(&key, &part);
            if let Some(Node { content: Content::Symlink(target), .. }) = self.nodes.get(&next)
                && (follow_last || !rest.is_empty())
            {
                links += 1;
                if links > MOST_LINKS {
                    return Err(ProviderError::new(Kind::Path, "too many symbolic links"));
                }
                if target.starts_with(b"/") {
                    key.clear();
                }
                self.push(target, &mut rest)?;
                continue;
            }
            key = next;
        }
        Ok(key)
    }

    /// Puts the parts of a path on a stack, the first on top; an absolute path must lie below the root.
    fn push(&self, path: &[u8], stack: &mut Vec<Vec<u8>>) -> Result<()> {
        if path.contains(&0) {
            return Err(ProviderError::new(Kind::Path, "the path holds a NUL byte"));
        }
        let inside = match path.strip_prefix(self.root.as_slice()) {
            Some(inside) if path.starts_with(b"/") && (inside.is_empty() || inside.starts_with(b"/")) => inside,
            _ if path.starts_with(b"/") => return Err(escapes()),
            _ => path,
        };
        let parts = inside.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && part != b".");
        stack.extend(parts.rev().map(<[u8]>::to_vec));
        Ok(())
    }

    fn directory(&self, key: &[u8]) -> Result<()> {
        match self.nodes.get(key).map(|node| &node.content) {
            Some(Content::Directory) => Ok(()),
            Some(_) => Err(ProviderError::new(Kind::NotADirectory, "a part of the path is no directory")),
            None => Err(ProviderError::new(Kind::FileNotFound, "no such file or directory")),
        }
    }

    fn existing(&self, path: &[u8], follow_last: bool) -> Result<(Vec<u8>, &Node)> {
        let key = self.resolve(path, follow_last)?;
        let node = self.nodes.get(&key).ok_or_else(|| ProviderError::new(Kind::FileNotFound, "no such file or directory"))?;
        Ok((key, node))
    }

    /// A file's entry and bytes.
    pub(super) fn read(&self, path: &[u8]) -> Result<(FileEntry, Bytes)> {
        let (_, node) = self.existing(path, true)?;
        match &node.content {
            Content::File(bytes) => Ok((entry(path, node), bytes.clone())),
            _ => Err(ProviderError::new(Kind::IsADirectory, "is a directory")),
        }
    }

    /// What is at a path; a final link is not followed.
    pub(super) fn stat(&self, path: &[u8]) -> Result<FileEntry> {
        self.existing(path, false).map(|(_, node)| entry(path, node))
    }

    /// Checks that a path is a directory and returns its key.
    pub(super) fn enter(&self, path: &[u8]) -> Result<Vec<u8>> {
        let key = self.resolve(path, true)?;
        self.directory(&key).map(|()| key)
    }

    /// Replaces a file's content; true when the file is new.
    pub(super) fn write(&mut self, path: &[u8], bytes: Bytes, options: PutOptions, at: Time) -> Result<bool> {
        if options.parents {
            self.make_parents(path, at)?;
        }
        let key = self.resolve(path, true)?;
        self.directory(parent(&key))?;
        let before = self.nodes.get(&key);
        if before.is_some_and(|node| matches!(node.content, Content::Directory)) {
            return Err(ProviderError::new(Kind::IsADirectory, "is a directory"));
        }
        let (new, mode) = (before.is_none(), options.mode.or(before.map(|node| node.mode)).unwrap_or(0o644));
        self.set(key, Content::File(bytes), mode, at);
        Ok(new)
    }

    /// Makes a directory and its parents; returns its key.
    pub(super) fn make_directory(&mut self, path: &[u8], at: Time) -> Result<Vec<u8>> {
        self.make_parents(path, at)?;
        let key = self.resolve(path, true)?;
        match self.nodes.get(&key).map(|node| &node.content) {
            Some(Content::Directory) => {}
            Some(_) => return Err(ProviderError::new(Kind::FileExists, "a file of this name exists")),
            None => self.set(key.clone(), Content::Directory, 0o755, at),
        }
        Ok(key)
    }

    fn make_parents(&mut self, path: &[u8], at: Time) -> Result<()> {
        let inside = path.strip_prefix(self.root.as_slice()).unwrap_or(path);
        for end in inside.iter().enumerate().filter(|(index, byte)| *index > 0 && **byte == b'/').map(|(index, _)| index) {
            let prefix = &path[..path.len() - inside.len() + end];
            let key = self.resolve(prefix, true)?;
            if !self.nodes.contains_key(&key) {
                self.set(key, Content::Directory, 0o755, at);
            }
        }
        Ok(())
    }

    /// Removes a file, a link or a directory.
    pub(super) fn remove(&mut self, path: &[u8], recursive: bool) -> Result<()> {
        let (key, _) = self.existing(path, false)?;
        if key.is_empty() {
            return Err(ProviderError::new(Kind::Path, "the workspace itself stays"));
        }
        let below = self.below(&key);
        if !below.is_empty() && !recursive {
            return Err(ProviderError::new(Kind::DirectoryNotEmpty, "the directory has entries"));
        }
        self.changes += 1;
        self.nodes.remove(&key);
        for inner in below {
            self.nodes.remove(&inner);
        }
        Ok(())
    }

    /// Renames what is at `from`.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8], overwrite: bool) -> Result<()> {
        let (source, moved) = self.existing(from, false).map(|(key, node)| (key, node.clone()))?;
        let target = self.resolve(to, false)?;
        self.directory(parent(&target))?;
        if source.is_empty() || target.is_empty() || target.starts_with(&join(&source, b"")) {
            return Err(ProviderError::new(Kind::Path, "a directory cannot move into itself"));
        }
        let moves_directory = matches!(moved.content, Content::Directory);
        match self.nodes.get(&target).map(|node| matches!(node.content, Content::Directory)) {
            Some(_) if !overwrite => return Err(ProviderError::new(Kind::FileExists, "the target exists")),
            Some(_) if source == target => return Ok(()),
            Some(true) if !moves_directory => return Err(ProviderError::new(Kind::IsADirectory, "the target is a directory")),
            Some(false) if moves_directory => return Err(ProviderError::new(Kind::NotADirectory, "the target is no directory")),
            Some(true) if !self.below(&target).is_empty() => {
                return Err(ProviderError::new(Kind::DirectoryNotEmpty, "the target has entries"));
            }
            _ => {}
        }
        for inner in self.below(&source) {
            if let Some(node) = self.nodes.remove(&inner) {
                self.nodes.insert([&target, &inner[source.len()..]].concat(), node);
            }
        }
        self.nodes.remove(&source);
        self.set(target, moved.content, moved.mode, moved.at);
        Ok(())
    }

    /// A page of a directory's entries.
    pub(super) fn list(&self, path: &[u8], recursive: bool, after: Option<&[u8]>, limit: usize) -> Result<Vec<FileEntry>> {
        let key = self.enter(path)?;
        let start = if key.is_empty() { 0 } else { key.len() + 1 };
        let inner = self.below(&key).into_iter().filter_map(|full| Some((full[start..].to_vec(), self.nodes.get(&full)?)));
        let wanted = inner.filter(|(name, _)| (recursive || !name.contains(&b'/')) && after.is_none_or(|after| name.as_slice() > after));
        Ok(wanted.take(limit).map(|(name, node)| entry(&name, node)).collect())
    }

    fn below(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let prefix = if key.is_empty() { Vec::new() } else { join(key, b"") };
        let inner = self.nodes.range(prefix.clone()..).map(|(path, _)| path).take_while(|path| path.starts_with(&prefix));
        inner.filter(|path| !path.is_empty()).cloned().collect()
    }

    /// Equal for equal trees that nothing has touched in between.
    pub(super) fn digest(&self, excluded: impl Fn(&[u8]) -> bool) -> String {
        let mut hash = Sha256::new();
        for (path, node) in self.iter().filter(|(path, _)| !excluded(path)) {
            let mut line = String::new();
            // Writing to a string cannot fail.
            let _ = write!(line, "{} {:o} {} {}", entry(path, node).size, node.mode, node.at.0, node.change);
            hash.update(u64::try_from(path.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(path);
            hash.update(line);
        }
        hex::encode(hash.finalize())
    }
}

fn escapes() -> ProviderError {
    ProviderError::new(Kind::Path, "the path leaves the workspace")
}
