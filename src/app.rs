//! The only room that knows every concrete type: it wires, serves and stops.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use rustix::fs::{FlockOperation, flock};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::archive::Blobs;
use crate::background;
use crate::config::{Config, Hidden, LocalIsolation, is_key};
use crate::http;
use crate::model::secret;
use crate::ops::{self, Berth};
use crate::provider::docker::{Address, Ceilings, Certificates, Docker, DockerSettings, Seal};
use crate::provider::local::Local;
use crate::provider::memory::Memory;
use crate::provider::registry::Registry;
use crate::provider::{Confinement, LocalSettings, Provider, ProviderError, Wish};
use crate::store::Store;
use crate::telemetry;

/// How long requests that are being answered may take to finish once a stop was asked for.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long work that no request waits for may take to come to a good place.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Why the service could not start or go on, for the person at the terminal.
pub type Result<T> = std::result::Result<T, String>;

/// A service that is wired and listens, and answers as soon as [`App::serve`] is awaited.
pub struct App {
    /// Where the API listens.
    pub address: SocketAddr,
    /// Where metrics are served, unless that address was taken.
    pub metrics_address: Option<SocketAddr>,
    /// The file with the key that was made because the database was empty and no key was set, and that key.
    pub made_key: Option<(PathBuf, String)>,
    berth: Arc<Berth>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    cors_origins: Vec<String>,
    _lock: Option<DataLock>,
}

impl App {
    /// Opens everything the service stands on and takes its addresses.
    pub async fn open(config: &Config) -> Result<Self> {
        let (berth, lock) = open_berth(config).await?;
        let bootstrap = config.bootstrap_key.as_ref().map(Hidden::reveal);
        let made = ops::boot::first_start(&berth, bootstrap).await.map_err(|error| error.to_string())?;
        let made_key = made.map(|key| keep_key(&config.data_dir, "bootstrap.key", key)).transpose()?;
        let listener = listen(config.listen).await.map_err(|error| format!("BERTH_LISTEN {}: {error}", config.listen))?;
        let address = listener.local_addr().map_err(|error| format!("BERTH_LISTEN: {error}"))?;
        // Metrics are worth less than the service: a taken port is told and nothing more.
        let metrics = listen(config.metrics_listen)
            .await
            .inspect_err(|error| tracing::warn!(address = %config.metrics_listen, %error, "metrics are not served"))
            .ok();
        let metrics_address = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
        Ok(Self { address, metrics_address, made_key, berth, listener, metrics, cors_origins: config.cors_origins.clone(), _lock: lock })
    }

    /// The provider of this name, for whoever wants to do something behind the service's back.
    pub fn provider(&self, kind: &str) -> Option<Arc<dyn Provider>> {
        self.berth.providers.get(kind)
    }

    /// Answers requests until `stop`, then lets those being answered finish, for a while.
    pub async fn serve(self, stop: CancellationToken) -> Result<()> {
        background::start(&self.berth);
        let berth = Arc::clone(&self.berth);
        let api = answer(self.listener, http::cors::allow(http::router(Arc::clone(&self.berth)), &self.cors_origins), stop.clone());
        let metrics = async {
            match self.metrics {
                Some(listener) => answer(listener, http::metrics_router(Arc::clone(&self.berth)), stop.clone()).await,
                None => Ok(()),
            }
        };
        let out_of_patience = async {
            stop.cancelled().await;
            // Those who follow events are never finished by themselves: their streams end now, and go on at another server.
            berth.work.stopping().cancel();
            tokio::time::sleep(PATIENCE).await;
        };
        let served = tokio::select! {
            served = async { tokio::try_join!(api, metrics) } => served.map(|_| ()).map_err(|error| format!("serving: {error}")),
            () = telemetry::upkeep() => Ok(()),
            () = out_of_patience => {
                tracing::warn!("requests were still being answered when patience ended");
                Ok(())
            }
        };
        if !berth.work.stop(LAST_WORK).await {
            tracing::warn!("work was still under way when patience ended; the next server takes it over");
        }
        berth.give_up_claims().await;
        berth.store.close().await;
        served
    }
}

