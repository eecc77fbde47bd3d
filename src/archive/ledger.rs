//! What an archive has made so far, and the digest of all of it.
//!
//! A path's key is `SHA-256(key of its parent ‖ name)`, the root's is 32 zeros. The digest is SHA-256 over
//! `berth-tree-v1\n` and, in the order of their keys, one record per entry:
//! `type ‖ key ‖ mode (u32) ‖ size (u64) ‖ SHA-256 of the content or of the link's target ‖ group`, numbers big-endian.
//! A file with several names has in `group` the smallest of their keys; everything else has zeros. Hence no path is kept,
//! and neither the order, nor times, nor owners, nor which name of a file came first make a difference.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::header::Mtime;
use super::tree::ALGORITHM;
use super::{ArchiveError, Result, Tree};

/// A digest, as bytes.
pub(super) type Hash = [u8; 32];

/// The bits of a mode that a tree has. Set-user-id and set-group-id are dropped here and on disk alike: they mean nothing
/// to other owners, and an archive must not plant them.
pub(super) const MODE_BITS: u16 = 0o1777;
/// What a directory has that the archive only implies.
pub(super) const IMPLIED_MODE: u16 = 0o755;
const NONE: Hash = [0; 32];

/// A directory of the archive, numbered by when it was first seen; the root is number 0.
pub(super) struct Directory {
    /// What the archive says about it, unless a path merely implies it.
    pub(super) told: Option<(u16, Mtime)>,
}

/// A regular file, whatever names it has.
pub(super) struct File {
    pub(super) mode: u16,
    pub(super) size: u64,
    pub(super) content: Hash,
}

/// The number of a directory, a file or a symbolic link among its kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Directory(u32),
    File(u32),
    Symlink(u32),
}

/// Everything seen so far. About 100 bytes an entry, whatever the paths' length.
pub(super) struct Ledger {
    limit: u64,
    nodes: HashMap<Hash, Node>,
    directories: Vec<Directory>,
    files: Vec<File>,
    symlinks: Vec<Hash>,
    /// The path entered last and the directories on it, since entries mostly come with their neighbours.
    last: Vec<u8>,
    trail: Vec<Step>,
}

/// A directory on a path: where its name ends there, its key and its number.
#[derive(Clone, Copy)]
struct Step {
    end: usize,
    key: Hash,
    number: u32,
}

impl Ledger {
    pub(super) fn new(limit: u64) -> Self {
        let (nodes, directories) = (HashMap::new(), vec![Directory { told: None }]);
        Self { limit, nodes, directories, files: Vec::new(), symlinks: Vec::new(), last: Vec::new(), trail: Vec::new() }
    }

    /// Goes down to the directory at `path` and returns its key and number. Directories on the way that are new are
    /// recorded and told to `made` with the number of their parent.
    pub(super) fn enter(&mut self, path: &[u8], made: &mut dyn FnMut(&[u8], u32) -> Result<()>) -> Result<(Hash, u32)> {
        let shared = self.last.iter().zip(path).take_while(|(one, other)| one == other).count();
        while self.trail.last().is_some_and(|step| step.end > shared || path.get(step.end).is_some_and(|&byte| byte != b'/')) {
            self.trail.pop();
        }
        self.last.clear();
        self.last.extend_from_slice(path);
        let mut at = self.trail.last().copied().unwrap_or(Step { end: 0, key: NONE, number: 0 });
        let known = at.end;
        for end in ends(path).filter(|&end| end > known) {
            let key = child(&at.key, name(&path[..end]));
            let number = match self.nodes.get(&key) {
                Some(Node::Directory(number)) => *number,
                Some(Node::Symlink(_)) => {
                    return Err(ArchiveError::unsafe_at(&path[..end], "is a symbolic link that a path leads through"));
                }
                Some(Node::File(_)) => return Err(other_kind(&path[..end])),
                None => {
                    let new = index(self.directories.len())?;
                    self.insert(key, Node::Directory(new))?;
                    self.directories.push(Directory { told: None });
                    made(&path[..end], at.number)?;
                    new
                }
            };
            at = Step { end, key, number };
            self.trail.push(at);
        }
        Ok((at.key, at.number))
    }

    /// Records what the archive says about a directory.
    pub(super) fn tell(&mut self, number: u32, mode: u16, mtime: Mtime) {
        self.directories[number as usize].told = Some((mode & MODE_BITS, mtime));
    }

    /// Refuses a file where something other than a file was.
    pub(super) fn expect_file(&self, key: &Hash, path: &[u8]) -> Result<()> {
        match self.nodes.get(key) {
            None | Some(Node::File(_)) => Ok(()),
            Some(_) => Err(other_kind(path)),
        }
    }

