//! Verbs: one file a verb, a story from top to bottom. The only room that knows the store and the providers.
//!
//! Every story keeps the database and the world in separate breaths: a transaction decides and writes down what is to be
//! done, then the provider is called with no transaction open, then a second, fenced transaction writes down what happened.

pub mod acquire;
pub mod admit;
pub mod archive_environment;
pub mod attach;
pub mod boot;
pub mod caller;
pub mod capture;
pub mod checkpoint;
pub mod collect;
pub mod delete;
pub mod destroy;
pub mod draining;
pub mod drive;
pub mod end;
pub mod environment;
pub mod events;
pub mod examine;
pub mod exec;
pub mod explain;
pub mod files;
pub mod gauges;
pub mod health;
pub mod idempotency;
pub mod input;
pub mod instance;
pub mod keys;
pub mod lease;
pub mod ledger;
pub mod limits;
pub mod listen;
pub mod loss;
pub mod maintenance;
pub mod make;
pub mod many;
mod native;
pub mod observe;
pub mod organization;
pub mod output;
pub mod plugins;
pub mod probe;
pub mod provider;
pub mod provision;
pub mod quiet;
pub mod rate;
pub mod reap;
pub mod record;
pub mod recover;
pub mod release;
pub mod renew;
pub mod restore;
pub mod resume;
pub mod retain;
pub mod rollback;
pub mod rotate;
pub mod sandbox;
pub mod secrets;
pub mod spool;
pub mod streams;
pub mod succeed;
mod successor;
pub mod sweep;
mod sweep_snapshots;
pub mod sync;
pub mod take;
pub mod tasks;
pub mod terminate;
#[cfg(test)]
pub mod testing;
pub mod upload;
pub mod view;
pub mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use caller::{Caller, Credential};
pub use work::Work;

use crate::archive::blob::Blobs;
use crate::error::{Code, Error, Result};
use crate::model::instance::Instance;
use crate::provider::Provider;
use crate::provider::plugin::worker::Workers;
use crate::provider::registry::Registry;
use crate::store::Store;
use crate::store::organization::Deployment;

/// The bounds the operator sets; each has the contract's default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a request waits for provider work it started before it answers 202.
    pub provision_wait: Duration,
    /// When a provisioning must be over.
    pub provision_deadline: Duration,
    /// How long after the last create call an absence is believed.
    pub orphan_grace: Duration,
    /// When a capture must be over.
    pub capture_timeout: Duration,
    /// How long before its provider ends an instance its work is moved to the next one.
    pub rotation_lead: Duration,
    /// How long one call of a provider may take.
    pub call_timeout: Duration,
    /// How long transient failures of a resume are retried.
    pub resume_retry: Duration,
    /// How long a release waits for running commands.
    pub drain_wait: Duration,
    /// How long a write waits for a capture or another transition before it is told to come again.
    pub gate_wait: Duration,
    /// How often the background tasks look.
    pub reaper_period: Duration,
    /// How many requests a second one credential may send; 0 for no limit.
    pub rate_limit_per_second: u32,
    /// How many of them at once, after a rest.
    pub rate_limit_burst: u32,
    /// The directory that keeps what the database would not record; without one it is kept in memory alone.
    pub spool: Option<PathBuf>,
    /// Hosts that plugins may be at on private networks.
    pub plugin_allow_hosts: Vec<String>,
    /// Where content is kept on its way to a plugin.
    pub scratch: PathBuf,
    /// What secrets are sealed with; without it this server neither stores nor opens any.
    pub secret_key: Option<crate::model::secret::Key>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            provision_wait: Duration::from_secs(120),
            provision_deadline: Duration::from_secs(600),
            orphan_grace: Duration::from_secs(120),
            capture_timeout: Duration::from_secs(600),
            rotation_lead: Duration::from_secs(900),
            call_timeout: Duration::from_secs(60),
            resume_retry: Duration::from_secs(60),
            drain_wait: Duration::from_secs(30),
            gate_wait: Duration::from_secs(30),
            reaper_period: Duration::from_secs(5),
            rate_limit_per_second: 5_000,
            rate_limit_burst: 10_000,
            spool: None,
            plugin_allow_hosts: Vec::new(),
            scratch: std::env::temp_dir(),
            secret_key: None,
        }
    }
}

/// Everything a verb needs.
pub struct Berth {
    /// The database.
    pub store: Store,
    /// The providers of this server.
    pub providers: Registry,
    /// The workers of plugins.
    pub plugins: Workers,
    /// Where portable archives live.
    pub blobs: Blobs,
    /// The operator's bounds.
    pub settings: Settings,
    /// Who we are to providers, and the key of lease tokens.
    pub deployment: Deployment,
    /// Tracked tasks, held claims, and who waits for what.
    pub work: Work,
    /// API keys seen in the last seconds.
    pub(crate) keys: moka::future::Cache<String, crate::model::key::ApiKey>,
    /// How fast each credential asks.
    pub rate: rate::Rate,
    /// How many streams each credential follows.
    pub streams: streams::Streams,
    /// What the background did last.
    pub tasks: tasks::Tasks,
    /// Names of objects that the database would not record.
    pub spool: spool::Spool,
    pub(crate) draining: draining::LastLook,
    /// The directory of a test's server, gone with it.
    #[cfg(test)]
    pub(crate) scratch: std::sync::OnceLock<tempfile::TempDir>,
}

