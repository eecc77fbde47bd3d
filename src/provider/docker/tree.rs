//! Whole directories, out and in, by the engine's archive endpoint.

use std::fmt::Write as _;
use std::io;

use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::Docker;
use super::agent::{nonce, state};
use super::files::settled;
use super::lifecycle::Facts;
use crate::archive::relay::{self, Standing, Standings};
use crate::archive::{self, ArchiveCode, ArchiveError, Exclude, Limits};
use crate::provider::spool::{ReadSeek, Spool};
use crate::provider::stream::StreamWriter;
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> archive::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(refused),
        Err(e) => Err(ProviderError::new(Kind::Indeterminate, "the work broke off").because(e)),
    }
}

impl Docker {
    /// A directory as a tar.
    pub(super) async fn read_directory(&self, container: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        let facts = self.facts(container).await?;
        let place = self.resolve(container, &facts, path, true).await?;
        let Some((stat, packed)) = self.get_archive(container, &place.path).await? else { return Err(gone()) };
        if stat.kind() != FileKind::Directory {
            return Err(no_directory());
        }
        let (writer, tar) = stream::channel();
        let (count, skipped) = oneshot::channel();
        let (docker, container, exclude) = (self.clone(), container.to_owned(), exclude.to_vec());
        self.commands.tasks.spawn(async move {
            // What breaks off drops the writer, which the reader sees as an error; a reader that left ends this.
            if let Ok((writer, skipped)) = docker.pass_out(&container, &place.path, packed, exclude, writer).await {
                let _ = count.send(skipped);
                let _ = blocking(move || Ok(writer.finish()?)).await;
            }
        });
        Ok(TreeRead { tar, skipped })
    }

    async fn pass_out(
        &self,
        container: &str,
        directory: &str,
        packed: ByteStream,
        exclude: Vec<String>,
        mut writer: StreamWriter,
    ) -> Result<(StreamWriter, u64)> {
        let (feeding, mut input) = stream::feed(packed);
        let passing = blocking(move || relay::outward(&mut input, &exclude, &mut writer).map(|relayed| (relayed, writer)));
        let (_, passed) = tokio::join!(feeding, passing);
        let (relayed, mut writer) = passed?;
        for path in relayed.left {
            let name = String::from_utf8(path.clone()).map_err(|_| ProviderError::new(Kind::Invalid, "a hard link's name is not UTF-8"))?;
            let Some((_, packed)) = self.get_archive(container, &format!("{directory}/{name}")).await? else { return Err(gone()) };
            let (feeding, mut input) = stream::feed(packed);
            let passing = blocking(move || relay::one_outward(&mut input, &path, &mut writer).map(|()| writer));
            let (_, passed) = tokio::join!(feeding, passing);
            writer = passed?;
        }
        let writer = blocking(move || {
            relay::end(&mut writer)?;
            Ok(writer)
        });
        Ok((writer.await?, relayed.skipped))
    }

    /// Lays a tar over a directory, or makes the directory exactly the tar.
    pub(super) async fn write_directory(
        &self,
        container: &str,
        grant_seq: i64,
        path: &str,
        tar: ByteStream,
        mode: WriteMode,
    ) -> Result<()> {
        let facts = self.facts(container).await?;
        // Judged as a whole before anything changes.
        let spool = Spool::fill(tar, &self.scratch).await?;
        let mut input = spool.blocking()?;
        let input = blocking(move || {
            archive::digest(&mut input, &Limits::default())?;
            input.rewind()?;
            Ok(input)
        })
        .await?;
        self.make_path(container, grant_seq, path).await?;
        let target = self.resolve(container, &facts, path, true).await?.path;
        let owner = archive::Owner { uid: facts.owner.uid, gid: facts.owner.gid };
        let staged = format!("staged-{}", nonce());
        if mode == WriteMode::Merge {
            return self.lay_over(container, &facts, grant_seq, (&target, &staged), owner, input).await;
        }
        self.make_in_state(container, &facts, &[(&staged, 0o700)]).await?;
        let staged = format!("{}/{staged}", state(facts.tag.instance));
        let laid = self.pass_in(container, Place::of(&staged, &facts), owner, input).await;
        let said = match laid {
            Ok(()) => self.change(container, &facts, grant_seq, "replace", &[&staged, &target]).await,
            Err(error) => Err(error),
        };
        match said {
            Ok(said) if said.word == "done" => Ok(()),
            Ok(_) => Err(ProviderError::new(Kind::Indeterminate, "the directory was replaced in part")),
            Err(error) => {
                self.unstage(container, &facts, &staged).await;
                Err(error)
            }
        }
    }

