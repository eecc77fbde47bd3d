//! Looking at containers, starting, stopping and ending them; and what proves that one is gone.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use super::Docker;
use super::create::Owner;
use super::engine::Failure;
use super::owner::{DEPLOYMENT, USER, WORKSPACE};
use super::wire::{Container, Listing};
use crate::clock::Time;
use crate::provider::{Destroyed, Kind, Listed, Observation, OwnerTag, Presence, ProviderError, Result};

/// How long a container may take to end by itself before it is killed, in seconds.
const GRACE: &str = "5";
/// How long a removal that somebody else began is waited for.
const REMOVAL: Duration = Duration::from_secs(20);

/// What stays the same over a container's life.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) tag: OwnerTag,
    pub(super) workspace: String,
    pub(super) owner: Owner,
    /// Only volumes and tmpfs can be written to.
    pub(super) read_only: bool,
}

impl Docker {
    /// A container as the engine shows it; `NotFound` only with proof.
    pub(super) async fn inspect(&self, id: &str) -> Result<Container> {
        match self.engine.get(&format!("/containers/{}/json", safe(id)?), &[]).await {
            Ok(container) => Ok(container),
            Err(failure) if failure.is(404) => Err(self.gone().await),
            // A look can be repeated, whatever became of its answer.
            Err(Failure::Lost(_)) => Err(ProviderError::new(Kind::Transient, "the container engine did not answer")),
            Err(failure) => Err(failure.into()),
        }
    }

    /// What the engine's not-found means.
    pub(super) async fn gone(&self) -> ProviderError {
        match self.binding.still(&self.engine).await {
            Ok(()) => ProviderError::new(Kind::NotFound, "no such container"),
            Err(error) => error,
        }
    }

    /// The facts of a container of ours; `NotFound` only with proof, `Refused` for somebody else's.
    pub(super) async fn facts(&self, id: &str) -> Result<Arc<Facts>> {
        if let Some(known) = self.facts.get(id) {
            return Ok(known);
        }
        let facts = Arc::new(self.facts_of(&self.inspect(id).await?)?);
        self.facts.insert(id.to_owned(), Arc::clone(&facts));
        Ok(facts)
    }

    fn facts_of(&self, container: &Container) -> Result<Facts> {
        let foreign = || ProviderError::new(Kind::Refused, "the container is not ours");
        let labels = container.config.labels.as_ref().ok_or_else(foreign)?;
        let tag = self.seal.tag_of(&container.name, labels).ok_or_else(foreign)?;
        let workspace = labels.get(WORKSPACE).cloned().ok_or_else(foreign)?;
        let owner = labels.get(USER).and_then(|user| Owner::parse(user)).ok_or_else(foreign)?;
        Ok(Facts { tag, workspace, owner, read_only: container.host_config.readonly_rootfs })
    }

    pub(super) async fn look(&self, binding: &str, id: &str) -> Observation {
        let named = async || self.binding.read(&self.engine).await.is_ok_and(|now| now == binding);
        // Looked at between two readings of the binding: what another engine does not have is not absent.
        if !named().await {
            return Observation::Unknown;
        }
        let seen = self.inspect(id).await;
        if !named().await {
            return Observation::Unknown;
        }
        match seen {
            Ok(container) if self.facts_of(&container).is_ok() => match container.state.status.as_str() {
                "running" => Observation::Present(Presence::Running),
                "paused" => Observation::Present(Presence::Paused),
                "created" | "exited" => Observation::Present(Presence::Stopped),
                "dead" => Observation::Present(Presence::Ended),
                _ => Observation::Unknown,
            },
            Err(error) if error.kind == Kind::NotFound => Observation::Absent,
            _ => Observation::Unknown,
        }
    }

    pub(super) async fn run(&self, id: &str) -> Result<()> {
        let container = self.inspect(id).await?;
        self.facts_of(&container)?;
        let verb = if container.state.status == "paused" { "unpause" } else { "start" };
        self.act_on(id, Method::POST, verb, &[]).await
    }

    pub(super) async fn halt(&self, id: &str) -> Result<()> {
        self.facts(id).await?;
        self.commands.doom(id, None);
        self.act_on(id, Method::POST, "stop", &[("t", GRACE)]).await
    }

    /// Kills everything in a container at once; its files stay, and it can be started again.
    pub(super) async fn kill_all(&self, id: &str) -> Result<()> {
        match self.engine.act(Method::POST, &format!("/containers/{}/kill", safe(id)?), &[("signal", "KILL")]).await {
            Ok(_) => {}
            // Not running is what was wanted, and is looked for; Podman tells it like any failure of its own.
            Err(failure) if failure.is(409) || failure.is(500) => {}
            Err(failure) if failure.is(404) => return Err(self.gone().await),
            Err(failure) => return Err(failure.into()),
        }
        for _ in 0..100 {
            if !matches!(self.inspect(id).await?.state.status.as_str(), "running" | "paused" | "restarting") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(ProviderError::new(Kind::Transient, "the container does not end"))
    }

    async fn act_on(&self, id: &str, method: Method, verb: &str, query: &[(&str, &str)]) -> Result<()> {
        match self.engine.act(method, &format!("/containers/{}/{verb}", safe(id)?), query).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is(404) => {
                // A start also says 404 for a network that is gone.
                self.inspect(id).await?;
                Err(ProviderError::new(Kind::Transient, "something the container needs is missing"))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn remove(&self, id: &str) -> Result<Destroyed> {
        match self.facts(id).await {
            Ok(_) => {}
            Err(error) if error.kind == Kind::NotFound => return Ok(Destroyed::AlreadyGone),
            Err(error) => return Err(error),
        }
        self.commands.doom(id, None);
        let removed = self.engine.act(Method::DELETE, &format!("/containers/{}", safe(id)?), &[("force", "true"), ("v", "true")]).await;
        match removed {
            Ok(_) => Ok(Destroyed::Ended),
            Err(failure) if failure.is(404) => match self.gone().await {
                error if error.kind == Kind::NotFound => Ok(Destroyed::AlreadyGone),
                error => Err(error),
            },
            // Somebody is removing it already.
            Err(failure) if failure.is(409) => self.removed_by_another(id).await,
            Err(failure) => Err(failure.into()),
        }
    }

    async fn removed_by_another(&self, id: &str) -> Result<Destroyed> {
        let patience = tokio::time::Instant::now() + REMOVAL;
        loop {
            match self.inspect(id).await {
                Err(error) if error.kind == Kind::NotFound => return Ok(Destroyed::Ended),
                Err(error) => return Err(error),
                Ok(_) if tokio::time::Instant::now() > patience => {
                    return Err(ProviderError::new(Kind::Transient, "the container is being removed"));
                }
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(super) async fn inventory(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        let filters = json!({ "label": [format!("{DEPLOYMENT}={deployment}")] }).to_string();
        let found: Vec<Listing> = self.engine.get("/containers/json", &[("all", "true"), ("filters", &filters)]).await?;
        let ours = found.into_iter().filter_map(|one| {
            let labels = one.labels?;
            let tag = one.names.iter().find_map(|name| self.seal.tag_of(name, &labels))?;
            Some(Listed { provider_ref: one.id, tag, created_at: Some(Time(one.created.saturating_mul(1000))) })
        });
        Ok(ours.collect())
    }
}

/// A ref as it may stand in a path: no other name than the engine's own id was ever given out.
pub(super) fn safe(id: &str) -> Result<&str> {
    if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(id);
    }
    Err(ProviderError::new(Kind::NotFound, "no ref of this provider"))
}
