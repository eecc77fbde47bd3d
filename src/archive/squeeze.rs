//! The compressed form of an archive: one way to make it, one guarded way to open it.

use std::cell::Cell;
use std::io::{self, BufReader, Cursor, Read, Write};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};
use zstd::stream::{read::Decoder, write::Encoder};

use super::{ArchiveCode, ArchiveError, Limits, Result, Tree, digest};

/// Fast enough to keep up with a disk; more would save little of what workspaces hold.
const LEVEL: i32 = 1;
const WORKERS: u32 = 2;
/// What a frame may ask of memory: 128 MiB.
const WINDOW_LOG: u32 = 27;
/// The ratio is judged from here on, since a small archive is mostly padding.
const RATIO_FROM: u64 = 1 << 20;
/// What an entry may cost beyond its content: headers and long names of the path and the link.
const ENTRY_OVERHEAD: u64 = 16 << 10;

/// Counts and hashes what passes.
pub(super) struct Sum<W> {
    out: W,
    hash: Sha256,
    pub(super) size: u64,
}

impl<W> Sum<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, hash: Sha256::new(), size: 0 }
    }

    /// The SHA-256 in hexadecimal.
    pub(super) fn hex(self) -> String {
        hex::encode(self.hash.finalize())
    }
}

impl<W: Write> Write for Sum<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What came of compressing.
pub(super) struct Squeezed {
    pub(super) sha256: String,
    pub(super) size: u64,
    pub(super) tree: Tree,
}

/// Checks a tar while compressing it.
pub(super) fn squeeze(tar: &mut dyn Read, out: impl Write, limits: &Limits) -> Result<Squeezed> {
    let mut encoder = Encoder::new(Sum::new(out), LEVEL)?;
    encoder.multithread(WORKERS)?;
    encoder.include_checksum(true)?;
    let tree = digest(&mut Tee { from: tar, to: &mut encoder }, limits)?;
    let mut sum = encoder.finish()?;
    sum.flush()?;
    Ok(Squeezed { size: sum.size, sha256: sum.hex(), tree })
}

/// Writes down everything that is read.
struct Tee<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.to.write_all(&buffer[..read])?;
        Ok(read)
    }
}

/// A tar that somebody sent, compressed or not, uncompressed under limits.
pub(super) fn open_upload<'a>(mut body: impl Read + 'a, limits: &Limits) -> Result<Box<dyn Read + 'a>> {
    let mut start = Vec::new();
    body.by_ref().take(4).read_to_end(&mut start)?;
    let body = Cursor::new(start.clone()).chain(body);
    Ok(match start.as_slice() {
        // A frame, or one to be skipped, as parallel compressors put first.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            Box::new(Expand::new(body, limits, Some(limits.ratio), ArchiveCode::Invalid)?)
        }
        [0x1f, 0x8b, ..] => Box::new(Expand::gzip(body, limits)),
        _ => Box::new(body),
    })
}

/// A tar that this module compressed. Its ratio is not judged: a workspace with one large empty file must come back.
pub(super) fn open_stored<'a>(body: impl Read + 'a, limits: &Limits) -> Result<Box<dyn Read + 'a>> {
    Ok(Box::new(Expand::new(body, limits, None, ArchiveCode::HashMismatch)?))
}

/// Uncompresses within bounds.
struct Expand<'a> {
    decoder: Box<dyn Read + 'a>,
    seen: Rc<Seen>,
    out: u64,
    most: u64,
    ratio: Option<u64>,
    /// What damaged compression means.
    blame: ArchiveCode,
}

impl<'a> Expand<'a> {
    fn new(body: impl Read + 'a, limits: &Limits, ratio: Option<u64>, blame: ArchiveCode) -> Result<Self> {
        let (body, seen) = counted(body);
        let mut decoder = Decoder::with_buffer(body)?;
        decoder.window_log_max(WINDOW_LOG)?;
        Ok(Self { decoder: Box::new(decoder), seen, out: 0, most: most(limits), ratio, blame })
    }

    fn gzip(body: impl Read + 'a, limits: &Limits) -> Self {
        let (body, seen) = counted(body);
        let decoder = Box::new(MultiGzDecoder::new(body));
        Self { decoder, seen, out: 0, most: most(limits), ratio: Some(limits.ratio), blame: ArchiveCode::Invalid }
    }
}

fn most(limits: &Limits) -> u64 {
    limits.unpacked_bytes.saturating_add(limits.entries.saturating_mul(ENTRY_OVERHEAD))
}

impl Read for Expand<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.decoder.read(buffer) {
            Err(error) if self.seen.failed.get() || error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(ArchiveError::new(self.blame, format!("the compression is damaged: {error}")).into()),
            Ok(read) => {
                self.out = self.out.saturating_add(read as u64);
                if self.out > self.most {
                    return Err(ArchiveError::limit("the archive unpacks to more than its limits allow").into());
                }
                match self.ratio {
                    Some(ratio) if self.out > RATIO_FROM && self.out > self.seen.count.get().saturating_mul(ratio) => {
                        Err(ArchiveError::limit(format!("the archive unpacks to more than {ratio} times its size")).into())
                    }
                    _ => Ok(read),
                }
            }
        }
    }
}

/// How much was read of a body, and whether reading itself failed.
#[derive(Default)]
struct Seen {
    count: Cell<u64>,
    failed: Cell<bool>,
}

struct Counted<R> {
    body: R,
    seen: Rc<Seen>,
}

fn counted<R: Read>(body: R) -> (BufReader<Counted<R>>, Rc<Seen>) {
    let seen = Rc::new(Seen::default());
    (BufReader::with_capacity(128 << 10, Counted { body, seen: Rc::clone(&seen) }), seen)
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.body.read(buffer);
        match &read {
            Ok(read) => self.seen.count.set(self.seen.count.get() + *read as u64),
            Err(error) => self.seen.failed.set(self.seen.failed.get() || error.kind() != io::ErrorKind::Interrupted),
        }
        read
    }
}
