//! Whole directories, out and in, as tars that the sandbox packs and unpacks, piece by piece.

use std::fmt::Write as _;
use std::io;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;

use super::Plugin;
use super::files::PIECE;
use super::hand::{SENTINEL, done, undone};
use crate::archive::relay::{self, Standing, Standings};
use crate::archive::{self, ArchiveCode, ArchiveError, Exclude, Limits, Owner};
use crate::id;
use crate::provider::spool::Spool;
use crate::provider::{ByteStream, FileKind, Kind, ProviderError, Result, TreeRead, WriteMode, stream};

fn refused(error: ArchiveError) -> ProviderError {
    let (kind, message) = match error.code {
        ArchiveCode::Unsafe => (Kind::Path, "the tar leads out of the workspace"),
        ArchiveCode::Invalid => (Kind::Invalid, "the tar is malformed"),
        ArchiveCode::Limit => (Kind::Invalid, "the tar is larger than allowed"),
        ArchiveCode::Full => (Kind::Full, "the disk is full"),
        ArchiveCode::HashMismatch | ArchiveCode::Missing | ArchiveCode::Storage => (Kind::Transient, "the disk failed"),
    };
    ProviderError::new(kind, message).because(error)
}

fn in_the_way(error: ProviderError) -> ProviderError {
    match error.kind {
        Kind::Invalid => ProviderError::new(Kind::IsADirectory, "a directory is in the way of an entry").because(error),
        _ => error,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> archive::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(refused),
        Err(e) => Err(ProviderError::new(Kind::Indeterminate, "the work broke off").because(e)),
    }
}

impl Plugin {
    /// A directory as a tar, without what Berth knows the workspace by.
    pub(super) async fn read_directory(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        let (name, below) = (format!("pack-{}", id::new()), self.below(path)?);
        let said = self.hand(provider_ref, "pack", &[&name, &below], None).await;
        let size = said.and_then(|said| said.number().ok_or_else(|| done(&said).err().unwrap_or_else(undone)));
        let size = match size {
            Ok(size) => size,
            Err(error) => {
                self.drop_ours(provider_ref, &name).await;
                return Err(error);
            }
        };
        let (mut writer, tar) = stream::channel();
        let (count, skipped) = oneshot::channel();
        let ours = below.is_empty().then(|| format!("/{SENTINEL}"));
        let exclude: Vec<String> = exclude.iter().cloned().chain(ours).collect();
        let (plugin, provider_ref) = (self.clone(), provider_ref.to_owned());
        self.0.worker.tasks.spawn(async move {
            let (fetched, packed) = tokio::io::duplex(PIECE);
            let fetching = async {
                let whole = plugin.take(&provider_ref, &name, size, fetched).await;
                plugin.drop_ours(&provider_ref, &name).await;
                whole
            };
            let (feeding, mut input) = stream::feed(Box::pin(packed));
            let passing = blocking(move || {
                let relayed = relay::outward(&mut input, &exclude, &mut writer)?;
                if !relayed.left.is_empty() {
                    return Err(ArchiveError::invalid("a hard link's first name is excluded"));
                }
                relay::end(&mut writer)?;
                Ok((writer, relayed.skipped))
            });
            let (whole, _, passed) = tokio::join!(fetching, feeding, passing);
            // What breaks off drops the writer, which the reader sees as an error.
            if let (Ok(()), Ok((writer, skipped))) = (whole, passed) {
                let _ = count.send(skipped);
                let _ = blocking(move || Ok(writer.finish()?)).await;
            }
        });
        Ok(TreeRead { tar, skipped })
    }