    /// Refuses a symbolic link where something other than a symbolic link was.
    pub(super) fn expect_symlink(&self, key: &Hash, path: &[u8]) -> Result<()> {
        match self.nodes.get(key) {
            None | Some(Node::Symlink(_)) => Ok(()),
            Some(_) => Err(other_kind(path)),
        }
    }

    /// Records a file, in place of one that had this name before.
    pub(super) fn file(&mut self, key: Hash, file: File) -> Result<()> {
        let node = Node::File(index(self.files.len())?);
        self.files.push(file);
        self.insert(key, node)
    }

    /// Records a symbolic link, in place of one that had this name before.
    pub(super) fn symlink(&mut self, key: Hash, target: &[u8]) -> Result<()> {
        let node = Node::Symlink(index(self.symlinks.len())?);
        self.symlinks.push(Sha256::digest(target).into());
        self.insert(key, node)
    }

    /// Records a further name of an earlier file; `false` when it has this name already.
    pub(super) fn hard_link(&mut self, key: Hash, path: &[u8], target: &[u8]) -> Result<bool> {
        let source = ends(target).fold(NONE, |parent, end| child(&parent, name(&target[..end])));
        let Some(node @ Node::File(_)) = self.nodes.get(&source).copied() else {
            return Err(ArchiveError::unsafe_at(path, "is a hard link to something that is not an earlier file of the archive"));
        };
        if self.nodes.get(&key) == Some(&node) {
            return Ok(false);
        }
        self.insert(key, node)?;
        Ok(true)
    }

    /// All directories, by number.
    pub(super) fn directories(&self) -> &[Directory] {
        &self.directories
    }

    /// The tree that all entries make.
    pub(super) fn tree(self) -> Tree {
        let mut entries: Vec<(Hash, Node)> = self.nodes.into_iter().collect();
        entries.sort_unstable_by_key(|entry| entry.0);
        // In the order of keys, the first name of a file is its smallest.
        let mut names: Vec<(u32, Hash)> = vec![(0, NONE); self.files.len()];
        for (key, node) in &entries {
            if let Node::File(number) = node {
                let (count, smallest) = &mut names[*number as usize];
                if *count == 0 {
                    *smallest = *key;
                }
                *count += 1;
            }
        }
        let mut tree = Tree { algorithm: ALGORITHM.to_owned(), digest: String::new(), entries: entries.len() as u64, files: 0, bytes: 0 };
        let mut sum = Sha256::new_with_prefix(ALGORITHM);
        sum.update(b"\n");
        for (key, node) in &entries {
            let (kind, mode, size, content, group) = match *node {
                Node::Directory(number) => {
                    let mode = self.directories[number as usize].told.map_or(IMPLIED_MODE, |(mode, _)| mode);
                    (b'd', mode, 0, NONE, NONE)
                }
                Node::Symlink(number) => (b'l', 0o777, 0, self.symlinks[number as usize], NONE),
                Node::File(number) => {
                    let file = &self.files[number as usize];
                    let (count, smallest) = names[number as usize];
                    tree.files += 1;
                    if *key == smallest {
                        tree.bytes += file.size;
                    }
                    (b'f', file.mode & MODE_BITS, file.size, file.content, if count > 1 { smallest } else { NONE })
                }
            };
            sum.update([kind]);
            sum.update(key);
            sum.update(u32::from(mode).to_be_bytes());
            sum.update(size.to_be_bytes());
            sum.update(content);
            sum.update(group);
        }
        tree.digest = hex::encode(sum.finalize());
        tree
    }

    fn insert(&mut self, key: Hash, node: Node) -> Result<()> {
        self.nodes.insert(key, node);
        if self.nodes.len() as u64 > self.limit {
            return Err(ArchiveError::limit(format!("the archive has more than {} entries", self.limit)));
        }
        Ok(())
    }
}

/// The key of a name in the directory with this key.
pub(super) fn child(parent: &Hash, name: &[u8]) -> Hash {
    Sha256::new_with_prefix(parent).chain_update(name).finalize().into()
}

/// Where each component of a path in normal form ends.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.chain((!path.is_empty()).then_some(path.len()))
}

fn name(path: &[u8]) -> &[u8] {
    super::cursor::split(path).1
}

fn index(length: usize) -> Result<u32> {
    u32::try_from(length).map_err(|_| ArchiveError::limit("the archive has too many entries"))
}

fn other_kind(path: &[u8]) -> ArchiveError {
    ArchiveError::unsafe_at(path, "is two things of different kinds")
}
