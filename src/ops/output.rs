//! What is kept of a command's output: the first and the last half of each stream, cut between characters where it is text.

use std::collections::VecDeque;

use crate::model::operation::Output;

/// The most bytes of one character.
const WIDEST: usize = 4;

/// The first and the last half of a stream, within a bound.
pub(super) struct Gathered {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    total: i64,
}

impl Gathered {
    pub(super) fn new(keep: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), half: keep / 2, total: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    pub(super) fn done(self) -> Output {
        let mut kept = self.head;
        let mut tail = Vec::from(self.tail);
        let truncated = i64::try_from(kept.len() + tail.len()).unwrap_or(i64::MAX) < self.total;
        if truncated {
            kept.truncate(whole_characters(&kept));
            let torn = tail.iter().take(WIDEST - 1).take_while(|byte| **byte & 0xc0 == 0x80).count();
            tail.drain(..torn);
        }
        kept.extend(tail);
        Output { kept, total: self.total }
    }
}

/// How many bytes are left when a character that is not whole yet is taken off the end; all of them where it is no text.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(WIDEST);
    let start = (last..bytes.len()).rev().find(|at| bytes[*at] & 0xc0 != 0x80);
    match start {
        Some(start) => match std::str::from_utf8(&bytes[start..]) {
            Err(error) if error.error_len().is_none() => start,
            _ => bytes.len(),
        },
        None => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_half_are_kept() {
        let mut all = Gathered::new(10);
        for chunk in [&b"abc"[..], b"defghij", b"klmnopqrstuvwxyz"] {
            all.add(chunk);
        }
        let output = all.done();
        assert_eq!(output.kept, b"abcdevwxyz");
        assert_eq!(output.total, 26);
        assert!(output.is_truncated());
        let mut small = Gathered::new(10);
        small.add(b"abcdefg");
        assert_eq!(small.done(), Output { kept: b"abcdefg".to_vec(), total: 7 });
    }

    #[test]
    fn text_that_is_cut_stays_text() {
        for keep in 8..40 {
            for text in ["äöü€𝄞".repeat(20), "x€".repeat(40)] {
                let mut all = Gathered::new(keep);
                text.as_bytes().chunks(7).for_each(|chunk| all.add(chunk));
                let output = all.done();
                let kept = std::str::from_utf8(&output.kept).expect("text");
                assert!(output.is_truncated() && kept.len() + 2 * WIDEST > keep, "{keep}: {kept}");
                assert_eq!((kept.chars().next(), kept.chars().last()), (text.chars().next(), text.chars().last()), "{keep}");
            }
        }
        let mut whole = Gathered::new(10);
        whole.add("a€€€".as_bytes());
        assert_eq!(whole.done().kept, "a€€€".as_bytes(), "nothing is cut that was not dropped");
        let mut bytes = Gathered::new(4);
        bytes.add(&[0xff; 9]);
        assert_eq!(bytes.done().kept, [0xff; 4]);
    }
}
