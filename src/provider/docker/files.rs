//! Single files: content by the archive endpoint, everything else by the script inside.

use std::collections::BTreeMap;
use std::io;

use reqwest::Method;
use tar::Archive;
use tokio::io::AsyncReadExt;

use super::Docker;
use super::agent::{Said, nonce};
use super::engine::body;
use super::lifecycle::safe;
use super::paths::{Place, Reach, STAT};
use super::wire::PathStat;
use crate::clock::Time;
use crate::provider::spool::Spool;
use crate::provider::{ByteStream, FileEntry, FileKind, FileRead, Kind, ProviderError, PutOptions, Result, stream};

/// Content of at most so many bytes goes in by the exec that puts it in its place: one call to the engine and not two.
const SMALL: u64 = 256 << 10;

fn not_found() -> ProviderError {
    ProviderError::new(Kind::FileNotFound, "no such file or directory")
}

fn entry(path: &str, stat: &PathStat, link_target: Option<Vec<u8>>) -> FileEntry {
    let kind = stat.kind();
    FileEntry {
        path: path.as_bytes().to_vec(),
        kind,
        size: if kind == FileKind::File { u64::try_from(stat.size).unwrap_or(0) } else { 0 },
        mode: stat.permissions(),
        modified_at: stat.modified_at(),
        link_target,
    }
}

