//! The in-memory tree as a tar, out and in.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use tar::{Archive, Builder, EntryType, Header};

use super::node::{Content, parent};
use super::tree::Tree;
use crate::clock::Time;
use crate::provider::{Kind, ProviderError, Result};

/// Whether a pattern names this path or something above it: a name anywhere, or a path from the root. Stars mean nothing here.
pub(super) fn excluded(path: &[u8], exclude: &[String]) -> bool {
    exclude.iter().any(|pattern| {
        let from_root = pattern.trim_matches('/').as_bytes();
        if pattern.trim_end_matches('/').contains('/') {
            path.strip_prefix(from_root).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        } else {
            !from_root.is_empty() && path.split(|byte| *byte == b'/').any(|part| part == from_root)
        }
    })
}

/// Writes every entry that is not excluded.
pub(super) fn write(tree: &Tree, exclude: &[String], out: &mut dyn Write) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mut tar = Builder::new(out);
    let mut first_names: HashMap<u64, &std::path::Path> = HashMap::new();
    for (path, node) in tree.iter().filter(|(path, _)| !excluded(path, exclude)) {
        let name = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        let mut header = Header::new_gnu();
        header.set_mode(node.mode);
        header.set_mtime(u64::try_from(node.at.0 / 1000).unwrap_or(0));
        match &node.content {
            Content::File(bytes) => {
                if let Some(first) = first_names.get(&node.change) {
                    header.set_entry_type(EntryType::Link);
                    header.set_size(0);
                    tar.append_link(&mut header, name, first)?;
                    continue;
                }
                first_names.insert(node.change, name);
                header.set_entry_type(EntryType::Regular);
                header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                tar.append_data(&mut header, name, bytes.as_ref())?;
            }
            Content::Directory => {
                header.set_entry_type(EntryType::Directory);
                header.set_size(0);
                tar.append_data(&mut header, name, io::empty())?;
            }
            Content::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                header.set_size(0);
                tar.append_link(&mut header, name, std::ffi::OsStr::from_bytes(target))?;
            }
        }
    }
    tar.finish()
}

/// Lays a tar over the tree. The tree may be half changed when this fails, so the caller works on a copy.
pub(super) fn read(tree: &mut Tree, tar: &[u8]) -> Result<()> {
    let malformed = |e: io::Error| ProviderError::new(Kind::Invalid, "the tar is malformed").because(e);
    for entry in Archive::new(tar).entries().map_err(malformed)? {
        let mut entry = entry.map_err(malformed)?;
        let key = inside(&entry.path_bytes())?;
        let mode = entry.header().mode().map_err(malformed)?;
        let seconds = i64::try_from(entry.header().mtime().map_err(malformed)?).unwrap_or(0);
        let at = Time(seconds.saturating_mul(1000));
        let content = match entry.header().entry_type() {
            EntryType::Directory => Content::Directory,
            EntryType::Symlink => Content::Symlink(entry.link_name_bytes().unwrap_or_default().into_owned()),
            EntryType::Link => {
                let target = inside(&entry.link_name_bytes().unwrap_or_default())?;
                if !tree.node(&target).is_some_and(|node| matches!(node.content, Content::File(_))) {
                    return Err(ProviderError::new(Kind::Path, "a hard link in the tar names no file of it"));
                }
                if target != key {
                    make_room(tree, &key, false, at)?;
                    tree.link(key, &target);
                }
                continue;
            }
            EntryType::Regular | EntryType::Continuous => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(malformed)?;
                Content::File(bytes.into())
            }
            _ => continue,
        };
        place(tree, key, content, mode, at)?;
    }
    Ok(())
}

/// Puts one entry where the tar wants it.
fn place(tree: &mut Tree, key: Vec<u8>, content: Content, mode: u32, at: Time) -> Result<()> {
    make_room(tree, &key, matches!(content, Content::Directory), at)?;
    tree.set(key, content, mode, at);
    Ok(())
}

/// Makes the directories above an entry, and removes a directory that it replaces; never through a link.
fn make_room(tree: &mut Tree, key: &[u8], directory: bool, at: Time) -> Result<()> {
    let mut above = vec![];
    let mut rest = parent(key);
    while !rest.is_empty() {
        above.push(rest.to_vec());
        rest = parent(rest);
    }
    for directory in above.into_iter().rev() {
        match tree.node(&directory).map(|node| &node.content) {
            None => tree.set(directory, Content::Directory, 0o755, at),
            Some(Content::Directory) => {}
            Some(_) => return Err(ProviderError::new(Kind::Path, "an entry of the tar leads through a link or a file")),
        }
    }
    let was_directory = tree.node(key).map(|node| matches!(node.content, Content::Directory));
    if was_directory == Some(true) && !directory {
        if key.is_empty() {
            return Err(ProviderError::new(Kind::Path, "an entry of the tar replaces the workspace itself"));
        }
        tree.remove(key, true)?;
    }
    Ok(())
}

/// The key of a name in a tar; it may neither be absolute nor climb.
fn inside(name: &[u8]) -> Result<Vec<u8>> {
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if name.starts_with(b"/") || parts.contains(&b"..".as_slice()) || name.contains(&0) {
        return Err(ProviderError::new(Kind::Path, "a name in the tar leaves the workspace"));
    }
    Ok(parts.join(&b'/'))
}
