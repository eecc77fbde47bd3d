//! A tar that somebody sends to a workspace: uncompressed, and judged while it passes, before anything is changed.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio_util::sync::CancellationToken;
use zstd::stream::write::Encoder;

use super::pipe::{Reader, stream};
use super::squeeze::open_upload;
use super::{ArchiveError, ByteStream, Limits, Result, Tree, digest};

/// Fast enough to keep up with a network.
const LEVEL: i32 = 1;

/// How a tar is compressed on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Not at all.
    Tar,
    /// With zstd.
    TarZst,
    /// With gzip.
    TarGz,
}

/// What was found out about a tar that passed; nothing before its stream has ended.
#[derive(Clone, Default)]
pub struct Verdict(Arc<Mutex<Option<Result<Tree>>>>);

impl Verdict {
    /// The tree that it makes, or why it is refused.
    pub fn found(&self) -> Option<Result<Tree>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The tar in a body that is plain or compressed with gzip or zstd, told by its content. Its stream ends only if the tar is whole
/// and safe; otherwise it breaks off, and whoever promises all or nothing has changed nothing.
pub fn incoming(body: ByteStream, limits: Limits, cancel: CancellationToken) -> (ByteStream, Verdict) {
    let verdict = Verdict::default();
    let told = verdict.clone();
    let body = Reader::new(body, cancel);
    let tar = stream(move |out| {
        let judged = judge(body, out, &limits);
        let passed = judged.as_ref().map(|_| ()).map_err(Clone::clone);
        *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(judged);
        passed
    });
    (tar, verdict)
}

fn judge(body: Reader, out: &mut dyn Write, limits: &Limits) -> Result<Tree> {
    let mut tar = open_upload(body, limits)?;
    digest(&mut Copied { from: &mut *tar, to: out }, limits)
}

/// Passes on everything that is read.
struct Copied<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
}

impl Read for Copied<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.to.write_all(&buffer[..read])?;
        Ok(read)
    }
}

/// A tar in the form it is asked for in. Its stream ends only if the tar's own stream did.
pub fn outgoing(tar: ByteStream, format: Format, cancel: CancellationToken) -> ByteStream {
    if format == Format::Tar {
        return tar;
    }
    let mut tar = Reader::new(tar, cancel);
    stream(move |out| {
        let copied = if format == Format::TarZst {
            let mut encoder = Encoder::new(out, LEVEL)?;
            io::copy(&mut tar, &mut encoder).and_then(|_| encoder.finish().map(drop))
        } else {
            let mut encoder = GzEncoder::new(out, Compression::fast());
            io::copy(&mut tar, &mut encoder).and_then(|_| encoder.finish().map(drop))
        };
        copied.map_err(ArchiveError::from)
    })
}
