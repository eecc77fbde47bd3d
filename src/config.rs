//! One typed configuration: flags over `BERTH_*` over a TOML file; a wrong setting fails the start naming its key.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people on a terminal, else JSON.
    #[default]
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// What stands between the commands of `local` and this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LocalIsolation {
    /// bubblewrap where it works, else nothing.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// bubblewrap; without it the server does not start.
    Bubblewrap,
}

/// A setting that must not be shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    /// The value, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// What may be set, by flag, by environment or in the file; what is absent has its default.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where the API listens [default: 127.0.0.1:7070; port 0 takes a free one]
    #[arg(long, env = "BERTH_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where metrics are served without a key [default: 127.0.0.1:7071]
    #[arg(long, env = "BERTH_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,
    /// Where data is kept [default: ./data]
    #[arg(long, env = "BERTH_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// `sqlite:PATH` or `postgres://…` [default: `sqlite:DATA_DIR/berth.db`]
    #[arg(long, env = "BERTH_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<Hidden>,
    /// Most connections to the database [default: 10]
    #[arg(long, env = "BERTH_DATABASE_MAX_CONNECTIONS", value_name = "COUNT")]
    pub database_max_connections: Option<u32>,
    /// Where archives are kept: `file:DIRECTORY`, or `s3://`, `gs://` or `az://` with a bucket and a prefix; credentials come from the
    /// environment as the service's own tools have them [default: <file:DATA_DIR/archives>]
    #[arg(long, env = "BERTH_ARCHIVE_URL", value_name = "URL", hide_env_values = true)]
    pub archive_url: Option<Hidden>,
    /// The first key of an empty database, 32 to 255 visible ASCII characters [default: one is made and shown]
    #[arg(long, env = "BERTH_BOOTSTRAP_KEY", value_name = "KEY", hide_env_values = true)]
    pub bootstrap_key: Option<Hidden>,
    /// What secrets are sealed with, 32 to 255 visible ASCII characters [default: with SQLite one is made, in `DATA_DIR/secret.key`]
    #[arg(long, env = "BERTH_SECRET_KEY", value_name = "KEY", hide_env_values = true)]
    pub secret_key: Option<Hidden>,
    /// Which providers may be used, separated by commas: local, docker, memory [default: local, and docker if its host is set]
    #[arg(long, env = "BERTH_PROVIDERS", value_name = "NAMES", value_delimiter = ',')]
    pub providers: Option<Vec<String>>,
    /// Serve the provider `local`, which runs commands as this user, on an address others can reach [default: false]
    #[arg(long, env = "BERTH_LOCAL_ALLOW_REMOTE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub local_allow_remote: Option<bool>,
    /// What stands between the commands of `local` and this machine; auto is bubblewrap where it works [default: auto]
    #[arg(long, env = "BERTH_LOCAL_ISOLATION", value_enum, value_name = "WHICH")]
    pub local_isolation: Option<LocalIsolation>,
    /// Let commands that bubblewrap isolates use this machine's network [default: false]
    #[arg(long, env = "BERTH_LOCAL_NETWORK", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub local_network: Option<bool>,
    /// The container engine: `unix:///path` or `tcp://host:port` [default: `DOCKER_HOST`, else this machine's socket]
    #[arg(long, env = "BERTH_DOCKER_HOST", value_name = "ADDRESS")]
    pub docker_host: Option<String>,
    /// The directory with ca.pem, cert.pem and key.pem for an engine behind TLS [default: no TLS]
    #[arg(long, env = "BERTH_DOCKER_CERT_PATH", value_name = "DIRECTORY")]
    pub docker_cert_path: Option<PathBuf>,
    /// The most memory a container may ask for, in MiB [default: 8192]
    #[arg(long, env = "BERTH_DOCKER_MAX_MEMORY_MB", value_name = "MIB")]
    pub docker_max_memory_mb: Option<u64>,
    /// The most processors a container may ask for [default: 8]
    #[arg(long, env = "BERTH_DOCKER_MAX_CPUS", value_name = "COUNT")]
    pub docker_max_cpus: Option<f64>,
    /// The most processes a container may ask for [default: 4096]
    #[arg(long, env = "BERTH_DOCKER_MAX_PIDS", value_name = "COUNT")]
    pub docker_max_pids: Option<u64>,
    /// Networks that containers may ask for besides none and bridge, separated by commas [default: no others]
    #[arg(long, env = "BERTH_DOCKER_NETWORKS", value_name = "NAMES", value_delimiter = ',')]
    pub docker_networks: Option<Vec<String>>,
    /// Runtimes that containers may ask for, such as runsc, separated by commas [default: the engine's own alone]
    #[arg(long, env = "BERTH_DOCKER_RUNTIMES", value_name = "NAMES", value_delimiter = ',')]
    pub docker_runtimes: Option<Vec<String>>,
    /// Hosts, with or without a port, that plugins may be at on private networks, separated by commas [default: none]
    #[arg(long, env = "BERTH_PLUGIN_ALLOW_HOSTS", value_name = "HOSTS", value_delimiter = ',')]
    pub plugin_allow_hosts: Option<Vec<String>>,
    /// How often expired leases are looked for, in milliseconds [default: 5000]
    #[arg(long, env = "BERTH_REAPER_PERIOD_MS", value_name = "MS")]
    pub reaper_period_ms: Option<u64>,
    /// How long a provider's object may be unknown before it is an orphan [default: 120]
    #[arg(long, env = "BERTH_ORPHAN_GRACE_SECONDS", value_name = "SECONDS")]
    pub orphan_grace_seconds: Option<u64>,
    /// How long a request waits for the provider before it answers 202 [default: 120]
    #[arg(long, env = "BERTH_PROVISION_WAIT_SECONDS", value_name = "SECONDS")]
    pub provision_wait_seconds: Option<u64>,
    /// How long a capture may take [default: 600]
    #[arg(long, env = "BERTH_CAPTURE_TIMEOUT_SECONDS", value_name = "SECONDS")]
    pub capture_timeout_seconds: Option<u64>,
    /// How long before its provider ends a sandbox its work is moved to the next one [default: 900]
    #[arg(long, env = "BERTH_ROTATION_LEAD_SECONDS", value_name = "SECONDS")]
    pub rotation_lead_seconds: Option<u64>,
    /// How many requests a second one credential may send, 0 for no limit [default: 5000]
    #[arg(long, env = "BERTH_RATE_LIMIT_PER_SECOND", value_name = "COUNT")]
    pub rate_limit_per_second: Option<u32>,
    /// How many of them at once, after a rest [default: 10000]
    #[arg(long, env = "BERTH_RATE_LIMIT_BURST", value_name = "COUNT")]
    pub rate_limit_burst: Option<u32>,
    /// Origins of web pages that may call the API, separated by commas [default: none]
    #[arg(long, env = "BERTH_CORS_ORIGINS", value_name = "ORIGINS", value_delimiter = ',')]
    pub cors_origins: Option<Vec<String>>,
    /// What is logged, such as `info` or `berth=debug` [default: info]
    #[arg(long, env = "BERTH_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// How logs are written [default: auto]
    #[arg(long, env = "BERTH_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