impl Docker {
    /// What the engine packs of one path, and what it says is there.
    pub(super) async fn get_archive(&self, container: &str, path: &str) -> Result<Option<(PathStat, ByteStream)>> {
        let asked = self.engine.request(Method::GET, &format!("/containers/{}/archive", safe(container)?), &[("path", path)]).await?;
        match self.engine.send(asked).await {
            Ok(response) => {
                let stat = response.headers().get(STAT).and_then(|header| PathStat::parse(header.as_bytes()));
                let stat = stat.ok_or_else(|| ProviderError::new(Kind::Transient, "the container engine does not say what is there"))?;
                Ok(Some((stat, body(response))))
            }
            Err(failure) if failure.is(404) => self.inspect(container).await.map(|_| None),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn read(&self, container: &str, path: &str) -> Result<FileRead> {
        let facts = self.facts(container).await?;
        let place = self.resolve(container, &facts, path, true).await?;
        match place.found.as_ref().map(PathStat::kind) {
            None => return Err(not_found()),
            Some(FileKind::Directory) => return Err(ProviderError::new(Kind::IsADirectory, "is a directory")),
            Some(FileKind::File) => {}
            Some(_) => return Err(ProviderError::new(Kind::Path, "is no regular file")),
        }
        let Some((stat, tar)) = self.get_archive(container, &place.path).await? else { return Err(not_found()) };
        let (feeding, input) = stream::feed(tar);
        let (mut writer, body) = stream::channel();
        self.commands.tasks.spawn(feeding);
        self.commands.tasks.spawn_blocking(move || -> io::Result<()> {
            // Anything less than a whole file drops the writer, which is an error to the reader.
            let mut tar = Archive::new(input);
            let mut first = tar.entries()?.next().ok_or(io::ErrorKind::UnexpectedEof)??;
            let size = first.size();
            if io::copy(&mut first, &mut writer)? == size {
                writer.finish()?;
            }
            Ok(())
        });
        Ok(FileRead { entry: entry(path, &stat, None), body })
    }

    pub(super) async fn put(&self, container: &str, grant_seq: i64, path: &str, content: ByteStream, options: PutOptions) -> Result<bool> {
        let facts = self.facts(container).await?;
        let reach = self.reach(container, &facts, path, true).await?;
        let mode = match reach.found.as_ref().map(|stat| (stat.kind(), stat.permissions())) {
            Some((FileKind::Directory, _)) => return Err(ProviderError::new(Kind::IsADirectory, "is a directory")),
            Some((FileKind::File, mode)) => options.mode.unwrap_or(mode),
            _ => options.mode.unwrap_or(0o644),
        };
        if reach.names.len() > 1 && !options.parents {
            return Err(not_found());
        }
        // All of it first: the engine has to be told how much it is, and what breaks off must change nothing. Then beside its place, so
        // that what arrives late arrives nowhere; the script puts it in its place if the grant still holds.
        let content = Spool::fill(content, &self.scratch).await?;
        let (name, parents) = reach.names.split_last().ok_or_else(not_found)?;
        let (parents, mode) = (parents.join("/"), mode & 0o7777);
        // Through Podman's service the answer of such an exec broke off.
        if content.length() <= SMALL && !self.engine.about().await?.is_podman {
            let (length, mode) = (content.length().to_string(), format!("{mode:o}"));
            let mut bytes = Vec::new();
            content
                .read()?
                .read_to_end(&mut bytes)
                .await
                .map_err(|e| ProviderError::new(Kind::Transient, "what came in was lost").because(e))?;
            let words = [reach.base.as_str(), &parents, name, &length, &mode];
            let said = self.change_with(container, &facts, grant_seq, "receive", &words, Some(bytes.into())).await?;
            return settled(&said).map(|()| reach.found.is_none());
        }
        let staged = self.stage(container, &facts, &format!("staged-{}", nonce()), mode, content).await?;
        let said = self.change(container, &facts, grant_seq, "put", &[&reach.base, &parents, name, &staged]).await;
        let put = said.and_then(|said| settled(&said));
        if put.is_err() {
            self.unstage(container, &facts, &staged).await;
        }
        put.map(|()| reach.found.is_none())
    }

    /// Has the engine unpack a tar below a directory.
    pub(super) async fn put_stream(&self, container: &str, into: &str, tar: ByteStream) -> Result<()> {
        let asked = self.engine.request(Method::PUT, &format!("/containers/{}/archive", safe(container)?), &[("path", into)]).await?;
        let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(tar, 64 * 1024));
        match self.engine.send(asked.header("content-type", "application/x-tar").body(body)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is(404) => {
                self.inspect(container).await?;
                Err(not_found())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn stat(&self, container: &str, path: &str) -> Result<FileEntry> {
        let facts = self.facts(container).await?;
        let place = self.resolve(container, &facts, path, false).await?;
        let found = place.found.ok_or_else(not_found)?;
        if found.kind() != FileKind::Symlink {
            return Ok(entry(path, &found, None));
        }
        let Some((stat, mut tar)) = self.get_archive(container, &place.path).await? else { return Err(not_found()) };
        // A link's tar is a few blocks; where it leads in its own words is nowhere else.
        let mut bytes = Vec::new();
        tar.read_to_end(&mut bytes).await.map_err(|e| ProviderError::new(Kind::Transient, "the answer broke off").because(e))?;
        let target = Archive::new(bytes.as_slice())
            .entries()
            .ok()
            .and_then(|mut entries| entries.next())
            .and_then(|first| first.ok()?.link_name_bytes().map(std::borrow::Cow::into_owned));
        Ok(entry(path, &stat, target))
    }

    pub(super) async fn list(
        &self,
        container: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        let facts = self.facts(container).await?;
        let place = self.resolve(container, &facts, path, true).await?;
        match place.found.as_ref().map(PathStat::kind) {
            None => return Err(not_found()),
            Some(FileKind::Directory) => {}
            Some(_) => return Err(ProviderError::new(Kind::NotADirectory, "is no directory")),
        }
        let walked = self.walk(container, &place.path, recursive).await?;
        let from = walked.into_iter().filter(|(path, _)| after.is_none_or(|after| path.as_slice() > after));
        Ok(from.take(limit).map(|(_, seen)| seen.entry).collect())
    }

    /// Everything below a directory, by path.
    pub(super) async fn walk(&self, container: &str, directory: &str, recursive: bool) -> Result<BTreeMap<Vec<u8>, Seen>> {
        let facts = self.facts(container).await?;
        let (mark, depth) = (nonce(), if recursive { "4096" } else { "1" });
        let said = self.control(container, &facts, "walk", &[directory, depth, &mark], None).await?;
        match said.word.as_str() {
            "done" => Ok(records(&said.output, mark.as_bytes())),
            "missing" => Err(ProviderError::new(Kind::Unsupported, "the image has no find and stat")),
            _ => Err(ProviderError::new(Kind::Transient, "the directory changed while it was looked at")),
        }
    }

    pub(super) async fn remove_path(&self, container: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        let facts = self.facts(container).await?;
        let place = self.resolve(container, &facts, path, false).await?;
        place.found.as_ref().ok_or_else(not_found)?;
        self.not_the_workspace(&place, &facts.workspace)?;
        let how = if recursive { "tree" } else { "one" };
        settled(&self.change(container, &facts, grant_seq, "remove", &[&place.path, how]).await?)
    }

    pub(super) async fn make_path(&self, container: &str, grant_seq: i64, path: &str) -> Result<()> {
        let facts = self.facts(container).await?;
        let reach = self.reach(container, &facts, path, true).await?;
        match &reach.found {
            Some(found) if found.kind() == FileKind::Directory => return Ok(()),
            Some(_) => return Err(ProviderError::new(Kind::FileExists, "a file of this name exists")),
            None if reach.names.is_empty() => return Err(not_found()),
            None => {}
        }
        settled(&self.change(container, &facts, grant_seq, "mkdir", &[&reach.base, &reach.names.join("/")]).await?)
    }

    pub(super) async fn rename(&self, container: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let facts = self.facts(container).await?;
        let source = self.resolve(container, &facts, from, false).await?;
        let moved = source.found.as_ref().ok_or_else(not_found)?.kind();
        let target: Reach = self.reach(container, &facts, to, false).await?;
        if target.names.len() > 1 {
            return Err(not_found());
        }
        let (target, found) = (target.path(), target.found.map(|stat| stat.kind()));
        self.not_the_workspace(&source, &facts.workspace)?;
        if target == facts.workspace || target.starts_with(&format!("{}/", source.path)) {
            return Err(ProviderError::new(Kind::Path, "a directory cannot move into itself"));
        }
        match found {
            Some(_) if !overwrite => return Err(ProviderError::new(Kind::FileExists, "the target exists")),
            Some(_) if source.path == target => return Ok(()),
            Some(FileKind::Directory) if moved != FileKind::Directory => {
                return Err(ProviderError::new(Kind::IsADirectory, "the target is a directory"));
            }
            Some(other) if moved == FileKind::Directory && other != FileKind::Directory => {
                return Err(ProviderError::new(Kind::NotADirectory, "the target is no directory"));
            }
            _ => {}
        }
        settled(&self.change(container, &facts, grant_seq, "move", &[&source.path, &target]).await?)
    }

    #[expect(clippy::unused_self, reason = "reads as one of the provider's rules")]
    fn not_the_workspace(&self, place: &Place, workspace: &str) -> Result<()> {
        if place.path == workspace { Err(ProviderError::new(Kind::Path, "the workspace itself stays")) } else { Ok(()) }
    }
}

/// What a verb that changes something came to.
pub(super) fn settled(said: &Said) -> Result<()> {
    match said.word.as_str() {
        "done" => Ok(()),
        "full" => Err(ProviderError::new(Kind::DirectoryNotEmpty, "the directory has entries")),
        "isdir" => Err(ProviderError::new(Kind::IsADirectory, "is a directory")),
        "denied" => Err(ProviderError::new(Kind::Refused, "the directory's mode forbids it")),
        "nospace" => Err(ProviderError::new(Kind::Full, "the container's disk did not take it")),
        "missing" => Err(ProviderError::new(Kind::Unsupported, "the image lacks a program that this needs")),
        _ => Err(ProviderError::new(Kind::Indeterminate, "it was done in part, or not at all")),
    }
}

/// One entry of a walk.
pub(super) struct Seen {
    pub(super) entry: FileEntry,
    /// Inode and times to the nanosecond, in the system's own words.
    pub(super) stamp: Vec<u8>,
}

/// Reads the records of a walk: `mark mode size seconds inode times mark name mark name-and-target`.
fn records(output: &[u8], mark: &[u8]) -> BTreeMap<Vec<u8>, Seen> {
    let mut parts = split(output, mark).skip(1);
    let mut found = BTreeMap::new();
    while let (Some(fields), Some(name), Some(shown)) = (parts.next(), parts.next(), parts.next()) {
        let shown = shown.strip_suffix(b"\n").unwrap_or(shown);
        let text = String::from_utf8_lossy(fields);
        let mut words = text.split_ascii_whitespace();
        let mode = words.next().and_then(|word| u32::from_str_radix(word, 16).ok());
        let (size, seconds) = (words.next().and_then(|w| w.parse().ok()), words.next().and_then(|w| w.parse::<i64>().ok()));
        let (Some(mode), Some(size)) = (mode, size) else { continue };
        let kind = match mode & 0o170_000 {
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o100_000 => FileKind::File,
            _ => FileKind::Other,
        };
        let path = name.strip_prefix(b"./").unwrap_or(name).to_vec();
        let entry = FileEntry {
            path: path.clone(),
            kind,
            size: if kind == FileKind::File { size } else { 0 },
            mode: mode & 0o7777,
            modified_at: seconds.map(|seconds| Time(seconds.saturating_mul(1000))),
            link_target: (kind == FileKind::Symlink).then(|| target(shown, name)),
        };
        found.insert(path, Seen { entry, stamp: fields.to_vec() });
    }
    found
}

/// The target in `name -> target` or `'name' -> 'target'`.
fn target(shown: &[u8], name: &[u8]) -> Vec<u8> {
    let plain = shown.strip_prefix(name).and_then(|rest| rest.strip_prefix(b" -> "));
    let quoted = || {
        let rest = shown.strip_prefix(b"'")?.strip_prefix(name)?.strip_prefix(b"' -> ")?;
        rest.strip_prefix(b"'")?.strip_suffix(b"'")
    };
    plain.or_else(quoted).unwrap_or_default().to_vec()
}

fn split<'a>(bytes: &'a [u8], mark: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let all = rest?;
        let at = all.windows(mark.len()).position(|window| window == mark);
        rest = at.map(|at| &all[at + mark.len()..]);
        Some(&all[..at.unwrap_or(all.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_names_of_any_bytes() {
        let record = |mode: &str, name: &str, shown: &str| format!("MARK {mode} 5 1700000000 9 a bMARK./{name}MARK{shown}\n");
        let odd = record("81a4", "odd \n -> x", "./odd \n -> x");
        let output = [odd, record("a1ff", "l", "'./l' -> '/etc'"), record("a1ff", "m", "./m -> n")].concat();
        let found = records(output.as_bytes(), b"MARK");
        assert_eq!(found.len(), 3);
        assert_eq!(found[b"l".as_slice()].entry.link_target.as_deref(), Some(b"/etc".as_slice()));
        assert_eq!(found[b"m".as_slice()].entry.link_target.as_deref(), Some(b"n".as_slice()));
        let odd = &found[b"odd \n -> x".as_slice()].entry;
        assert_eq!((odd.kind, odd.size, odd.mode), (FileKind::File, 5, 0o644));
    }
}