/// Opens the database, the archive and the providers; the embedded database only for one process at a time.
pub async fn open_berth(config: &Config) -> Result<(Arc<Berth>, Option<DataLock>)> {
    std::fs::create_dir_all(&config.data_dir).map_err(|error| format!("BERTH_DATA_DIR {}: {error}", config.data_dir.display()))?;
    let lock = if config.is_embedded() { Some(DataLock::take(&config.data_dir)?) } else { None };
    let store = open_store(config).await?;
    store.migrate().await.map_err(|error| format!("BERTH_DATABASE_URL: the schema cannot be brought up to date: {error}"))?;
    let deployment = async { store.read().await?.deployment().await };
    let deployment = deployment.await.map_err(|error| format!("BERTH_DATABASE_URL: the deployment cannot be read: {error}"))?;
    let providers = providers(config, &Seal::of(&deployment.signing_key))?;
    let blobs = Blobs::open(config.archive_url.reveal()).map_err(|error| format!("BERTH_ARCHIVE_URL: {error}"))?;
    let settings = ops::Settings { secret_key: secret_key(config)?, ..settings(config) };
    let berth = Berth::open(store, providers, blobs, settings).await.map_err(|error| error.to_string())?;
    Ok((berth, lock))
}

/// The same parts for whoever only looks, perhaps beside a server: nothing is migrated, locked or dropped.
pub async fn look(config: &Config, store: Store) -> Result<Arc<Berth>> {
    let deployment = async { store.read().await?.deployment().await };
    let deployment = deployment.await.map_err(|error| format!("BERTH_DATABASE_URL: the deployment cannot be read: {error}"))?;
    let providers = providers(config, &Seal::of(&deployment.signing_key))?;
    let blobs = Blobs::open(config.archive_url.reveal()).map_err(|error| format!("BERTH_ARCHIVE_URL: {error}"))?;
    Berth::beside(store, providers, blobs, settings(config)).await.map_err(|error| error.to_string())
}

/// What secrets are sealed with: what was set, else with the embedded database a key of its own, made once.
fn secret_key(config: &Config) -> Result<Option<secret::Key>> {
    if let Some(set) = &config.secret_key {
        return Ok(Some(secret::Key::of(set.reveal())));
    }
    if !config.is_embedded() {
        return Ok(None);
    }
    let path = config.data_dir.join("secret.key");
    let mut text = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    // An empty file is what a start that died while it made the key leaves.
    if text.is_empty() {
        let made = ops::boot::random_text().map_err(|error| error.to_string())?;
        (_, text) = keep_key(&config.data_dir, "secret.key", made)?;
    }
    if !is_key(&text) {
        return Err(format!("{}: it must hold 32 to 255 visible ASCII characters", path.display()));
    }
    Ok(Some(secret::Key::of(&text)))
}

/// Opens the database as it is.
pub async fn open_store(config: &Config) -> Result<Store> {
    let opened = Store::connect(config.database_url.reveal(), config.database_max_connections).await;
    opened.map_err(|error| format!("BERTH_DATABASE_URL: the database cannot be opened ({error})"))
}

fn providers(config: &Config, seal: &Seal) -> Result<Registry> {
    let mut wired: Vec<Arc<dyn Provider>> = Vec::new();
    for name in &config.providers {
        match name.as_str() {
            "local" => {
                let shim = std::env::current_exe().map_err(|error| format!("the program's own file: {error}"))?;
                let settings = LocalSettings { root: config.data_dir.join("local"), shim, confinement: confinement(config) };
                let told = |error: ProviderError| format!("BERTH_DATA_DIR or BERTH_LOCAL_ISOLATION: provider local: {error}");
                wired.push(Arc::new(Local::open(&settings).map_err(told)?));
            }
            "docker" => wired.push(Arc::new(docker(config, seal)?)),
            _ => wired.push(Arc::new(Memory::new())),
        }
    }
    Registry::new(wired).map_err(|error| format!("BERTH_PROVIDERS: {error}"))
}

