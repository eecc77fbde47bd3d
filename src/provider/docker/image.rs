//! Images: there, or pulled; and whether their containers can be worked with at all.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use reqwest::Method;
use tokio_util::task::TaskTracker;

use super::engine::{Engine, body};
use super::registry::RegistryAuth;
use super::wire::{Image, PullLine};
use crate::provider::{Kind, ProviderError, Result};

/// How long a pull may be silent, and how long it may take.
const SILENCE: Duration = Duration::from_mins(2);
const WHOLE_PULL: Duration = Duration::from_hours(1);

type Pull = Shared<BoxFuture<'static, bool>>;
/// What is pulled, and the mark of who pulls it: nobody is answered by what another one may have.
type Wanted = (String, Option<[u8; 32]>);

/// The images of an engine.
#[derive(Debug, Default)]
pub(super) struct Images {
    tasks: TaskTracker,
    pulls: Mutex<HashMap<Wanted, Pull>>,
    /// Ids of images that were found to have a shell.
    fit: Mutex<HashSet<String>>,
}

fn missing() -> ProviderError {
    ProviderError::new(Kind::NoImage, "the image is neither there nor to be had from its registry")
}

impl Images {
    /// The image of this name, pulled if it is not there; one pull for all who ask, which goes on if they leave.
    pub(super) async fn get(&self, engine: &Arc<Engine>, name: &str, auth: Option<&RegistryAuth>) -> Result<Image> {
        if let Some(image) = look(engine, name).await? {
            return Ok(image);
        }
        if !self.pull(engine, name, auth).await {
            return Err(missing());
        }
        look(engine, name).await?.ok_or_else(missing)
    }

    async fn pull(&self, engine: &Arc<Engine>, name: &str, auth: Option<&RegistryAuth>) -> bool {
        let pull = {
            let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
            pulls.retain(|_, pull| pull.peek().is_none());
            let pull = pulls.entry((name.to_owned(), auth.map(RegistryAuth::mark))).or_insert_with(|| {
                let (engine, name, auth) = (Arc::clone(engine), name.to_owned(), auth.cloned());
                let task = self.tasks.spawn(async move {
                    let pulled = tokio::time::timeout(WHOLE_PULL, pull(&engine, &name, auth.as_ref())).await.unwrap_or(false);
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
async fn pull(engine: &Engine, name: &str, auth: Option<&RegistryAuth>) -> bool {
    use tokio::io::AsyncBufReadExt;
    let (repository, tag) = split(name);
    let Ok(request) = engine.request(Method::POST, "/images/create", &[("fromImage", repository), ("tag", tag)]).await else {
        return false;
    };
    let request = match auth.map(|auth| auth.header(name)) {
        None => request,
        Some(Some(header)) => request.header("X-Registry-Auth", header),
        Some(None) => return false,
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
    use axum::Router;
    use axum::extract::{Path, State};
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::{get, post};
    use serde_json::json;

    use super::super::address::Address;
    use super::*;

    /// What a pull of an engine's was sent with, and whether it worked.
    type Pulls = Arc<Mutex<Vec<Option<String>>>>;

    /// An engine whose registry knows one header.
    async fn engine(known: &'static str) -> (Arc<Engine>, Pulls) {
        let pulls = Pulls::default();
        let there = move |State(pulls): State<Pulls>, Path(_): Path<String>| async move {
            let had = pulls.lock().unwrap().iter().any(|sent| sent.as_deref() == Some(known));
            if had { Ok(r#"{"Id":"sha256:1","Os":"linux","Architecture":"amd64","Config":{}}"#) } else { Err(StatusCode::NOT_FOUND) }
        };
        let pull = move |State(pulls): State<Pulls>, headers: HeaderMap| async move {
            let sent = headers.get("x-registry-auth").map(|value| value.to_str().unwrap().to_owned());
            let may = sent.as_deref() == Some(known);
            pulls.lock().unwrap().push(sent);
            // All who ask meanwhile are there by then.
            tokio::time::sleep(Duration::from_millis(200)).await;
            if may { r#"{"status":"done"}"# } else { r#"{"error":"pull access denied"}"# }
        };
        let version = || async { r#"{"ApiVersion":"1.47","MinAPIVersion":"1.24","Arch":"amd64"}"# };
        let routes = Router::new()
            .route("/version", get(version))
            .route("/v1.47/images/{name}/json", get(there))
            .route("/v1.47/images/create", post(pull))
            .with_state(Arc::clone(&pulls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        #[expect(clippy::disallowed_methods, reason = "a test's own server ends with it")]
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let _ = rustls::crypto::ring::default_provider().install_default();
        (Arc::new(Engine::new(&address, None).unwrap()), pulls)
    }

    #[tokio::test]
    async fn a_pull_says_who_pulls_and_is_shared_only_by_the_same() {
        let auth = |password| serde_json::from_value::<RegistryAuth>(json!({ "username": "u", "password": password })).unwrap();
        let (right, wrong) = (auth("right"), auth("wrong"));
        let header = right.header("private").unwrap().to_str().unwrap().to_owned();
        let (engine, pulls) = engine(header.leak()).await;
        let images = Images::default();
        let (denied, nobody) = tokio::join!(images.get(&engine, "private", Some(&wrong)), images.get(&engine, "private", None));
        assert_eq!((denied.unwrap_err().kind, nobody.unwrap_err().kind), (Kind::NoImage, Kind::NoImage));
        let (one, other) = tokio::join!(images.get(&engine, "private", Some(&right)), images.get(&engine, "private", Some(&right)));
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(pulls.lock().unwrap().len(), 3, "the wrong one's, nobody's, and one for both of the right");
        assert!(!format!("{images:?}").contains("right"));
    }

    #[test]
    fn a_port_is_no_tag() {
        assert_eq!(split("debian"), ("debian", "latest"));
        assert_eq!(split("debian:12"), ("debian", "12"));
        assert_eq!(split("registry:5000/a/b"), ("registry:5000/a/b", "latest"));
        assert_eq!(split("registry:5000/a/b:1"), ("registry:5000/a/b", "1"));
        assert_eq!(split("a@sha256:00"), ("a@sha256:00", ""));
    }
}