macro_rules! over {
    ($above:ident, $below:ident, $($field:ident),* $(,)?) => {
        Settings { $($field: $above.$field.or($below.$field)),* }
    };
}

impl Settings {
    /// These settings, and those of the layer below where these say nothing.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        over!(
            self,
            below,
            listen,
            metrics_listen,
            data_dir,
            database_url,
            database_max_connections,
            archive_url,
            bootstrap_key,
            secret_key,
            providers,
            local_allow_remote,
            local_isolation,
            local_network,
            docker_host,
            docker_cert_path,
            docker_max_memory_mb,
            docker_max_cpus,
            docker_max_pids,
            docker_networks,
            docker_runtimes,
            plugin_allow_hosts,
            reaper_period_ms,
            orphan_grace_seconds,
            provision_wait_seconds,
            capture_timeout_seconds,
            rotation_lead_seconds,
            rate_limit_per_second,
            rate_limit_burst,
            cors_origins,
            log,
            log_format,
        )
    }

    /// Reads the TOML layer.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("--config {}: {error}", path.display()))?;
        // The library's text quotes the offending line, which may be a secret; its message names the key and is enough.
        toml::from_str(&text).map_err(|error| format!("--config {}: {}", path.display(), error.message()))
    }
}

/// The configuration, complete and checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the API listens.
    pub listen: SocketAddr,
    /// Where metrics are served without a key.
    pub metrics_listen: SocketAddr,
    /// Where data is kept.
    pub data_dir: PathBuf,
    /// `sqlite:…` or `postgres://…`; may hold a password.
    pub database_url: Hidden,
    /// Most connections to the database.
    pub database_max_connections: u32,
    /// `file:…` or another object store.
    pub archive_url: Hidden,
    /// The first key of an empty database.
    pub bootstrap_key: Option<Hidden>,
    /// What secrets are sealed with, if it is set.
    pub secret_key: Option<Hidden>,
    /// Which providers may be used.
    pub providers: Vec<String>,
    /// Whether `local` may be served on an address others can reach.
    pub local_allow_remote: bool,
    /// What stands between the commands of `local` and this machine.
    pub local_isolation: LocalIsolation,
    /// Whether commands that bubblewrap isolates may use the network.
    pub local_network: bool,
    /// The container engine.
    pub docker: DockerConfig,
    /// Hosts that plugins may be at on private networks.
    pub plugin_allow_hosts: Vec<String>,
    /// How often expired leases are looked for.
    pub reaper_period: Duration,
    /// How long a provider's object may be unknown before it is an orphan.
    pub orphan_grace: Duration,
    /// How long a request waits for the provider before it answers 202.
    pub provision_wait: Duration,
    /// How long a capture may take.
    pub capture_timeout: Duration,
    /// How long before its provider ends a sandbox its work is moved to the next one.
    pub rotation_lead: Duration,
    /// How many requests a second one credential may send; 0 for no limit.
    pub rate_limit_per_second: u32,
    /// How many of them at once, after a rest.
    pub rate_limit_burst: u32,
    /// Origins of web pages that may call the API.
    pub cors_origins: Vec<String>,
    /// What is logged.
    pub log: String,
    /// How logs are written.
    pub log_format: LogFormat,
}

