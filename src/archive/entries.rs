//! The one reader of tars: yields entries in normal form, or says why the archive is refused.

use std::io::{BufReader, Read};

use super::header::{BLOCK, Block, Mtime, padding};
use super::pax::Pax;
use super::{ArchiveError, Limits, Result};

/// A long name or extended header beyond this is refused before any of it is read.
const RECORD_BYTES: u64 = 64 << 10;
/// Zeros allowed after the end marker; tars are padded to their tape's record.
const TRAILER_BYTES: u64 = 1 << 20;
/// What a name may have on every file system that Berth meets.
const NAME_BYTES: usize = 255;
/// What Linux takes as the target of a symbolic link.
const TARGET_BYTES: usize = 4095;

/// One entry whose names are checked; whether they fit the entries before it is the ledger's question.
pub(super) struct Entry {
    /// Relative, without empty, `.` or `..` components; empty for the root.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    /// Permission bits, 0..=0o7777.
    pub(super) mode: u16,
    pub(super) mtime: Mtime,
}

/// What an entry is.
pub(super) enum Kind {
    Directory,
    /// Its content is read next, by `Entries::read`.
    File,
    /// The target is data, kept as it is.
    Symlink(Vec<u8>),
    /// The target in normal form.
    HardLink(Vec<u8>),
    /// A device or a pipe.
    Special,
}

/// A tar being read.
pub(super) struct Entries<'a> {
    input: BufReader<&'a mut dyn Read>,
    limits: &'a Limits,
    headers: u64,
    bytes: u64,
    left: u64,
    padding: usize,
}

/// What extension headers said about the entry after them.
#[derive(Default)]
struct Extra {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Option<Pax>,
}

impl<'a> Entries<'a> {
    pub(super) fn new(tar: &'a mut dyn Read, limits: &'a Limits) -> Self {
        Self { input: BufReader::with_capacity(128 << 10, tar), limits, headers: 0, bytes: 0, left: 0, padding: 0 }
    }

