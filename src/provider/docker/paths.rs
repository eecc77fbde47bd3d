//! Callers' paths, followed component by component as the engine sees them, and never out of the workspace.

use base64::Engine as _;
use reqwest::Method;

use super::Docker;
use super::engine::{Failure, LOOK};
use super::lifecycle::{Facts, safe};
use super::wire::PathStat;
use crate::clock::Time;
use crate::provider::{FileKind, Kind, ProviderError, Result};

const MOST_LINKS: usize = 40;
const MOST_PATH: usize = 4096;
/// The header that says what is at a path.
pub(super) const STAT: &str = "x-docker-container-path-stat";

/// Where a path leads.
#[derive(Debug)]
pub(super) struct Place {
    /// Absolute, with every link on the way followed.
    pub(super) path: String,
    /// What is there.
    pub(super) found: Option<PathStat>,
}

/// How far a path leads, where its end may be missing.
#[derive(Debug)]
pub(super) struct Reach {
    /// The deepest directory on the way that exists, absolute.
    pub(super) base: String,
    /// The names below it; the last of them exists only if `found` is something.
    pub(super) names: Vec<String>,
    /// What is at the end.
    pub(super) found: Option<PathStat>,
}

pub(super) fn escapes() -> ProviderError {
    ProviderError::new(Kind::Path, "the path leaves the workspace")
}

fn missing() -> ProviderError {
    ProviderError::new(Kind::FileNotFound, "no such file or directory")
}

/// A path's components below the workspace; absolute ones must lie in it.
pub(super) fn inside<'a>(workspace: &str, path: &'a str) -> Result<Vec<&'a str>> {
    if path.contains('\0') || path.len() > MOST_PATH {
        return Err(ProviderError::new(Kind::Path, "the path is too long or holds a NUL byte"));
    }
    let inside = match path.strip_prefix(workspace) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ if path.starts_with('/') => return Err(escapes()),
        _ => path,
    };
    Ok(inside.split('/').filter(|part| !matches!(*part, "" | ".")).collect())
}

impl PathStat {
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(header).ok()?).ok()
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.mode {
            mode if mode & (1 << 31) != 0 => FileKind::Directory,
            mode if mode & (1 << 27) != 0 => FileKind::Symlink,
            mode if mode & 0x8f28_0000 != 0 => FileKind::Other,
            _ => FileKind::File,
        }
    }

    /// Permission bits as a system has them.
    pub(super) fn permissions(&self) -> u32 {
        let bit = |from: u32, to: u32| if self.mode & (1 << from) == 0 { 0 } else { to };
        (self.mode & 0o777) | bit(23, 0o4000) | bit(22, 0o2000) | bit(20, 0o1000)
    }

    pub(super) fn modified_at(&self) -> Option<Time> {
        Time::parse(&self.mtime)
    }
}

