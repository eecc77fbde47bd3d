//! Output of a command as the engine sends it: frames of standard output and standard error in one stream.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::Decoder;

/// Bytes of a frame before its payload: stream, three zeros, length.
const HEADER: usize = 8;
/// Bytes of a payload that are passed on at once; a frame may be larger, and is then passed on in parts.
const CHUNK: usize = 32 * 1024;

/// Which stream of the command a payload is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Reads frames; what is half read stays in the reader's buffer, so a wait for more may be given up.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// What is still to come of the present frame.
    left: Option<(Stream, usize)>,
}

impl Decoder for Frames {
    type Item = (Stream, Bytes);
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        loop {
            let Some((stream, left)) = self.left else {
                let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
                let stream = match header[0] {
                    1 => Stream::Stdout,
                    2 => Stream::Stderr,
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                self.left = Some((stream, usize::try_from(length).map_err(io::Error::other)?));
                bytes.advance(HEADER);
                continue;
            };
            if left == 0 {
                self.left = None;
                continue;
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let part = bytes.split_to(left.min(bytes.len()).min(CHUNK)).freeze();
            self.left = Some((stream, left - part.len())).filter(|(_, left)| *left > 0);
            return Ok(Some((stream, part)));
        }
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Self::Item>> {
        match self.decode(bytes)? {
            None if self.left.is_some_and(|(_, left)| left > 0) || !bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            frame => Ok(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[stream, 0, 0, 0], length.as_slice(), payload].concat()
    }

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let large = vec![7; 3 * CHUNK + 1];
        let sent = [frame(1, b"out"), frame(2, b""), frame(2, b"err"), frame(1, &large)].concat();
        for step in [1, 7, 4096, sent.len()] {
            let (mut frames, mut buffer) = (Frames::default(), BytesMut::new());
            let (mut out, mut err) = (Vec::new(), Vec::new());
            for piece in sent.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some((stream, bytes)) = frames.decode(&mut buffer).unwrap() {
                    assert!(bytes.len() <= CHUNK);
                    if stream == Stream::Stdout { out.extend_from_slice(&bytes) } else { err.extend_from_slice(&bytes) }
                }
            }
            assert!(frames.decode_eof(&mut buffer).unwrap().is_none());
            assert_eq!((out.len(), &out[..3], err.as_slice()), (3 + large.len(), b"out".as_slice(), b"err".as_slice()));
        }
    }

    #[test]
    fn a_cut_frame_is_no_end_and_nonsense_is_an_error() {
        let cut = &frame(1, b"whole")[..10];
        let (mut frames, mut buffer) = (Frames::default(), BytesMut::from(cut));
        assert!(frames.decode(&mut buffer).unwrap().is_some());
        assert!(frames.decode_eof(&mut buffer).is_err());
        assert!(Frames::default().decode_eof(&mut BytesMut::from(&b"\x01\0"[..])).is_err());
        assert!(Frames::default().decode(&mut BytesMut::from(&b"HTTP/1.1 500"[..])).is_err());
    }
}
