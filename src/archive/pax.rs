//! Reads the records of a PAX extended header, whose values may hold any byte, newlines too.

use super::header::Mtime;
use super::{ArchiveError, Result};

/// What one PAX header says about the entry after it.
#[derive(Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<Mtime>,
}

impl Pax {
    /// Reads a header of one entry.
    pub(super) fn parse(mut data: &[u8]) -> Result<Self> {
        let mut pax = Self::default();
        while let Some((key, value)) = record(&mut data)? {
            // An empty value takes an earlier record back.
            let given = (!value.is_empty()).then(|| value.to_vec());
            match key {
                b"path" => pax.path = given,
                b"linkpath" => pax.link = given,
                b"size" => pax.size = given.map(|text| size(&text)).transpose()?,
                b"mtime" => pax.mtime = given.map(|text| mtime(&text)).transpose()?,
                _ if key.starts_with(b"GNU.sparse.") => return Err(ArchiveError::invalid("sparse entries are not supported")),
                _ => {}
            }
        }
        Ok(pax)
    }

    /// Checks a header that is meant for all later entries. What it says is ignored, so it must say nothing that another
    /// reader would act upon.
    pub(super) fn check_global(mut data: &[u8]) -> Result<()> {
        while let Some((key, _)) = record(&mut data)? {
            if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
                return Err(ArchiveError::invalid("a global header names or sizes every entry"));
            }
        }
        Ok(())
    }
}

/// Takes the next `length key=value\n`, where the length counts all of it.
fn record<'a>(data: &mut &'a [u8]) -> Result<Option<(&'a [u8], &'a [u8])>> {
    let bad = || ArchiveError::invalid("an extended header is malformed");
    if data.is_empty() {
        return Ok(None);
    }
    let space = data.iter().take(8).position(|&byte| byte == b' ').ok_or_else(bad)?;
    let length = decimal(&data[..space]).and_then(|n| usize::try_from(n).ok()).ok_or_else(bad)?;
    let whole = data.get(..length).ok_or_else(bad)?;
    let body = whole.get(space + 1..).and_then(|rest| rest.strip_suffix(b"\n")).ok_or_else(bad)?;
    let equals = body.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
    *data = &data[length..];
    Ok(Some((&body[..equals], &body[equals + 1..])))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

fn size(text: &[u8]) -> Result<u64> {
    decimal(text).ok_or_else(|| ArchiveError::limit("an extended header gives a size that is none"))
}

/// Seconds with an optional fraction, perhaps negative; the fraction of a negative time counts towards the past.
fn mtime(text: &[u8]) -> Result<Mtime> {
    let bad = || ArchiveError::invalid("an extended header gives a time that is none");
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let dot = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let seconds = decimal(&text[..dot]).and_then(|n| i64::try_from(n).ok()).ok_or_else(bad)?;
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    let digits = fraction.iter().map(|digit| i64::from(digit - b'0')).chain(std::iter::repeat(0));
    let nanos = digits.take(9).fold(0, |sum, digit| sum * 10 + digit);
    Ok(match (negative, nanos) {
        (false, _) => Mtime::new(seconds, nanos),
        (true, 0) => Mtime::new(-seconds, 0),
        (true, _) => Mtime::new(-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_newlines_and_any_byte() {
        let pax = Pax::parse(b"15 path=a\nb\xffcd\n22 mtime=12.500000001\n").unwrap();
        assert_eq!(pax.path.unwrap(), b"a\nb\xffcd");
        assert_eq!(pax.mtime.unwrap(), Mtime::new(12, 500_000_001));
    }

    #[test]
    fn times_before_the_epoch_keep_their_fraction() {
        assert_eq!(mtime(b"-1.25").unwrap(), Mtime::new(-2, 750_000_000));
        assert_eq!(mtime(b"-3").unwrap(), Mtime::new(-3, 0));
        assert!(mtime(b"-").is_err() && mtime(b"1.x").is_err() && mtime(b"9999999999999999999999").is_err());
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in [&b"x"[..], b"99 path=a\n", b"5 ab\n", b"0 a=b\n", b"3 a=b\n", b" 7 a=b\n", b"+8 a=bc\n", b"7 a=bcd"] {
            assert!(Pax::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Pax::parse(b"22 GNU.sparse.major=1\n").is_err());
        assert!(Pax::check_global(b"10 path=x\n").is_err());
        assert!(Pax::check_global(b"13 comment=x\n").is_ok());
    }

    #[test]
    fn an_empty_value_takes_the_earlier_one_back() {
        assert!(Pax::parse(b"10 path=x\n").unwrap().path.is_some());
        assert!(Pax::parse(b"10 path=x\n8 path=\n").unwrap().path.is_none());
    }
}