/// How the container engine is reached, and what no environment may go beyond.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    /// `unix://…` or `tcp://…`.
    pub host: String,
    /// The directory of the client's certificates.
    pub cert_path: Option<PathBuf>,
    /// The most memory of one container, in MiB.
    pub max_memory_mb: u64,
    /// The most processors of one container.
    pub max_cpus: f64,
    /// The most processes of one container.
    pub max_pids: u64,
    /// Networks besides `none` and `bridge`.
    pub networks: Vec<String>,
    /// Runtimes besides the engine's default.
    pub runtimes: Vec<String>,
}

/// Where an engine is unless somebody says otherwise.
const DOCKER_HOST: &str = "unix:///var/run/docker.sock";
/// Providers that can be named.
const PROVIDERS: [&str; 3] = ["local", "docker", "memory"];
/// The deadline of a provision; no request waits longer.
const PROVISION_DEADLINE: u64 = 600;

impl Config {
    /// Fills in defaults and checks the settings against each other; every problem is told, each with its keys.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let data_dir = settings.data_dir.unwrap_or_else(|| PathBuf::from("./data"));
        let below = |prefix: &str, name: &str| Hidden(format!("{prefix}:{}", data_dir.join(name).display()));
        // Who names an engine means to use it.
        let docker = settings.docker_host.is_some().then(|| "docker".to_owned());
        let unsaid = || std::iter::once("local".to_owned()).chain(docker).collect();
        let providers = settings.providers.unwrap_or_else(unsaid);
        let named = || std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
        let docker = DockerConfig {
            host: settings.docker_host.or_else(named).unwrap_or_else(|| DOCKER_HOST.to_owned()),
            cert_path: settings.docker_cert_path,
            max_memory_mb: settings.docker_max_memory_mb.unwrap_or(8192),
            max_cpus: settings.docker_max_cpus.unwrap_or(8.0),
            max_pids: settings.docker_max_pids.unwrap_or(4096),
            networks: settings.docker_networks.unwrap_or_default(),
            runtimes: settings.docker_runtimes.unwrap_or_default(),
        };
        let config = Self {
            listen: settings.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7070))),
            metrics_listen: settings.metrics_listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 7071))),
            database_url: settings.database_url.unwrap_or_else(|| below("sqlite", "berth.db")),
            database_max_connections: settings.database_max_connections.unwrap_or(10),
            archive_url: settings.archive_url.unwrap_or_else(|| below("file", "archives")),
            bootstrap_key: settings.bootstrap_key,
            secret_key: settings.secret_key,
            providers,
            local_allow_remote: settings.local_allow_remote.unwrap_or(false),
            local_isolation: settings.local_isolation.unwrap_or_default(),
            local_network: settings.local_network.unwrap_or(false),
            docker,
            plugin_allow_hosts: settings.plugin_allow_hosts.unwrap_or_default(),
            reaper_period: Duration::from_millis(settings.reaper_period_ms.unwrap_or(5_000)),
            orphan_grace: Duration::from_secs(settings.orphan_grace_seconds.unwrap_or(120)),
            provision_wait: Duration::from_secs(settings.provision_wait_seconds.unwrap_or(120)),
            capture_timeout: Duration::from_secs(settings.capture_timeout_seconds.unwrap_or(600)),
            rotation_lead: Duration::from_secs(settings.rotation_lead_seconds.unwrap_or(900)),
            rate_limit_per_second: settings.rate_limit_per_second.unwrap_or(5_000),
            rate_limit_burst: settings.rate_limit_burst.unwrap_or(10_000),
            cors_origins: settings.cors_origins.unwrap_or_default(),
            log: settings.log.unwrap_or_else(|| "info".to_owned()),
            log_format: settings.log_format.unwrap_or_default(),
            data_dir,
        };
        let problems = config.problems();
        if problems.is_empty() { Ok(config) } else { Err(problems.join("\n")) }
    }

    fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut demand = |holds: bool, otherwise: &str| {
            if !holds {
                found.push(otherwise.to_owned());
            }
        };
        let database = self.database_url.reveal();
        let is_sqlite = database.starts_with("sqlite:");
        demand(
            is_sqlite || database.starts_with("postgres://") || database.starts_with("postgresql://"),
            "BERTH_DATABASE_URL must begin with sqlite:, postgres:// or postgresql://",
        );
        let archive = self.archive_url.reveal();
        let bucket = ["s3://", "gs://", "az://"].iter().find_map(|scheme| archive.strip_prefix(scheme));
        demand(
            archive.starts_with("file:") || bucket.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')),
            "BERTH_ARCHIVE_URL must begin with file:, or be s3://, gs:// or az:// with a bucket and a prefix",
        );
        demand(self.database_max_connections >= 2, "BERTH_DATABASE_MAX_CONNECTIONS must be at least 2");
        for (name, key) in [("BERTH_BOOTSTRAP_KEY", &self.bootstrap_key), ("BERTH_SECRET_KEY", &self.secret_key)] {
            let fits = key.as_ref().is_none_or(|key| is_key(key.reveal()));
            demand(fits, &format!("{name} must have 32 to 255 visible ASCII characters"));
        }
        demand(!self.providers.is_empty(), "BERTH_PROVIDERS must name at least one provider");
        for name in self.providers.iter().filter(|name| !PROVIDERS.contains(&name.as_str())) {
            demand(false, &format!("BERTH_PROVIDERS names {name}; known are {}", PROVIDERS.join(", ")));
        }
        demand(
            self.docker.max_memory_mb >= 16 && self.docker.max_pids >= 16 && (0.01..=1024.0).contains(&self.docker.max_cpus),
            "BERTH_DOCKER_MAX_MEMORY_MB and BERTH_DOCKER_MAX_PIDS must be at least 16, and BERTH_DOCKER_MAX_CPUS 0.01 to 1024",
        );
        demand(
            self.docker.networks.iter().all(|name| name != "host" && !name.contains(':')),
            "BERTH_DOCKER_NETWORKS must name networks of the engine; host and container:… are none that a sandbox may have",
        );
        demand(!self.reaper_period.is_zero(), "BERTH_REAPER_PERIOD_MS must be at least 1");
        demand(!self.capture_timeout.is_zero(), "BERTH_CAPTURE_TIMEOUT_SECONDS must be at least 1");
        demand(
            self.rotation_lead > self.capture_timeout + self.reaper_period,
            "BERTH_ROTATION_LEAD_SECONDS must be longer than BERTH_CAPTURE_TIMEOUT_SECONDS and BERTH_REAPER_PERIOD_MS together, \
             or a sandbox may end before its work is saved",
        );
        demand(
            self.rate_limit_burst >= 1 && self.rate_limit_per_second <= 1_000_000,
            "BERTH_RATE_LIMIT_BURST must be at least 1, and BERTH_RATE_LIMIT_PER_SECOND at most 1000000",
        );
        for origin in self.cors_origins.iter().filter(|origin| !is_origin(origin)) {
            demand(false, &format!("BERTH_CORS_ORIGINS names {origin}, which is no origin such as https://app.example.com"));
        }
        demand(
            self.provision_wait.as_secs() <= PROVISION_DEADLINE,
            "BERTH_PROVISION_WAIT_SECONDS must be at most 600, the deadline of a provision",
        );
        demand(
            self.orphan_grace > self.reaper_period,
            "BERTH_ORPHAN_GRACE_SECONDS must be longer than BERTH_REAPER_PERIOD_MS, or new objects look like orphans",
        );
        demand(
            self.listen != self.metrics_listen || self.listen.port() == 0,
            "BERTH_LISTEN and BERTH_METRICS_LISTEN must not be the same address",
        );
        demand(
            !self.providers.iter().any(|name| name == "local") || self.listen.ip().is_loopback() || self.local_allow_remote,
            "BERTH_LISTEN is reachable by others while BERTH_PROVIDERS has local, which runs commands on this machine as this user; \
             listen on a loopback address, or set BERTH_LOCAL_ALLOW_REMOTE=true if that is meant",
        );
        found
    }

    /// Whether the database is the embedded one, which only one server may use.
    pub fn is_embedded(&self) -> bool {
        self.database_url.reveal().starts_with("sqlite:")
    }
}

