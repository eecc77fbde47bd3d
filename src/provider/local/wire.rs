//! What the server and a shim say to each other.
//!
//! The server writes one order to the shim's descriptor 2 and then only keeps that pipe open: its end is the word to kill.
//! Descriptor 0 is the command's own standard input, which the shim hands on unread. Descriptor 1 carries frames back.

use std::io;
use std::path::PathBuf;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::Decoder;
use uuid::Uuid;

use crate::provider::{ExecExit, Kind};

/// Bytes of output in one frame at most.
pub(super) const CHUNK: usize = 32 * 1024;
/// Bytes of a frame before its payload: type and length.
pub(super) const HEADER: usize = 5;
/// An order larger than this is not one.
const MOST_ORDER: u32 = 16 << 20;

/// What a shim is to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The instance's directory.
    pub(super) instance: PathBuf,
    /// The operation; names the registration.
    pub(super) id: Uuid,
    /// The grant it was admitted under.
    pub(super) grant_seq: i64,
    /// The program that stands between the command and the machine, with its arguments; none where nothing does.
    pub(super) around: Option<Vec<String>>,
    /// The command.
    pub(super) task: Task,
    /// Killed after this span.
    pub(super) timeout_ms: u64,
}

/// A command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// Its words, at least one.
    pub(super) argv: Vec<String>,
    /// Its absolute working directory.
    pub(super) cwd: PathBuf,
    /// Its whole environment.
    pub(super) env: Vec<(String, String)>,
}

/// What a shim says.
#[derive(Debug)]
pub(super) enum Frame {
    /// The command runs.
    Started,
    /// The command was not started and never will be.
    Refused(Refusal),
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// The command is over; nothing but silence follows while descendants linger.
    Exit(ExecExit),
}

/// Why a shim started nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Refusal {
    /// The fence is higher than the grant.
    Fenced,
    /// The instance is not running.
    Stopped,
    /// An operation of this id was started before.
    Repeated,
    /// The working directory is missing.
    NoDirectory,
    /// The machine has no room for another process, or its files cannot be read.
    Unable,
}

impl Refusal {
    /// The refusal in the contract's words.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Fenced => Kind::Fenced,
            Self::Stopped | Self::Repeated => Kind::Refused,
            Self::NoDirectory => Kind::FileNotFound,
            Self::Unable => Kind::Transient,
        }
    }

    /// The refusal in Berth's words.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Fenced => "the sandbox's fence is higher than the command's grant",
            Self::Stopped => "the instance is stopped",
            Self::Repeated => "an operation of this id was started before",
            Self::NoDirectory => "the working directory is missing",
            Self::Unable => "the machine could not start the command",
        }
    }
}

const STARTED: u8 = 0;
const REFUSED: u8 = 1;
/// The frame type of standard output.
pub(super) const STDOUT: u8 = 2;
/// The frame type of standard error.
pub(super) const STDERR: u8 = 3;
const EXIT: u8 = 4;

/// A frame that is no output, as bytes.
pub(super) fn encode(frame: &Frame) -> io::Result<Vec<u8>> {
    let (kind, payload) = match frame {
        Frame::Started => (STARTED, Vec::new()),
        Frame::Refused(why) => (REFUSED, serde_json::to_vec(why)?),
        Frame::Exit(exit) => (EXIT, serde_json::to_vec(exit)?),
        Frame::Stdout(bytes) => (STDOUT, bytes.to_vec()),
        Frame::Stderr(bytes) => (STDERR, bytes.to_vec()),
    };
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(&payload);
    head(&mut bytes, kind, payload.len());
    Ok(bytes)
}

/// Fills in the header of a frame whose payload of `length` bytes stands behind it already.
pub(super) fn head(frame: &mut [u8], kind: u8, length: usize) {
    let mut header = &mut frame[..HEADER];
    header.put_u8(kind);
    header.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Reads frames; what is half read stays in the reader's buffer, so a wait for one may be given up.
pub(super) struct Frames;

impl Decoder for Frames {
    type Item = Frame;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Frame>> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let mut fields = header.as_slice();
        let (kind, length) = (fields.get_u8(), usize::try_from(fields.get_u32()).map_err(io::Error::other)?);
        if length > CHUNK {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        if bytes.len() < HEADER + length {
            bytes.reserve(HEADER + length - bytes.len());
            return Ok(None);
        }
        bytes.advance(HEADER);
        let payload = bytes.split_to(length).freeze();
        Ok(Some(match kind {
            STARTED => Frame::Started,
            REFUSED => Frame::Refused(serde_json::from_slice(&payload)?),
            STDOUT => Frame::Stdout(payload),
            STDERR => Frame::Stderr(payload),
            EXIT => Frame::Exit(serde_json::from_slice(&payload)?),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        }))
    }
}

/// Sends the order.
pub(super) async fn send_order(to: &mut (impl AsyncWrite + Unpin), order: &Order) -> io::Result<()> {
    let bytes = serde_json::to_vec(order)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= MOST_ORDER);
    to.write_u32(length.ok_or(io::ErrorKind::InvalidInput)?).await?;
    to.write_all(&bytes).await
}

/// Receives the order.
pub(super) async fn receive_order(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Order> {
    let length = from.read_u32().await?;
    if length > MOST_ORDER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ExecEnd;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let exit = ExecExit { end: ExecEnd::Signaled(9), process_tree_killed: true, lingering: false };
        let sent = [Frame::Started, Frame::Stdout(vec![0; CHUNK].into()), Frame::Refused(Refusal::Fenced), Frame::Exit(exit)];
        let bytes: Vec<u8> = sent.iter().flat_map(|frame| encode(frame).unwrap()).collect();
        let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
        for piece in bytes.chunks(7) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = Frames.decode(&mut buffer).unwrap() {
                seen.push(format!("{frame:?}"));
            }
        }
        assert_eq!(seen, sent.iter().map(|frame| format!("{frame:?}")).collect::<Vec<_>>());
    }

    #[test]
    fn a_frame_of_nonsense_is_an_error() {
        for nonsense in [[9, 0, 0, 0, 0].as_slice(), &[STDOUT, 255, 0, 0, 0], b"\x04\0\0\0\x02{]"] {
            assert!(Frames.decode(&mut BytesMut::from(nonsense)).is_err());
        }
    }
}