    /// Lays a tar over a directory: brought in beside the workspace, and unpacked there by the script, so that a fence ends it.
    async fn lay_over(
        &self,
        container: &str,
        facts: &Facts,
        grant_seq: i64,
        (target, staged): (&str, &str),
        owner: archive::Owner,
        mut input: Box<dyn ReadSeek>,
    ) -> Result<()> {
        let standing = self.standing(container, target).await?;
        let in_the_way = |e: ProviderError| match e.kind {
            Kind::Invalid => ProviderError::new(Kind::IsADirectory, "a directory is in the way of an entry").because(e),
            _ => e,
        };
        let (mut input, standing, links) = blocking(move || {
            relay::inward(&mut input, b"", owner, &standing, &mut io::sink())?;
            input.rewind()?;
            let links = relay::in_place_of_directories(&mut input, &standing)?;
            input.rewind()?;
            Ok((input, standing, links))
        })
        .await
        .map_err(in_the_way)?;
        for link in links {
            // A tar's own program may follow a link where the tar has a directory.
            let link = String::from_utf8(link).map_err(|_| ProviderError::new(Kind::Invalid, "a link's name is not UTF-8"))?;
            settled(&self.change(container, facts, grant_seq, "remove", &[&format!("{target}/{link}"), "one"]).await?)?;
        }
        let (mut writer, relayed) = stream::channel();
        let passing = blocking(move || {
            relay::inward(&mut input, b"", owner, &standing, &mut writer)?;
            relay::end(&mut writer)?;
            Ok(writer.finish()?)
        });
        let (spooled, passed) = tokio::join!(Spool::fill(relayed, &self.scratch), passing);
        passed?;
        let staged = self.stage(container, facts, staged, 0o600, spooled?).await?;
        let said = self.change(container, facts, grant_seq, "unpack", &[&staged, target]).await;
        let laid = said.and_then(|said| settled(&said));
        if laid.is_err() {
            self.unstage(container, facts, &staged).await;
        }
        laid.map_err(|e| match e.kind {
            Kind::Full | Kind::NotFound | Kind::Fenced | Kind::Unsupported => e,
            _ => ProviderError::new(Kind::Indeterminate, "the tree was laid over in part").because(e),
        })
    }

    async fn pass_in(&self, container: &str, place: Place, owner: archive::Owner, mut input: Box<dyn ReadSeek>) -> Result<()> {
        let (mut writer, tar) = stream::channel();
        let Place { into, prefix } = place;
        let passing = blocking(move || {
            relay::inward(&mut input, prefix.as_bytes(), owner, &Standings::new(), &mut writer)?;
            relay::end(&mut writer)?;
            Ok(writer.finish()?)
        });
        let (put, passed) = tokio::join!(self.put_stream(container, &into, tar), passing);
        put.and(passed)
    }

    async fn standing(&self, container: &str, directory: &str) -> Result<Standings> {
        let walked = self.walk(container, directory, true).await?;
        let kind = |kind| if kind == FileKind::Directory { Standing::Directory } else { Standing::Other };
        Ok(walked.into_iter().map(|(path, seen)| (path, kind(seen.entry.kind))).collect())
    }

    /// A digest of everything that a change would touch.
    pub(super) async fn stamp(&self, container: &str, exclude: &[String]) -> Result<String> {
        let facts = self.facts(container).await?;
        let exclude = Exclude::new(exclude);
        let out = |path: &[u8]| {
            let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
            ends.any(|end| exclude.matches(&path[..end]))
        };
        let mut sum = Sha256::new();
        for (path, seen) in self.walk(container, &facts.workspace, true).await? {
            if matches!(seen.entry.kind, FileKind::Other) || out(&path) {
                continue;
            }
            let mut head = String::new();
            // Writing to a string cannot fail.
            let _ = write!(head, "{} {} ", path.len(), seen.stamp.len());
            sum.update(head);
            sum.update(&path);
            sum.update(&seen.stamp);
        }
        Ok(hex::encode(sum.finalize()))
    }
}

/// Where the engine unpacks, and what every name in the tar begins with. The engine refuses links that leave the directory it
/// unpacks into, so that is the root wherever it can be.
struct Place {
    into: String,
    prefix: String,
}

impl Place {
    fn of(directory: &str, facts: &Facts) -> Self {
        if facts.read_only {
            return Self { into: directory.to_owned(), prefix: String::new() };
        }
        Self { into: "/".to_owned(), prefix: directory.trim_start_matches('/').to_owned() }
    }
}

fn gone() -> ProviderError {
    ProviderError::new(Kind::FileNotFound, "no such file or directory")
}

fn no_directory() -> ProviderError {
    ProviderError::new(Kind::NotADirectory, "is no directory")
}