/// Whether a text will do as a key.
pub fn is_key(key: &str) -> bool {
    (32..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic())
}

/// An origin as a browser sends it, such as `https://app.example.com`; `*` is none, because it would be every page in the world.
fn is_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_defaults() {
        let above = Settings { log: Some("debug".to_owned()), ..Settings::default() };
        let below: Settings = toml::from_str("log = \"warn\"\nreaper_period_ms = 100\nproviders = [\"memory\"]").unwrap();
        let config = Config::new(above.over(below)).unwrap();
        assert_eq!((config.log.as_str(), config.reaper_period), ("debug", Duration::from_millis(100)));
        assert_eq!(config.database_url.reveal(), "sqlite:./data/berth.db");
    }

    #[test]
    fn archives_are_kept_in_a_directory_or_a_bucket_and_nowhere_else() {
        let with = |url: &str| Config::new(Settings { archive_url: Some(Hidden(url.to_owned())), ..Settings::default() });
        for known in ["file:archives", "file:///var/berth", "s3://bucket/prefix", "gs://bucket", "az://container/prefix"] {
            with(known).unwrap();
        }
        for unknown in ["", "/var/berth", "s3:bucket", "s3://", "s3:///prefix", "http://host/x", "ftp://host/x", "S3://bucket"] {
            let told = with(unknown).unwrap_err();
            assert!(told.contains("BERTH_ARCHIVE_URL"), "{unknown}: {told}");
        }
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = toml::from_str::<Settings>("lisen = \"127.0.0.1:1\"").unwrap_err();
        assert!(error.message().contains("lisen"), "{error}");
    }

    #[test]
    fn contradictions_name_both_keys() {
        let settings = Settings {
            listen: Some(SocketAddr::from(([0, 0, 0, 0], 7070))),
            orphan_grace_seconds: Some(1),
            reaper_period_ms: Some(5000),
            capture_timeout_seconds: Some(900),
            ..Settings::default()
        };
        let told = Config::new(settings).unwrap_err();
        for key in [
            "BERTH_LISTEN",
            "BERTH_LOCAL_ALLOW_REMOTE",
            "BERTH_ORPHAN_GRACE_SECONDS",
            "BERTH_REAPER_PERIOD_MS",
            "BERTH_ROTATION_LEAD_SECONDS",
            "BERTH_CAPTURE_TIMEOUT_SECONDS",
        ] {
            assert!(told.contains(key), "{told}");
        }
    }

    #[test]
    fn debug_hides_secrets() {
        let settings = Settings {
            bootstrap_key: Some(Hidden("s".repeat(40))),
            database_url: Some(Hidden("postgres://u:hunter2@h/d".to_owned())),
            ..Settings::default()
        };
        let shown = format!("{settings:?} {:?}", Config::new(settings.clone()).unwrap());
        assert!(!shown.contains("hunter2") && !shown.contains("ssss"));
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host_and_nothing_more() {
        for origin in ["https://app.example.com", "http://localhost:5173", "http://[::1]:80"] {
            assert!(is_origin(origin), "{origin}");
        }
        for origin in ["*", "null", "app.example.com", "https://", "https://a/b", "https://a?b", "ftp://a", "https://u@a"] {
            assert!(!is_origin(origin), "{origin}");
        }
    }
}