impl Docker {
    /// What is at an absolute path of a container, a last link not followed; none if nothing is.
    pub(super) async fn head(&self, container: &str, path: &str) -> Result<Option<PathStat>> {
        let asked = self.engine.request(Method::HEAD, &format!("/containers/{}/archive", safe(container)?), &[("path", path)]).await?;
        let answered = tokio::time::timeout(LOOK, self.engine.send(asked)).await;
        match answered.unwrap_or(Err(Failure::Lost(None))) {
            Ok(response) => {
                let stat = response.headers().get(STAT).and_then(|header| PathStat::parse(header.as_bytes()));
                stat.map(Some).ok_or_else(|| ProviderError::new(Kind::Transient, "the container engine does not say what is there"))
            }
            // The container's or the file's: the look tells.
            Err(failure) if failure.is(404) => self.inspect(container).await.map(|_| None),
            Err(failure) if failure.is(500) => Err(ProviderError::new(Kind::Path, "the path cannot be followed")),
            Err(Failure::Lost(_)) => Err(ProviderError::new(Kind::Transient, "the container engine did not answer")),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Follows a path to something that may be missing, as may directories above it.
    pub(super) async fn reach(&self, container: &str, facts: &Facts, path: &str, follow_last: bool) -> Result<Reach> {
        let workspace = facts.workspace.as_str();
        let mut rest: Vec<String> = inside(workspace, path)?.into_iter().rev().map(str::to_owned).collect();
        let (mut names, mut links): (Vec<String>, usize) = (Vec::new(), 0);
        let mut found = None;
        while let Some(name) = rest.pop() {
            if name == ".." {
                names.pop().ok_or_else(escapes)?;
                found = None;
                continue;
            }
            names.push(name);
            let here = self.head(container, &below(workspace, &names)).await?;
            match here {
                None => {
                    if rest.iter().any(|name| name == "..") {
                        return Err(missing());
                    }
                    let base = below(workspace, &names[..names.len() - 1]);
                    let last = names.pop().into_iter();
                    return Ok(Reach { base, names: last.chain(rest.into_iter().rev()).collect(), found: None });
                }
                Some(stat) if stat.kind() == FileKind::Symlink && (follow_last || !rest.is_empty()) => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(ProviderError::new(Kind::Path, "too many symbolic links"));
                    }
                    // The engine says where it leads in the end; that is looked at again, from the workspace on.
                    if !stat.link_target.starts_with('/') || below(workspace, &names) == stat.link_target {
                        return Err(ProviderError::new(Kind::Path, "a link leads nowhere"));
                    }
                    let target = inside(workspace, &stat.link_target)?;
                    rest.extend(target.into_iter().rev().map(str::to_owned));
                    names.clear();
                    found = None;
                }
                Some(stat) if stat.kind() != FileKind::Directory && !rest.is_empty() => {
                    return Err(ProviderError::new(Kind::NotADirectory, "a part of the path is no directory"));
                }
                Some(stat) => found = Some(stat),
            }
        }
        if found.is_none() {
            // The workspace itself, or something that `..` led back to.
            found = self.head(container, &below(workspace, &names)).await?;
        }
        let last = names.pop();
        Ok(Reach { base: below(workspace, &names), names: last.into_iter().collect(), found })
    }

    /// Follows a path to something whose directory exists.
    pub(super) async fn resolve(&self, container: &str, facts: &Facts, path: &str, follow_last: bool) -> Result<Place> {
        let reach = self.reach(container, facts, path, follow_last).await?;
        if reach.names.len() > 1 {
            return Err(missing());
        }
        Ok(Place { path: reach.path(), found: reach.found })
    }
}

impl Reach {
    /// The whole path.
    pub(super) fn path(&self) -> String {
        below(&self.base, &self.names)
    }
}

fn below(directory: &str, names: &[String]) -> String {
    names.iter().fold(directory.to_owned(), |path, name| format!("{path}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_lie_in_the_workspace() {
        assert_eq!(inside("/w", "/w/a//./b").unwrap(), ["a", "b"]);
        assert_eq!(inside("/w", "/w").unwrap(), [""; 0]);
        assert_eq!(inside("/w", "a/../b").unwrap(), ["a", "..", "b"]);
        for wrong in ["/", "/wx", "/etc", "a\0b"] {
            assert!(inside("/w", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes_are_read_as_the_engine_writes_them() {
        let stat = |mode| PathStat { size: 0, mode, mtime: "2026-01-01T00:00:00Z".to_owned(), link_target: String::new() };
        assert_eq!((stat(420).kind(), stat(420).permissions()), (FileKind::File, 0o644));
        assert_eq!((stat(0x8000_01ed).kind(), stat(0x8010_01ff).permissions()), (FileKind::Directory, 0o1777));
        assert_eq!((stat(134_218_239).kind(), stat(0x0200_01a4).kind()), (FileKind::Symlink, FileKind::Other));
    }
}
