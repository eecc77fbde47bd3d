//! The 512-byte header of a tar entry, read with suspicion and written plainly.

use std::io::Write;

use tar::Header;

use super::{ArchiveError, Result};

/// The unit of a tar.
pub(super) const BLOCK: usize = 512;

/// When an entry's content last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mtime {
    pub(super) seconds: i64,
    pub(super) nanos: i64,
}

impl Mtime {
    /// A moment between the years 1426 and 9999, so that every file system takes it.
    pub(super) fn new(seconds: i64, nanos: i64) -> Self {
        Self { seconds: seconds.clamp(-(1 << 34), 253_402_300_799), nanos: nanos.clamp(0, 999_999_999) }
    }
}

/// A header block whose checksum is right.
pub(super) struct Block(Header);

impl Block {
    /// Checks a block that is not all zeros.
    pub(super) fn check(bytes: &[u8; BLOCK]) -> Result<Self> {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(bytes);
        // The checksum is taken with its own field as eight spaces.
        let sum: i64 = bytes.iter().enumerate().map(|(at, &byte)| i64::from(if (148..156).contains(&at) { b' ' } else { byte })).sum();
        match number(&header.as_old().cksum) {
            Some(told) if told == sum => Ok(Self(header)),
            _ => Err(ArchiveError::invalid("this is not a tar, or a header is damaged")),
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0.as_old().linkflag[0]
    }

    pub(super) fn path(&self) -> Vec<u8> {
        self.0.path_bytes().into_owned()
    }

    pub(super) fn link(&self) -> Vec<u8> {
        let field = &self.0.as_old().linkname;
        field[..field.iter().position(|&byte| byte == 0).unwrap_or(field.len())].to_vec()
    }

    pub(super) fn size(&self) -> Result<u64> {
        let size = number(&self.0.as_old().size).and_then(|n| u64::try_from(n).ok());
        size.ok_or_else(|| ArchiveError::limit("an entry's size is negative or overflows"))
    }

    pub(super) fn mode(&self) -> Result<u16> {
        let mode = number(&self.0.as_old().mode).ok_or_else(|| ArchiveError::invalid("an entry's mode is not a number"))?;
        Ok(u16::try_from(mode & 0o7777).unwrap_or(0))
    }

    pub(super) fn mtime(&self) -> Result<Mtime> {
        let seconds = number(&self.0.as_old().mtime).ok_or_else(|| ArchiveError::invalid("an entry's time is not a number"))?;
        Ok(Mtime::new(seconds, 0))
    }
}

/// A numeric field: octal text, or two's complement when the first bit is set. `None` when it is neither or overflows.
fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        let sign = if first & 0x40 == 0 { i128::from(first & 0x7f) } else { i128::from(first) - 0x100 };
        return field[1..].iter().fold(sign, |sum, &byte| (sum << 8) | i128::from(byte)).try_into().ok();
    }
    let text = &field[..field.iter().position(|&byte| byte == 0).unwrap_or(field.len())];
    text.trim_ascii().iter().try_fold(0_i64, |sum, &digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

/// What a header is written from.
pub(super) struct Plain<'a> {
    pub(super) kind: u8,
    /// Without a trailing slash.
    pub(super) path: &'a [u8],
    /// Empty unless the entry is a link.
    pub(super) link: &'a [u8],
    pub(super) mode: u16,
    pub(super) size: u64,
    pub(super) seconds: i64,
    pub(super) owner: Owner,
}

/// Whom an entry belongs to. Berth's own archives belong to nobody, which is written as root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

impl Plain<'_> {
    /// Writes the header, with GNU long-name records before it where a name does not fit.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut name = self.path.to_vec();
        if self.kind == b'5' {
            name.push(b'/');
        }
        long(out, b'L', &name)?;
        long(out, b'K', self.link)?;
        let mut header = Header::new_gnu();
        fill(&mut header.as_old_mut().name, &name);
        fill(&mut header.as_old_mut().linkname, self.link);
        header.set_mode(self.mode.into());
        header.set_size(self.size);
        header.set_mtime(u64::try_from(self.seconds).unwrap_or(0));
        finish(&mut header, self.kind, self.owner, out)
    }
}

/// Writes a record that carries a name longer than its field.
fn long(out: &mut dyn Write, kind: u8, name: &[u8]) -> Result<()> {
    if name.len() <= 100 {
        return Ok(());
    }
    let mut header = Header::new_gnu();
    fill(&mut header.as_old_mut().name, b"././@LongLink");
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(name.len() as u64 + 1);
    finish(&mut header, kind, Owner::default(), out)?;
    out.write_all(name)?;
    out.write_all(&[0])?;
    Ok(pad(out, name.len() as u64 + 1)?)
}

fn finish(header: &mut Header, kind: u8, owner: Owner, out: &mut dyn Write) -> Result<()> {
    header.as_old_mut().linkflag = [kind];
    header.set_uid(owner.uid.into());
    header.set_gid(owner.gid.into());
    header.set_cksum();
    Ok(out.write_all(header.as_bytes())?)
}

fn fill(field: &mut [u8; 100], bytes: &[u8]) {
    let length = bytes.len().min(field.len());
    field[..length].copy_from_slice(&bytes[..length]);
}

/// Zeros from the end of `size` bytes of content to the next block.
pub(super) fn pad(out: &mut dyn Write, size: u64) -> std::io::Result<()> {
    out.write_all(&[0; BLOCK][..padding(size)])
}

/// How many bytes of padding follow `size` bytes of content.
pub(super) fn padding(size: u64) -> usize {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    (BLOCK - over) % BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_two_s_complement() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  17 \0\0\0"), Some(15));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000648\0"), None);
        assert_eq!(number(b"-1\0\0\0\0\0\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn content_is_padded_to_whole_blocks() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
