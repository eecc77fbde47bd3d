//! Passes tars on between a container engine and Berth: out of a container as `write_tar` would have written them, and into one
//! under the names and the owner they are to have there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Read, Write};

use super::entries::{Entries, Entry, Kind};
use super::exclude::Exclude;
use super::header::{BLOCK, Owner, Plain, pad};
use super::ledger::{IMPLIED_MODE, MODE_BITS};
use super::{ArchiveError, Limits, Result};

/// What was passed on, and what was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Pipes and devices that were left out; an engine leaves sockets out by itself.
    pub skipped: u64,
    /// Further names of files whose first name is excluded: their content has to be fetched by itself.
    pub left: Vec<Vec<u8>>,
}

/// What an engine packs is judged by whoever reads what is passed on.
const ENGINES: Limits = Limits { entries: u64::MAX, unpacked_bytes: u64::MAX, path_bytes: 8192, ratio: u64::MAX };

/// Passes on an engine's tar of one directory, without the directory's own name. The end marker is the caller's to write.
pub fn outward(input: &mut dyn Read, exclude: &[String], out: &mut dyn Write) -> Result<Relayed> {
    let exclude = Exclude::new(exclude);
    let (mut relayed, mut excluded) = (Relayed::default(), HashSet::new());
    let mut entries = Entries::new(input, &ENGINES);
    while let Some(Entry { path, kind, mode, mtime }) = entries.next()? {
        let path = below(&path);
        if path.is_empty() {
            continue;
        }
        if ends(path).any(|end| exclude.matches(&path[..end])) {
            excluded.insert(path.to_vec());
            continue;
        }
        let plain = Plain { kind: b'0', path, link: b"", mode: mode & MODE_BITS, size: 0, seconds: mtime.seconds, owner: Owner::default() };
        match kind {
            Kind::Directory => Plain { kind: b'5', ..plain }.write(out)?,
            Kind::Symlink(target) => Plain { kind: b'2', link: &target, ..plain }.write(out)?,
            Kind::HardLink(target) if excluded.contains(below(&target)) => relayed.left.push(path.to_vec()),
            Kind::HardLink(target) => Plain { kind: b'1', link: below(&target), ..plain }.write(out)?,
            Kind::File => {
                Plain { size: entries.left(), ..plain }.write(out)?;
                copy(&mut entries, out)?;
            }
            Kind::Special => relayed.skipped += 1,
        }
    }
    Ok(relayed)
}

/// Passes on an engine's tar of one file, under another name.
pub fn one_outward(input: &mut dyn Read, path: &[u8], out: &mut dyn Write) -> Result<()> {
    let mut entries = Entries::new(input, &ENGINES);
    let Some(Entry { kind: Kind::File, mode, mtime, .. }) = entries.next()? else {
        return Err(ArchiveError::invalid("the file changed into something else"));
    };
    let (size, seconds) = (entries.left(), mtime.seconds);
    Plain { kind: b'0', path, link: b"", mode: mode & MODE_BITS, size, seconds, owner: Owner::default() }.write(out)?;
    copy(&mut entries, out)
}

/// What the place of a tar has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A directory, which is kept and filled.
    Directory,
    /// Anything else, which is replaced.
    Other,
}

/// What stands where, by path.
pub type Standings = HashMap<Vec<u8>, Standing>;

/// Passes on a tar that `digest` has found good, for an engine to unpack below `prefix`: every directory is told before what is
/// in it, so that the engine makes none by its own lights and follows no link that stands in one's place.
///
/// `Invalid` when a directory that stands is in the way of something else; run into a sink, this tells before anything changes.
pub fn inward(input: &mut dyn Read, prefix: &[u8], owner: Owner, standing: &Standings, out: &mut dyn Write) -> Result<()> {
    let mut told: HashSet<Vec<u8>> = HashSet::new();
    // A further name says nothing about a file, but an engine believes what stands there.
    let mut modes: HashMap<Vec<u8>, u16> = HashMap::new();
    let named = |path: &[u8]| if prefix.is_empty() { path.to_vec() } else { [prefix, path].join(&b'/') };
    let mut entries = Entries::new(input, &ENGINES);
    while let Some(Entry { path, kind, mode, mtime }) = entries.next()? {
        if path.is_empty() {
            continue;
        }
        for parent in ends(&path).map(|end| &path[..end]).filter(|parent| parent.len() < path.len()) {
            if told.insert(parent.to_vec()) && standing.get(parent) != Some(&Standing::Directory) {
                let (path, mode) = (named(parent), IMPLIED_MODE);
                Plain { kind: b'5', path: &path, link: b"", mode, size: 0, seconds: 0, owner }.write(out)?;
            }
        }
        let in_the_way = standing.get(&path) == Some(&Standing::Directory) || told.contains(&path);
        if in_the_way && !matches!(kind, Kind::Directory) {
            return Err(ArchiveError::invalid(format!("a directory is in the way of \"{}\"", super::shown(&path))));
        }
        let full = named(&path);
        let plain = Plain { kind: b'0', path: &full, link: b"", mode: mode & MODE_BITS, size: 0, seconds: mtime.seconds, owner };
        match kind {
            Kind::Directory => {
                Plain { kind: b'5', ..plain }.write(out)?;
                told.insert(path);
            }
            Kind::Symlink(target) => Plain { kind: b'2', link: &target, ..plain }.write(out)?,
            Kind::HardLink(target) => {
                let mode = modes.get(&target).copied().unwrap_or(plain.mode);
                modes.insert(path, mode);
                Plain { kind: b'1', link: &named(&target), mode, ..plain }.write(out)?;
            }
            Kind::File => {
                modes.insert(path, plain.mode);
                Plain { size: entries.left(), ..plain }.write(out)?;
                copy(&mut entries, out)?;
            }
            Kind::Special => return Err(ArchiveError::unsafe_at(&path, "is a device or a pipe")),
        }
    }
    Ok(())
}

