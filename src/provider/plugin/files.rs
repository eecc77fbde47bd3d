//! Files in a plugin's sandbox, by Berth's hand: followed link by link there, and never out of the workspace.

use std::io;

use bytes::Bytes;
use futures_util::stream::try_unfold;
use tokio::io::AsyncReadExt;
use tokio_util::io::StreamReader;

use super::Plugin;
use super::hand::{SENTINEL, decode, done, encode, undone};
use super::listing::{Record, entry, records};
use crate::id;
use crate::provider::spool::Spool;
use crate::provider::{ByteStream, FileEntry, FileRead, Kind, ProviderError, PutOptions, Result};

/// Bytes of one piece on its way.
pub(super) const PIECE: usize = 2 << 20;
const MOST_PATH: usize = 4096;

impl Plugin {
    /// A caller's path below the workspace. `..` is taken by its words.
    pub(super) fn below(&self, path: &str) -> Result<String> {
        if path.contains('\0') || path.len() > MOST_PATH {
            return Err(ProviderError::new(Kind::Path, "the path is too long or holds a NUL byte"));
        }
        let escapes = || ProviderError::new(Kind::Path, "the path leaves the workspace");
        let workspace = self.workspace();
        let inside = match path.strip_prefix(workspace) {
            Some(rest) if !workspace.is_empty() && (rest.is_empty() || rest.starts_with('/')) => rest,
            _ if path.starts_with('/') => return Err(escapes()),
            _ => path,
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in inside.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                parts.pop().ok_or_else(escapes)?;
            } else {
                parts.push(part);
            }
        }
        Ok(parts.join("/"))
    }

    pub(super) async fn stat(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        let path = self.below(path)?;
        let said = self.hand(provider_ref, "stat", &[&path], None).await?;
        let mut record = records(&said.bytes()?)?.pop().ok_or_else(undone)?;
        record.entry.path = path.into_bytes();
        Ok(record.entry)
    }

    pub(super) async fn list_directory(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        let mut found = self.walk(provider_ref, &self.below(path)?, recursive).await?;
        found.retain(|record| after.is_none_or(|after| record.entry.path.as_slice() > after));
        Ok(found.into_iter().take(limit).map(|record| record.entry).collect())
    }

    /// Everything in a directory, in byte order of paths, without what is Berth's own.
    pub(super) async fn walk(&self, provider_ref: &str, below: &str, recursive: bool) -> Result<Vec<Record>> {
        let depth = if recursive { "1000" } else { "1" };
        let said = self.hand(provider_ref, "list", &[below, depth], None).await?;
        done(&said)?;
        let at_top = below.is_empty();
        // A large directory takes its time.
        let read = tokio::task::spawn_blocking(move || {
            let mut found = records(&said.bytes()?)?;
            found.retain(|record| !(at_top && record.entry.path == SENTINEL.as_bytes()));
            found.sort_by(|a, b| a.entry.path.cmp(&b.entry.path));
            Ok(found)
        });
        read.await.unwrap_or_else(|_| Err(undone()))
    }

    pub(super) async fn read(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        let below = self.below(path)?;
        let (head, first) = self.piece(provider_ref, &below, 0).await?;
        let entry = entry(&head, below.clone().into_bytes()).ok_or_else(undone)?;
        let (plugin, provider_ref, size) = (self.clone(), provider_ref.to_owned(), entry.size);
        let pieces = try_unfold((0_u64, Some(first)), move |(at, ready)| {
            let (plugin, provider_ref, below, head) = (plugin.clone(), provider_ref.clone(), below.clone(), head.clone());
            async move {
                if at == size && ready.as_ref().is_none_or(Vec::is_empty) {
                    return Ok(None);
                }
                let changed = || io::Error::other("the file changed while it was read");
                let piece = if let Some(piece) = ready {
                    piece
                } else {
                    let (now, piece) = plugin.piece(&provider_ref, &below, at).await.map_err(io::Error::other)?;
                    if now != head {
                        return Err(changed());
                    }
                    piece
                };
                let next = at + u64::try_from(piece.len()).unwrap_or(u64::MAX);
                if piece.is_empty() || next > size {
                    return Err(changed());
                }
                Ok(Some((Bytes::from(piece), (next, None))))
            }
        });
        let body: ByteStream = Box::pin(StreamReader::new(Box::pin(pieces)));
        Ok(FileRead { entry, body })
    }

    /// What is known of a file, and a piece of its content.
    async fn piece(&self, provider_ref: &str, below: &str, at: u64) -> Result<(String, Vec<u8>)> {
        let said = self.hand(provider_ref, "read", &[below, &(at + 1).to_string(), &PIECE.to_string()], None).await?;
        done(&said)?;
        let (head, content) = said.output.split_once('\n').ok_or_else(undone)?;
        Ok((head.to_owned(), decode(content)?))
    }

    pub(super) async fn put(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        let below = self.below(path)?;
        if below.is_empty() {
            return Err(ProviderError::new(Kind::IsADirectory, "the workspace itself is a directory"));
        }
        let name = format!("put-{}", id::new());
        self.give(provider_ref, &name, Spool::fill(body, &self.0.worker.scratch).await?.read()?).await?;
        let mode = options.mode.map_or_else(|| "-".to_owned(), |mode| format!("{mode:o}"));
        let parents = if options.parents { "1" } else { "0" };
        let said = self.change(provider_ref, grant_seq, "put", &[&below, &name, &mode, parents]).await;
        match said.as_ref().map(|said| said.word.as_str()) {
            Ok("done") => return Ok(true),
            Ok("kept") => return Ok(false),
            _ => {}
        }
        self.drop_ours(provider_ref, &name).await;
        Err(said.and_then(|said| done(&said)).err().unwrap_or_else(undone))
    }

    /// Sends content into the sandbox, beside the workspace.
    pub(super) async fn give(&self, provider_ref: &str, name: &str, mut content: ByteStream) -> Result<()> {
        let most = u64::try_from(PIECE).unwrap_or(u64::MAX);
        let mut place = "first";
        loop {
            let mut piece = Vec::new();
            let read = (&mut content).take(most).read_to_end(&mut piece).await;
            let length = read.map_err(|e| ProviderError::new(Kind::Transient, "the content could not be read again").because(e))?;
            done(&self.hand(provider_ref, "give", &[name, place], Some(encode(&piece))).await?)?;
            if length < PIECE {
                return Ok(());
            }
            place = "more";
        }
    }

    /// Removes what was sent; should that fail, it goes with the sandbox.
    pub(super) async fn drop_ours(&self, provider_ref: &str, name: &str) {
        let _ = self.hand(provider_ref, "drop", &[name], None).await;
    }

    pub(super) async fn remove(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        let how = if recursive { "tree" } else { "one" };
        let said = self.change(provider_ref, grant_seq, "remove", &[&self.below(path)?, how]).await?;
        if said.word == "full" {
            return Err(ProviderError::new(Kind::DirectoryNotEmpty, "the directory has entries"));
        }
        done(&said)
    }

    pub(super) async fn make(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        done(&self.change(provider_ref, grant_seq, "mkdir", &[&self.below(path)?]).await?)
    }

    pub(super) async fn rename(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let overwrite = if overwrite { "1" } else { "0" };
        let said = self.change(provider_ref, grant_seq, "move", &[&self.below(from)?, &self.below(to)?, overwrite]).await?;
        if said.word == "full" {
            return Err(ProviderError::new(Kind::DirectoryNotEmpty, "a directory with entries is in the way"));
        }
        done(&said)
    }
}