impl Berth {
    /// Puts the parts of a server together; the store is migrated already.
    pub async fn open(store: Store, providers: Registry, blobs: Blobs, settings: Settings) -> Result<Arc<Self>> {
        if store.is_sqlite() {
            let mut tx = store.begin().await?;
            tx.drop_all_claims().await?;
            tx.commit().await?;
        }
        Self::beside(store, providers, blobs, settings).await
    }

    /// Puts the same parts together for whoever only looks, perhaps beside a server.
    pub async fn beside(store: Store, providers: Registry, blobs: Blobs, settings: Settings) -> Result<Arc<Self>> {
        let deployment = store.read().await?.deployment().await?;
        let keys = moka::future::Cache::builder().max_capacity(10_000).time_to_live(Duration::from_secs(3)).build();
        let rate = rate::Rate::new(settings.rate_limit_per_second, settings.rate_limit_burst);
        Ok(Arc::new(Self {
            rate,
            streams: streams::Streams::default(),
            tasks: tasks::Tasks::default(),
            spool: spool::Spool::open(settings.spool.clone()),
            draining: draining::LastLook::default(),
            store,
            providers,
            plugins: Workers::new(settings.plugin_allow_hosts.clone(), settings.scratch.clone()),
            blobs,
            settings,
            deployment,
            work: Work::default(),
            keys,
            #[cfg(test)]
            scratch: std::sync::OnceLock::new(),
        }))
    }

    /// The provider an instance was made by, by what its row recorded.
    pub async fn provider_of(&self, instance: &Instance) -> Result<Arc<dyn Provider>> {
        if plugins::is_plugin(&instance.provider) {
            return plugins::bind(self, instance).await;
        }
        self.providers.get(&instance.provider).ok_or_else(|| {
            Error::new(Code::ProviderUnavailable, format!("This server does not run the provider {}.", instance.provider))
                .retry_after(Duration::from_secs(30))
        })
    }
}

/// A step the design does not have is a fault of ours, never the caller's.
pub(crate) fn step<T>(step: std::result::Result<T, crate::model::IllegalStep>) -> Result<T> {
    step.map_err(|illegal| {
        tracing::error!(%illegal, "an illegal step was tried");
        Error::new(Code::Internal, "The state does not allow this step; nothing was changed.")
    })
}

/// Tells a provider's failure in the contract's words; its own words go nowhere.
pub(crate) fn provider_failed(error: &crate::provider::ProviderError) -> Error {
    use crate::provider::Kind;
    let wait = Duration::from_secs(2);
    let kind = error.kind.as_str();
    match error.kind {
        Kind::Refused | Kind::Transient => {
            Error::new(Code::ProviderUnavailable, format!("The provider did not take the call: {}.", error.message)).retry_after(wait)
        }
        Kind::Throttled(wait) => Error::new(Code::ProviderUnavailable, "The provider asks for fewer calls.").retry_after(wait),
        Kind::Indeterminate => Error::new(Code::ProviderTimeout, "The provider's answer was lost; whether it happened is being found out."),
        Kind::Invalid => Error::new(Code::ConfigInvalid, format!("The provider cannot work with this configuration: {}.", error.message)),
        Kind::Failed => Error::new(Code::ProviderError, format!("The provider answered that it failed: {}.", error.message)),
        Kind::NoImage => Error::new(Code::ImageUnavailable, format!("The sandbox's image cannot be used: {}.", error.message)),
        Kind::Unsupported => Error::new(Code::CapabilityNotGranted, "This provider has no such verb."),
        Kind::Full => Error::new(Code::StorageFull, "The provider's storage is full."),
        Kind::NotFound | Kind::Mismatch => crate::store::fence::instance_lost(),
        Kind::Fenced => Error::new(Code::LeaseNotActive, "The sandbox has passed to another grant; nothing was done."),
        Kind::Path => Error::new(Code::InvalidPath, format!("This path cannot be used: {}.", error.message)),
        Kind::FileNotFound => Error::new(Code::FileNotFound, "There is no such file in the sandbox."),
        Kind::IsADirectory => Error::new(Code::IsADirectory, "This path is a directory."),
        Kind::NotADirectory => Error::new(Code::NotADirectory, "A part of this path is not a directory."),
        Kind::DirectoryNotEmpty => Error::new(Code::DirectoryNotEmpty, "This directory has entries; delete it with recursive=true."),
        Kind::FileExists => Error::new(Code::FileExists, "Something exists at this path already."),
    }
    .fact("provider_error_kind", kind)
}

/// A named place at which a test may end the process as SIGKILL would; nothing outside the test feature.
#[cfg(feature = "testing")]
pub(crate) fn crash_point(name: &str) {
    if std::env::var("BERTH_CRASH_AT").is_ok_and(|at| at == name) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[cfg(not(feature = "testing"))]
pub(crate) fn crash_point(_name: &str) {}