    /// The next entry; `None` once the end marker is read and nothing but zeros follows it.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        self.pass()?;
        let mut extra = Extra::default();
        loop {
            let Some(block) = self.block()? else {
                if extra.path.is_some() || extra.link.is_some() || extra.pax.is_some() {
                    return Err(ArchiveError::invalid("the archive ends between an entry's headers"));
                }
                self.end()?;
                return Ok(None);
            };
            match block.kind() {
                b'L' => once(&mut extra.path, self.name(&block)?)?,
                b'K' => once(&mut extra.link, self.name(&block)?)?,
                b'x' => once(&mut extra.pax, Pax::parse(&self.record(&block)?)?)?,
                b'g' => Pax::check_global(&self.record(&block)?)?,
                _ => return self.entry(&block, extra).map(Some),
            }
        }
    }

    /// How much of the present file is still to be read.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Reads content of the present file; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        match self.input.read(&mut buffer[..most])? {
            0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            read => {
                self.left -= read as u64;
                Ok(read)
            }
        }
    }

    fn entry(&mut self, block: &Block, extra: Extra) -> Result<Entry> {
        let pax = extra.pax.unwrap_or_default();
        let path = one(extra.path, pax.path)?.unwrap_or_else(|| block.path());
        let link = one(extra.link, pax.link)?.unwrap_or_else(|| block.link());
        let size = pax.size.map_or_else(|| block.size(), Ok)?;
        let normal = self.normal(&path)?;
        let kind = match block.kind() {
            b'5' => Kind::Directory,
            // The oldest tars mark a directory by its slash alone.
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink(self.normal(&link)?),
            b'2' => Kind::Symlink(target(&normal, link)?),
            b'S' => return Err(ArchiveError::invalid("sparse entries are not supported")),
            b'3' | b'4' | b'6' => Kind::Special,
            _ => return Err(ArchiveError::unsafe_at(&normal, "is of a kind that no workspace holds")),
        };
        if !matches!(kind, Kind::File) && size != 0 {
            return Err(ArchiveError::invalid("an entry other than a file has content"));
        }
        if normal.is_empty() && !matches!(kind, Kind::Directory) {
            return Err(ArchiveError::unsafe_at(&path, "stands for the root and is not a directory"));
        }
        self.spend(size)?;
        self.left = size;
        self.padding = padding(size);
        let mtime = pax.mtime.map_or_else(|| block.mtime(), Ok)?;
        Ok(Entry { path: normal, kind, mode: block.mode()?, mtime })
    }

    /// Leaves the content of the present file behind.
    fn pass(&mut self) -> Result<()> {
        let mut scrap = [0; 8192];
        while self.read(&mut scrap)? > 0 {}
        let padding = std::mem::take(&mut self.padding);
        Ok(self.input.read_exact(&mut scrap[..padding])?)
    }

    /// The next header; `None` at the end marker.
    fn block(&mut self) -> Result<Option<Block>> {
        let mut bytes = [0; BLOCK];
        self.input.read_exact(&mut bytes)?;
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        self.headers += 1;
        // An entry has three extension headers at most; only global ones could go on forever.
        if self.headers > self.limits.entries.saturating_mul(4) {
            return Err(ArchiveError::limit("the archive has too many headers"));
        }
        Block::check(&bytes).map(Some)
    }

    /// Reads the rest after the first zero block: another one, then zeros alone.
    fn end(&mut self) -> Result<()> {
        let mut scrap = [0; 8192];
        self.input.read_exact(&mut scrap[..BLOCK])?;
        let mut total = 0;
        let mut read = BLOCK;
        while read > 0 {
            if scrap[..read].iter().any(|&byte| byte != 0) {
                return Err(ArchiveError::invalid("something follows the end of the archive"));
            }
            total += read as u64;
            if total > TRAILER_BYTES {
                return Err(ArchiveError::limit("too many zeros follow the end of the archive"));
            }
            read = self.input.read(&mut scrap)?;
        }
        Ok(())
    }

    fn record(&mut self, block: &Block) -> Result<Vec<u8>> {
        let size = block.size()?;
        if size > RECORD_BYTES {
            return Err(ArchiveError::limit("a long name or extended header is too large"));
        }
        self.spend(size)?;
        let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
        self.input.read_exact(&mut data)?;
        self.input.read_exact(&mut [0; BLOCK][..padding(size)])?;
        Ok(data)
    }

    fn name(&mut self, block: &Block) -> Result<Vec<u8>> {
        let mut name = self.record(block)?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn spend(&mut self, size: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.unpacked_bytes {
            return Err(ArchiveError::limit(format!("the archive unpacks to more than {} bytes", self.limits.unpacked_bytes)));
        }
        Ok(())
    }

    fn normal(&self, raw: &[u8]) -> Result<Vec<u8>> {
        if raw.is_empty() {
            return Err(ArchiveError::invalid("an entry has no name"));
        }
        if raw[0] == b'/' {
            return Err(ArchiveError::unsafe_at(raw, "is an absolute path"));
        }
        if raw.contains(&0) {
            return Err(ArchiveError::unsafe_at(raw, "has a NUL in it"));
        }
        let mut path = Vec::with_capacity(raw.len());
        for name in raw.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            if name == b".." {
                return Err(ArchiveError::unsafe_at(raw, "climbs out of its directory"));
            }
            if name.len() > NAME_BYTES {
                return Err(ArchiveError::limit(format!("a name has more than {NAME_BYTES} bytes")));
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        if path.len() > self.limits.path_bytes {
            return Err(ArchiveError::limit(format!("a path has more than {} bytes", self.limits.path_bytes)));
        }
        Ok(path)
    }
}

fn target(path: &[u8], link: Vec<u8>) -> Result<Vec<u8>> {
    match link.len() {
        0 => Err(ArchiveError::invalid("a symbolic link has no target")),
        length if length > TARGET_BYTES => Err(ArchiveError::limit("a symbolic link's target is too long")),
        _ if link.contains(&0) => Err(ArchiveError::unsafe_at(path, "points at a name with a NUL in it")),
        _ => Ok(link),
    }
}

/// Says something about the next entry that nothing has said before.
fn once<T>(slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(twice()),
    }
}

/// At most one of two ways to say the same.
fn one<T>(first: Option<T>, second: Option<T>) -> Result<Option<T>> {
    if first.is_some() && second.is_some() { Err(twice()) } else { Ok(first.or(second)) }
}

/// Readers differ on which one counts, so an archive could be two things at once.
fn twice() -> ArchiveError {
    ArchiveError::invalid("two headers describe the same entry")
}
