//! Images: there, or pulled; and whether their containers can be worked with at all.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use reqwest::Method;
use tokio_util::task::TaskTracker;

use super::engine::{Engine, body};
use super::wire::{Image, PullLine};
use crate::provider::{Kind, ProviderError, Result};

/// How long a pull may be silent, and how long it may take.
const SILENCE: Duration = Duration::from_mins(2);
const WHOLE_PULL: Duration = Duration::from_hours(1);

type Pull = Shared<BoxFuture<'static, bool>>;

/// The images of an engine.
#[derive(Debug, Default)]
pub(super) struct Images {
    tasks: TaskTracker,
    pulls: Mutex<HashMap<String, Pull>>,
    /// Ids of images that were found to have a shell.
    fit: Mutex<HashSet<String>>,
}

fn missing() -> ProviderError {
    ProviderError::new(Kind::NoImage, "the image is neither there nor to be had from its registry")
}

impl Images {
    /// The image of this name, pulled if it is not there; one pull for all who ask, which goes on if they leave.
    pub(super) async fn get(&self, engine: &Arc<Engine>, name: &str) -> Result<Image> {
        if let Some(image) = look(engine, name).await? {
            return Ok(image);
        }
        if !self.pull(engine, name).await {
            return Err(missing());
        }
        look(engine, name).await?.ok_or_else(missing)
    }

    async fn pull(&self, engine: &Arc<Engine>, name: &str) -> bool {
        let pull = {
            let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
            pulls.retain(|_, pull| pull.peek().is_none());
            let pull = pulls.entry(name.to_owned()).or_insert_with(|| {
                let (engine, name) = (Arc::clone(engine), name.to_owned());
                let task = self.tasks.spawn(async move {
                    let pulled = tokio::time::timeout(WHOLE_PULL, pull(&engine, &name)).await.unwrap_or(false);
                    tracing::info!(pulled, "an image was pulled");
                    pulled
                });
                async move { task.await.unwrap_or(false) }.boxed().shared()
            });
            pull.clone()
        };
        pull.await
    }

    /// Refuses an image whose containers would not run here.
    pub(super) async fn check(&self, engine: &Engine, image: &Image) -> Result<()> {
        let about = engine.about().await?;
        if image.os != "linux" || image.architecture != about.architecture {
            return Err(ProviderError::new(Kind::Invalid, "the image is for another processor or system than the engine's"));
        }
        Ok(())
    }

    /// Whether this image is known to have a shell.
    pub(super) fn is_fit(&self, id: &str) -> bool {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Notes that this image has a shell.
    pub(super) fn note_fit(&self, id: String) {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }
}

async fn look(engine: &Engine, name: &str) -> Result<Option<Image>> {
    match engine.get(&format!("/images/{name}/json"), &[]).await {
        Ok(image) => Ok(Some(image)),
        Err(failure) if failure.is(404) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// Pulls an image; follows the progress, since a pull that says nothing any more is over.
async fn pull(engine: &Engine, name: &str) -> bool {
    use tokio::io::AsyncBufReadExt;
    let (repository, tag) = split(name);
    let Ok(request) = engine.request(Method::POST, "/images/create", &[("fromImage", repository), ("tag", tag)]).await else {
        return false;
    };
    let Ok(Ok(response)) = tokio::time::timeout(SILENCE, engine.send(request)).await else { return false };
    let mut lines = tokio::io::BufReader::new(body(response)).lines();
    loop {
        match tokio::time::timeout(SILENCE, lines.next_line()).await {
            Ok(Ok(Some(line))) => match serde_json::from_str::<PullLine>(&line) {
                Ok(PullLine { error: None }) => {}
                _ => return false,
            },
            Ok(Ok(None)) => return true,
            _ => return false,
        }
    }
}

/// Repository and tag; a digest belongs to the repository's part.
fn split(name: &str) -> (&str, &str) {
    if name.contains('@') {
        return (name, "");
    }
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_tag() {
        assert_eq!(split("debian"), ("debian", "latest"));
        assert_eq!(split("debian:12"), ("debian", "12"));
        assert_eq!(split("registry:5000/a/b"), ("registry:5000/a/b", "latest"));
        assert_eq!(split("registry:5000/a/b:1"), ("registry:5000/a/b", "1"));
        assert_eq!(split("a@sha256:00"), ("a@sha256:00", ""));
    }
}
