//! What the wrapper of a command says within the command's own output: a first line, and a last one on each stream.

use bytes::{Bytes, BytesMut};

/// Finds the last word in one stream, and passes on everything before it.
#[derive(Debug)]
pub(super) struct LastWord {
    /// What the word begins with: a zero byte and a name that was made for this command alone.
    mark: Vec<u8>,
    /// The end of what was seen, as long as it may be the beginning of the word.
    held: BytesMut,
}

impl LastWord {
    pub(super) fn new(nonce: &str) -> Self {
        Self { mark: [b"\0", nonce.as_bytes()].concat(), held: BytesMut::new() }
    }

    /// Takes more of the stream. Returns what is surely output, and the rest of the word's line once it is whole.
    pub(super) fn pass(&mut self, bytes: Bytes) -> (Bytes, Option<String>) {
        if self.held.is_empty() && !bytes.contains(&0) {
            return (bytes, None);
        }
        self.held.extend_from_slice(&bytes);
        let zeros = self.held.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
        for at in zeros {
            let rest = &self.held[at..];
            if let Some(line) = rest.strip_prefix(self.mark.as_slice()) {
                let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
                    return (self.held.split_to(at).freeze(), None);
                };
                let word = String::from_utf8_lossy(&line[..end]).trim().to_owned();
                let output = self.held.split_to(at).freeze();
                return (output, Some(word));
            }
            if self.mark.starts_with(rest) {
                return (self.held.split_to(at).freeze(), None);
            }
        }
        (self.held.split().freeze(), None)
    }

    /// What was held back although nothing followed: output after all.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// What the wrapper said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstWord {
    /// The command runs.
    Started,
    /// The fence is higher than the grant.
    Fenced,
    /// It could not leave its name where the kill looks for it, and started nothing.
    Unregistered,
}

impl FirstWord {
    /// Reads the first line; `None` when this is not the wrapper's.
    pub(super) fn read(line: &[u8], nonce: &str) -> Option<Self> {
        match std::str::from_utf8(line).ok()?.strip_prefix(nonce)?.trim() {
            "started" => Some(Self::Started),
            "fenced" => Some(Self::Fenced),
            "unregistered" => Some(Self::Unregistered),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_found_wherever_it_is_cut() {
        let sent = b"a\0b\0\0nonc\0nonce 0 1\nlate";
        for step in 1..sent.len() {
            let (mut last, mut output, mut word) = (LastWord::new("nonce"), Vec::new(), None);
            for piece in sent.chunks(step) {
                let (out, found) = last.pass(Bytes::copy_from_slice(piece));
                output.extend_from_slice(&out);
                if found.is_some() {
                    word = found;
                    break;
                }
            }
            assert_eq!((output.as_slice(), word.as_deref()), (b"a\0b\0\0nonc".as_slice(), Some("0 1")), "in pieces of {step}");
        }
    }

    #[test]
    fn what_only_looked_like_it_is_output() {
        let mut last = LastWord::new("nonce");
        let (out, word) = last.pass(Bytes::from_static(b"x\0non"));
        assert_eq!((out.as_ref(), word), (b"x".as_slice(), None));
        assert_eq!(last.rest().as_ref(), b"\0non");
    }

    #[test]
    fn first_words() {
        assert_eq!(FirstWord::read(b"n started", "n"), Some(FirstWord::Started));
        assert_eq!(FirstWord::read(b"n fenced", "n"), Some(FirstWord::Fenced));
        assert_eq!(FirstWord::read(b"started", "n"), None);
    }
}
