//! One registered worker: its client, and what its present life said of itself. A new life is asked again before it is trusted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::address;
use super::client::{Call, Http};
use super::handshake::Handshake;
use crate::provider::{Kind, ProviderError, ResolvedConfig, Result};

/// How long an `initialize` may take.
const INITIALIZE: Duration = Duration::from_secs(15);

/// Why a worker could not be registered: at which step, and what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRegistered {
    /// Its address is none that may be called.
    Destination(&'static str),
    /// It was called, and this step failed.
    Step(&'static str, &'static str),
}

/// A worker at one URL.
#[derive(Debug)]
pub struct Worker {
    pub(super) http: Http,
    pub(super) tasks: TaskTracker,
    pub(super) scratch: PathBuf,
    deployment: Uuid,
    known: AsyncMutex<Option<Arc<Handshake>>>,
}

impl Worker {
    async fn at(url: &str, allowed: &[String], scratch: PathBuf, deployment: Uuid) -> std::result::Result<Self, NotRegistered> {
        let url = address::url(url).map_err(NotRegistered::Destination)?;
        let http = Http::open(&url, allowed).await.map_err(NotRegistered::Destination)?;
        Ok(Self { http, tasks: TaskTracker::new(), scratch, deployment, known: AsyncMutex::default() })
    }

    /// The first handshake, told step by step.
    pub async fn introduce(&self, token: Option<&str>) -> std::result::Result<Arc<Handshake>, NotRegistered> {
        let generation = self.http.alive(token).await.map_err(|e| NotRegistered::Step("healthz", e.message))?;
        let answer = self.initialize(token).await.map_err(|e| NotRegistered::Step("initialize", e.message))?;
        let handshake = heard(&answer, token).map_err(|why| NotRegistered::Step("manifest", why))?;
        if handshake.generation != generation {
            return Err(NotRegistered::Step("initialize", "its generation is another one than /healthz told"));
        }
        Ok(Arc::new(handshake))
    }

    /// What the worker's life of this moment said of itself. A life that was not heard yet is asked; one flight for all.
    pub async fn ready(&self, token: Option<&str>) -> Result<Arc<Handshake>> {
        let generation = self.http.alive(token).await?;
        let mut known = self.known.lock().await;
        if let Some(handshake) = known.as_ref().filter(|known| known.generation == generation) {
            return Ok(Arc::clone(handshake));
        }
        let answer = self.initialize(token).await?;
        let handshake = heard(&answer, token).map_err(|why| ProviderError::new(Kind::Transient, why))?;
        if handshake.generation != generation {
            return Err(ProviderError::new(Kind::Transient, "the plugin's worker was started anew meanwhile"));
        }
        let handshake = Arc::new(handshake);
        *known = Some(Arc::clone(&handshake));
        Ok(handshake)
    }

    /// Forgets what a life that is over said.
    pub(super) async fn heard_from(&self, generation: Option<&str>) {
        let mut known = self.known.lock().await;
        if known.as_ref().is_some_and(|known| generation.is_some_and(|heard| heard != known.generation)) {
            *known = None;
        }
    }

    /// How Berth introduces itself.
    pub(super) fn introduction(&self) -> Value {
        let instance = json!({ "instanceId": self.deployment, "hostVersion": env!("CARGO_PKG_VERSION") });
        json!({ "manifest": null, "config": {}, "instanceInfo": instance, "apiVersion": 1 })
    }

    async fn initialize(&self, token: Option<&str>) -> Result<Value> {
        let params = self.introduction();
        let call = Call { method: "initialize", params, token, fence: None, timeout: INITIALIZE, idempotency_key: None };
        Ok(self.http.call(call).await.map_err(ProviderError::from)?.result)
    }
}

/// Reads a handshake, which is kept and shown: it must not say what the worker was shown.
fn heard(answer: &Value, token: Option<&str>) -> std::result::Result<Handshake, &'static str> {
    let handshake = Handshake::read(answer)?;
    let hidden = token.map(|token| ResolvedConfig::default().hiding(token.to_owned()));
    let said = json!(handshake);
    if hidden.is_some_and(|hidden| hidden.stripped(&said) != said) {
        return Err("it repeats the token that it was shown");
    }
    Ok(handshake)
}

/// The workers of this server by registration. The address of each is looked up and checked once, until it cannot be reached there.
#[derive(Debug, Default)]
pub struct Workers {
    allowed: Vec<String>,
    scratch: PathBuf,
    open: Mutex<HashMap<Uuid, Arc<Worker>>>,
}

impl Workers {
    /// None yet. `allowed`: hosts that the operator lets be on private networks; `scratch`: where content is kept on its way.
    pub fn new(allowed: Vec<String>, scratch: PathBuf) -> Self {
        Self { allowed, scratch, open: Mutex::default() }
    }

    /// The worker of a registration.
    pub async fn of(&self, registration: Uuid, url: &str, deployment: Uuid) -> Result<Arc<Worker>> {
        if let Some(worker) = self.lock().get(&registration) {
            return Ok(Arc::clone(worker));
        }
        let refused = |_| ProviderError::new(Kind::Refused, "the plugin's URL may not be called from here");
        let worker = Arc::new(self.at(url, deployment).await.map_err(refused)?);
        Ok(Arc::clone(self.lock().entry(registration).or_insert(worker)))
    }

    /// A worker that is not registered yet.
    pub async fn at(&self, url: &str, deployment: Uuid) -> std::result::Result<Worker, NotRegistered> {
        Worker::at(url, &self.allowed, self.scratch.clone(), deployment).await
    }

    /// Forgets a registration's worker, and with it where it was.
    pub fn forget(&self, registration: Uuid) {
        self.lock().remove(&registration);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Worker>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