fn confinement(config: &Config) -> Confinement {
    let bubblewrap = match config.local_isolation {
        LocalIsolation::Auto => Wish::IfItWorks,
        LocalIsolation::None => Wish::Never,
        LocalIsolation::Bubblewrap => Wish::Always,
    };
    Confinement { bubblewrap, network: config.local_network, ..Confinement::default() }
}

fn docker(config: &Config, seal: &Seal) -> Result<Docker> {
    let of = &config.docker;
    let settings = DockerSettings {
        address: Address::parse(&of.host).map_err(|why| format!("BERTH_DOCKER_HOST: {why}"))?,
        certificates: of.cert_path.clone().map(Certificates),
        ceilings: Ceilings {
            memory_mb: of.max_memory_mb,
            cpus: of.max_cpus,
            pids: of.max_pids,
            networks: of.networks.clone(),
            runtimes: of.runtimes.clone(),
        },
        scratch: config.data_dir.join("docker"),
        seal: seal.clone(),
    };
    Docker::open(settings).map_err(|error| format!("BERTH_DOCKER_CERT_PATH: {error}"))
}

/// Where the names of objects are kept that the database would not record.
pub fn spool_directory(config: &Config) -> PathBuf {
    config.data_dir.join("spool")
}

/// What the verbs need to know of the configuration.
pub fn settings(config: &Config) -> ops::Settings {
    ops::Settings {
        provision_wait: config.provision_wait,
        capture_timeout: config.capture_timeout,
        rotation_lead: config.rotation_lead,
        orphan_grace: config.orphan_grace,
        reaper_period: config.reaper_period,
        rate_limit_per_second: config.rate_limit_per_second,
        rate_limit_burst: config.rate_limit_burst,
        spool: Some(spool_directory(config)),
        plugin_allow_hosts: config.plugin_allow_hosts.clone(),
        scratch: config.data_dir.join("plugin"),
        ..ops::Settings::default()
    }
}

async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

async fn answer(listener: TcpListener, routes: Router, stop: CancellationToken) -> io::Result<()> {
    // Answers are small and waited for; a socket that waits to fill a packet would only delay them.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
    });
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// The lock on a data directory: the embedded database has one server. Released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub struct DataLock(#[expect(dead_code, reason = "held, not read")] File);

impl DataLock {
    /// Takes the lock, or says that another process has it.
    pub fn take(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join("berth.lock");
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(|error| told(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(format!("another berth uses the data directory {} (BERTH_DATA_DIR)", data_dir.display()))
            }
            Err(error) => Err(told(&error)),
        }
    }
}

/// Writes a key that was made where only its owner can read it.
fn keep_key(data_dir: &Path, name: &str, key: String) -> Result<(PathBuf, String)> {
    let path = data_dir.join(name);
    let write = || {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        writeln!(file, "{key}")?;
        file.sync_all()
    };
    write().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((path, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataLock::take(dir.path()).unwrap();
        assert!(DataLock::take(dir.path()).unwrap_err().contains("BERTH_DATA_DIR"));
        drop(first);
        DataLock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_made_key_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = keep_key(dir.path(), "bootstrap.key", "berth_sk_x".to_owned()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "berth_sk_x\n");
    }

    #[tokio::test]
    async fn a_stop_lets_requests_finish() {
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let slow = move || async move {
            asked.cancel();
            tokio::time::sleep(Duration::from_millis(50)).await;
            "finished"
        };
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}/slow", listener.local_addr().unwrap());
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let routes = Router::new().route("/slow", axum::routing::get(slow));
        let (served, got) = tokio::join!(answer(listener, routes, stop), client.get(url).send());
        served.unwrap();
        assert_eq!(got.unwrap().text().await.unwrap(), "finished");
    }
}