    /// Fetches what the sandbox has beside its workspace.
    async fn take(&self, provider_ref: &str, name: &str, size: u64, mut to: DuplexStream) -> Result<()> {
        let mut at = 0;
        while at < size {
            let said = self.hand(provider_ref, "take", &[name, &(at + 1).to_string(), &PIECE.to_string()], None).await?;
            done(&said)?;
            let piece = said.bytes()?;
            if piece.is_empty() {
                return Err(undone());
            }
            at += u64::try_from(piece.len()).unwrap_or(u64::MAX);
            // A reader that has the end marker leaves.
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Lays a tar over a directory, or makes the directory exactly the tar.
    pub(super) async fn write_directory(
        &self,
        provider_ref: &str,
        grant_seq: i64,
        path: &str,
        tar: ByteStream,
        mode: WriteMode,
    ) -> Result<()> {
        let below = self.below(path)?;
        // Judged as a whole before anything changes.
        let mut input = Spool::fill(tar, &self.0.worker.scratch).await?.blocking()?;
        let mut input = blocking(move || {
            archive::digest(&mut input, &Limits::default())?;
            input.rewind()?;
            Ok(input)
        })
        .await?;
        let mut standing = match mode {
            WriteMode::Merge => self.standing(provider_ref, &below).await?,
            WriteMode::Replace => Standings::new(),
        };
        if mode == WriteMode::Merge {
            let (checked, stands, links) = blocking(move || {
                relay::inward(&mut input, b"", Owner::default(), &standing, &mut io::sink())?;
                input.rewind()?;
                let links = relay::in_place_of_directories(&mut input, &standing)?;
                input.rewind()?;
                Ok((input, standing, links))
            })
            .await
            .map_err(in_the_way)?;
            (input, standing) = (checked, stands);
            for link in links {
                // A tar's own program may follow a link where the tar has a directory.
                let link = String::from_utf8(link).map_err(|_| ProviderError::new(Kind::Invalid, "a link's name is not UTF-8"))?;
                let at = if below.is_empty() { link } else { format!("{below}/{link}") };
                done(&self.change(provider_ref, grant_seq, "remove", &[&at, "one"]).await?)?;
            }
        }
        let name = format!("unpack-{}", id::new());
        let (mut writer, relayed) = stream::channel();
        let passing = blocking(move || {
            relay::inward(&mut input, b"", Owner::default(), &standing, &mut writer)?;
            relay::end(&mut writer)?;
            Ok(writer.finish()?)
        });
        let (given, passed) = tokio::join!(self.give(provider_ref, &name, relayed), passing);
        let how = if mode == WriteMode::Replace { "replace" } else { "merge" };
        let laid = match given.and(passed) {
            Ok(()) => self.change(provider_ref, grant_seq, "unpack", &[&name, how, &below]).await.and_then(|said| done(&said)),
            failed => failed,
        };
        if laid.is_err() {
            self.drop_ours(provider_ref, &name).await;
        }
        laid
    }

    /// What stands in a directory; nothing in one that is to be made.
    async fn standing(&self, provider_ref: &str, below: &str) -> Result<Standings> {
        let walked = match self.walk(provider_ref, below, true).await {
            Err(error) if error.kind == Kind::FileNotFound => Vec::new(),
            walked => walked?,
        };
        let kind = |kind| if kind == FileKind::Directory { Standing::Directory } else { Standing::Other };
        Ok(walked.into_iter().map(|record| (record.entry.path, kind(record.entry.kind))).collect())
    }

    /// A digest of everything that a change would touch.
    pub(super) async fn stamp(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        let exclude = Exclude::new(exclude);
        let out = |path: &[u8]| {
            let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
            ends.any(|end| exclude.matches(&path[..end]))
        };
        let mut sum = Sha256::new();
        for record in self.walk(provider_ref, "", true).await? {
            let path = &record.entry.path;
            if matches!(record.entry.kind, FileKind::Other) || out(path) {
                continue;
            }
            let mut head = String::new();
            // Writing to a string cannot fail.
            let _ = write!(head, "{} {} ", path.len(), record.stamp.len());
            sum.update(head);
            sum.update(path);
            sum.update(&record.stamp);
        }
        Ok(hex::encode(sum.finalize()))
    }
}