/// What is no directory, standing where the tar has one.
pub fn in_place_of_directories(input: &mut dyn Read, standing: &Standings) -> Result<BTreeSet<Vec<u8>>> {
    let mut found = BTreeSet::new();
    let mut tar = tar::Archive::new(input);
    for entry in tar.entries()? {
        let entry = entry?;
        let path = entry.path_bytes();
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        let directories = if entry.header().entry_type().is_dir() { parts.len() } else { parts.len().saturating_sub(1) };
        for depth in 1..=directories {
            let directory = parts[..depth].join(&b'/');
            if standing.get(&directory) == Some(&Standing::Other) {
                found.insert(directory);
            }
        }
    }
    Ok(found)
}

/// Writes the end marker.
pub fn end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Passes on the content of the present file.
fn copy(entries: &mut Entries<'_>, out: &mut dyn Write) -> Result<()> {
    let size = entries.left();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = entries.read(&mut buffer)?;
        if read == 0 {
            return Ok(pad(out, size)?);
        }
        out.write_all(&buffer[..read])?;
    }
}

/// A path without its first component.
fn below(path: &[u8]) -> &[u8] {
    path.iter().position(|byte| *byte == b'/').map_or(b"", |at| &path[at + 1..])
}

/// Where each component of a path ends.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()])
}

#[cfg(test)]
mod tests {
    use tar::{Archive, EntryType};

    use super::*;
    use crate::archive::digest;

    fn tar(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o4750);
            header.set_size(0);
            match kind {
                EntryType::Regular => {
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, content.as_bytes()).unwrap();
                }
                EntryType::Symlink | EntryType::Link => tar.append_link(&mut header, path, content).unwrap(),
                _ => tar.append_data(&mut header, path, io::empty()).unwrap(),
            }
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn an_engines_tar_is_the_same_tree_as_ours() {
        let long = format!("w/{}", "n".repeat(180));
        let engines = tar(&[
            ("w/", EntryType::Directory, ""),
            ("w/a", EntryType::Regular, "content"),
            ("w/b", EntryType::Link, "w/a"),
            ("w/c", EntryType::Symlink, "/etc/passwd"),
            ("w/p", EntryType::Fifo, ""),
            (&long, EntryType::Regular, "x"),
        ]);
        let mut out = Vec::new();
        let relayed = outward(&mut engines.as_slice(), &[], &mut out).unwrap();
        assert_eq!(relayed, Relayed { skipped: 1, left: Vec::new() });
        end(&mut out).unwrap();
        let tree = digest(&mut out.as_slice(), &Limits::default()).unwrap();
        assert_eq!((tree.entries, tree.files, tree.bytes), (4, 3, 8));
        let mut again = Vec::new();
        inward(&mut out.as_slice(), b"", Owner { uid: 7, gid: 8 }, &HashMap::new(), &mut again).unwrap();
        end(&mut again).unwrap();
        assert_eq!(digest(&mut again.as_slice(), &Limits::default()).unwrap(), tree);
    }

    #[test]
    fn a_tar_that_stops_short_is_an_error() {
        let whole = tar(&[("w/", EntryType::Directory, ""), ("w/a", EntryType::Regular, "content")]);
        for length in [512, 1024, 1030, 1536, 2048] {
            assert!(outward(&mut &whole[..length], &[], &mut io::sink()).is_err(), "{length}");
        }
    }

    #[test]
    fn a_hard_link_to_something_excluded_is_left_to_the_caller() {
        let engines = tar(&[("w/", EntryType::Directory, ""), ("w/a", EntryType::Regular, "x"), ("w/b", EntryType::Link, "w/a")]);
        let relayed = outward(&mut engines.as_slice(), &["a".to_owned()], &mut io::sink()).unwrap();
        assert_eq!(relayed.left, [b"b".to_vec()]);
    }

    #[test]
    fn directories_are_told_and_kept() {
        let sent = tar(&[("d/e/f", EntryType::Regular, "x")]);
        let standing = HashMap::from([(b"d".to_vec(), Standing::Directory), (b"d/e".to_vec(), Standing::Other)]);
        let mut out = Vec::new();
        inward(&mut sent.as_slice(), b"", Owner::default(), &standing, &mut out).unwrap();
        end(&mut out).unwrap();
        let names: Vec<_> =
            Archive::new(out.as_slice()).entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(names, ["d/e/", "d/e/f"], "the directory that stands is left as it is, the link is replaced");
        let standing = HashMap::from([(b"d/e/f".to_vec(), Standing::Directory)]);
        assert!(inward(&mut sent.as_slice(), b"", Owner::default(), &standing, &mut io::sink()).is_err());
    }
}
