//! Reads what Berth's hand writes about files: names are bytes, so each is between marks that no name can hold.

use std::collections::HashMap;

use super::hand::undone;
use crate::clock::Time;
use crate::provider::{FileEntry, FileKind, Result};

/// An entry with everything about it that a change would touch.
pub(super) struct Record {
    pub(super) entry: FileEntry,
    pub(super) stamp: String,
}

/// Reads `mode size seconds …` about this path.
pub(super) fn entry(fields: &str, path: Vec<u8>) -> Option<FileEntry> {
    let mut fields = fields.split_ascii_whitespace();
    let mode = u32::from_str_radix(fields.next()?, 16).ok()?;
    let size = fields.next()?.parse().ok()?;
    let seconds: i64 = fields.next()?.parse().ok()?;
    let kind = match mode & 0o170_000 {
        0o100_000 => FileKind::File,
        0o040_000 => FileKind::Directory,
        0o120_000 => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = if kind == FileKind::File { size } else { 0 };
    let modified_at = Some(Time(seconds.saturating_mul(1000)));
    Some(FileEntry { path, kind, size, mode: mode & 0o7777, modified_at, link_target: None })
}

/// Reads `mark fields mark name` for each entry, a line of two marks, and `mark name mark target` for each link.
pub(super) fn records(bytes: &[u8]) -> Result<Vec<Record>> {
    let read = || {
        let first = bytes.iter().position(|byte| *byte == b' ' || *byte == b'\n')?;
        // With nothing before it, the line of two marks is the first.
        let mark = if bytes.get(first) == Some(&b'\n') { &bytes[..first / 2] } else { &bytes[..first] };
        let divider = [mark, mark, b"\n"].concat();
        let middle = bytes.windows(divider.len()).position(|window| window == divider)?;
        let mut found = Vec::new();
        for (fields, name) in pairs(&bytes[..middle], mark)? {
            let fields = std::str::from_utf8(fields).ok()?;
            let path = name.strip_prefix(b"./").unwrap_or(name).to_vec();
            found.push(Record { entry: entry(fields, path)?, stamp: fields.to_owned() });
        }
        let strip = |name: &'_ [u8]| name.strip_prefix(b"./").unwrap_or(name).to_vec();
        let links = pairs(&bytes[middle + divider.len()..], mark)?;
        let mut links: HashMap<Vec<u8>, &[u8]> = links.into_iter().map(|(name, target)| (strip(name), target)).collect();
        for record in &mut found {
            record.entry.link_target = links.remove(&record.entry.path).map(<[u8]>::to_vec);
        }
        Some(found)
    };
    read().ok_or_else(undone)
}

/// `mark first mark second\n`, again and again.
fn pairs<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<Vec<(&'a [u8], &'a [u8])>> {
    let mark = [mark, b" "].concat();
    let (mut at, mut from) = (Vec::new(), 0);
    while let Some(found) = bytes[from..].windows(mark.len()).position(|window| window == mark) {
        at.push(from + found);
        from += found + mark.len();
    }
    at.push(bytes.len());
    let piece = |index: usize| bytes.get(at[index] + mark.len()..*at.get(index + 1)?);
    let mut found = Vec::new();
    for index in (0..at.len() - 1).step_by(2) {
        found.push((piece(index)?.strip_suffix(b" ")?, piece(index + 1)?.strip_suffix(b"\n")?));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_whatever_the_names_are() {
        let listing = b"n- 81a4 5 100 7 a b c n- ./f\nx\nn- a1ff 3 100 8 a n- ./l\nn- 41ed 9 100 9 a n- ./d\nn-n-\nn- ./l n- to\nthere\n";
        let found = records(listing).unwrap();
        let told: Vec<_> = found.iter().map(|r| (r.entry.path.as_slice(), r.entry.kind, r.entry.size, r.entry.mode)).collect();
        assert_eq!(
            told,
            [(&b"f\nx"[..], FileKind::File, 5, 0o644), (b"l", FileKind::Symlink, 0, 0o777), (b"d", FileKind::Directory, 0, 0o755)]
        );
        assert_eq!(found[1].entry.link_target.as_deref(), Some(&b"to\nthere"[..]));
        assert!(records(b"n-n-\n").unwrap().is_empty());
        assert!(records(b"").is_err() && records(b"garbage").is_err());
    }

    #[test]
    fn many_links_take_no_longer_than_they_are_many() {
        let name = |n: u32| format!("n- ./a-directory-of-links/{n:08}");
        let entries = (0..30_000).map(|n| format!("n- a1ff 3 100 8 a {}\n", name(n))).collect::<Vec<_>>().concat();
        let links = (0..30_000).map(|n| format!("{} n- to\n", name(n))).collect::<Vec<_>>().concat();
        let listing = format!("{entries}n-n-\n{links}");
        let begun = std::time::Instant::now();
        let found = records(listing.as_bytes()).unwrap();
        assert!(found.len() == 30_000 && found.iter().all(|record| record.entry.link_target.as_deref() == Some(b"to")));
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}
