//! What an environment may ask of a container, and what it gets unasked. What could reach the host is not in the schema, so it
//! cannot be asked for.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Ceilings;
use super::registry::RegistryAuth;
use crate::provider::{Kind, ProviderError, Result, Spec};

/// Where a workspace is unless somebody says otherwise.
const WORKSPACE: &str = "/workspace";
/// A directory of a container: absolute, without `.` and `..`, and none of those that Berth or the engine owns.
const DIRECTORY: &str = "^(/(?!\\.{1,2}(/|$))[^/\\u0000:]+)+$";
const RESERVED: [&str; 6] = ["/proc", "/sys", "/dev", "/.berth", "/etc", "/bin"];
const DEFAULT_MEMORY_MB: u64 = 1024;
const DEFAULT_CPUS: f64 = 1.0;
const DEFAULT_PIDS: u64 = 512;

/// A container as an environment describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) image: String,
    pub(super) registry_auth: Option<RegistryAuth>,
    #[serde(default)]
    pub(super) command: Vec<String>,
    pub(super) user: Option<String>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    working_dir: Option<String>,
    memory_mb: Option<u64>,
    cpus: Option<f64>,
    pids: Option<u64>,
    network: Option<String>,
    pub(super) runtime: Option<String>,
    #[serde(default)]
    pub(super) read_only_root: bool,
    #[serde(default)]
    pub(super) tmpfs: BTreeMap<String, Tmpfs>,
    #[serde(default)]
    pub(super) ulimits: BTreeMap<String, Ulimit>,
}

/// A file system in memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tmpfs {
    pub(super) size_mb: u64,
}

/// A limit of each process.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ulimit {
    pub(super) soft: i64,
    pub(super) hard: i64,
}

/// What a container may use at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Resources {
    pub(super) memory_bytes: u64,
    pub(super) nano_cpus: u64,
    pub(super) pids: u64,
}

impl Config {
    /// Reads a configuration that passed the schema.
    pub(super) fn of(spec: &Spec) -> Result<Self> {
        serde_json::from_value(spec.config.reveal().clone())
            .map_err(|e| ProviderError::new(Kind::Invalid, "the configuration does not fit").because(e))
    }

    /// The working directory.
    pub(super) fn workspace(&self, spec: &Spec) -> Result<String> {
        let wanted = spec.workspace_path.as_ref().or(self.working_dir.as_ref()).map_or(WORKSPACE, String::as_str);
        let wanted = wanted.trim_end_matches('/');
        let parts_fit = wanted.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        let reserved = RESERVED.iter().any(|taken| wanted == *taken || wanted.starts_with(&format!("{taken}/")));
        if !wanted.starts_with('/') || !parts_fit || reserved || wanted.contains('\0') {
            return Err(ProviderError::new(Kind::Invalid, "the workspace must be an absolute path to a directory of its own"));
        }
        // The engine's archive endpoint sees what lies under a tmpfs and not what is in it.
        let within = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
        if self.tmpfs.keys().any(|path| within(wanted, path) || within(path, wanted)) {
            return Err(ProviderError::new(Kind::Invalid, "the workspace must not be in a tmpfs, nor a tmpfs in it"));
        }
        Ok(wanted.to_owned())
    }

    /// What it may use, within the operator's ceilings.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the schema bounds it to what fits")]
    pub(super) fn resources(&self, ceilings: &Ceilings) -> Resources {
        let memory_mb = self.memory_mb.unwrap_or(DEFAULT_MEMORY_MB).min(ceilings.memory_mb);
        let cpus = self.cpus.unwrap_or(DEFAULT_CPUS).min(ceilings.cpus);
        Resources {
            memory_bytes: memory_mb << 20,
            nano_cpus: (cpus * 1e9) as u64,
            pids: self.pids.unwrap_or(DEFAULT_PIDS).min(ceilings.pids),
        }
    }

    /// The network, which is none unless asked for.
    pub(super) fn network(&self) -> &str {
        self.network.as_deref().unwrap_or("none")
    }
}

/// The schema, closed; the operator's ceilings are its maxima, and its networks and runtimes are the operator's.
pub(super) fn schema(ceilings: &Ceilings) -> Value {
    let networks: Vec<&str> = ["none", "bridge"].into_iter().chain(ceilings.networks.iter().map(String::as_str)).collect();
    let mut properties = json!({
        "image": { "type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,254}$", "description": "Pulled when it is not there." },
        "registry_auth": {
            "type": "object", "required": ["username", "password"], "additionalProperties": false,
            "properties": {
                "username": { "type": "string", "minLength": 1, "maxLength": 255 },
                "password": { "type": "string", "format": "secret-ref", "description": "Or a token; always a secret." }
            },
            "description": "Who pulls the image from its registry."
        },
        "command": {
            "type": "array", "items": { "type": "string", "pattern": "^[^\\u0000]*$" }, "maxItems": 100,
            "description": "What the container runs beside the commands of leases; nothing, unless given."
        },
        "user": { "type": "string", "pattern": "^[0-9]{1,9}(:[0-9]{1,9})?$", "description": "uid or uid:gid; the image's own, unless given." },
        "env": {
            "type": "object", "propertyNames": { "pattern": "^(?!BERTH_)[^=\\u0000]+$" },
            "additionalProperties": { "type": "string", "pattern": "^[^\\u0000]*$" }
        },
        "working_dir": { "type": "string", "pattern": DIRECTORY, "description": "The workspace; /workspace, unless given." },
        "memory_mb": { "type": "integer", "minimum": 16, "maximum": ceilings.memory_mb },
        "cpus": { "type": "number", "minimum": 0.01, "maximum": ceilings.cpus },
        "pids": { "type": "integer", "minimum": 16, "maximum": ceilings.pids },
        "network": { "enum": networks, "description": "none, unless given." },
        "read_only_root": { "type": "boolean", "description": "Only the workspace and tmpfs can be written to." },
        "tmpfs": {
            "type": "object", "maxProperties": 16, "propertyNames": { "pattern": DIRECTORY },
            "additionalProperties": {
                "type": "object", "required": ["size_mb"], "additionalProperties": false,
                "properties": { "size_mb": { "type": "integer", "minimum": 1, "maximum": ceilings.memory_mb } }
            }
        },
        "ulimits": {
            "type": "object",
            "propertyNames": { "enum": ["core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack"] },
            "additionalProperties": {
                "type": "object", "required": ["soft", "hard"], "additionalProperties": false,
                "properties": { "soft": { "type": "integer", "minimum": 0 }, "hard": { "type": "integer", "minimum": 0 } }
            }
        }
    });
    if !ceilings.runtimes.is_empty() {
        properties["runtime"] = json!({ "enum": ceilings.runtimes, "description": "The engine's default, unless given." });
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["image"],
        "properties": properties,
        "additionalProperties": false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(config: &Value) -> Vec<String> {
        let schema = jsonschema::draft202012::new(&schema(&Ceilings::default())).unwrap();
        schema.iter_errors(config).map(|error| error.instance_path().to_string()).collect()
    }

    #[test]
    fn nothing_that_reaches_the_host_can_be_asked_for() {
        assert!(
            wrong(&json!({ "image": "debian:12", "env": { "A": "b" }, "memory_mb": 64, "tmpfs": { "/tmp": { "size_mb": 8 } } })).is_empty()
        );
        for (key, value) in [
            ("privileged", json!(true)),
            ("binds", json!(["/:/host"])),
            ("mounts", json!([])),
            ("volumes", json!({})),
            ("devices", json!(["/dev/kvm"])),
            ("cap_add", json!(["SYS_ADMIN"])),
            ("security_opt", json!([])),
            ("pid_mode", json!("host")),
            ("socket", json!("unix:///run/docker.sock")),
        ] {
            assert_eq!(wrong(&json!({ "image": "a", key: value })), [""], "{key}");
        }
        for (key, value, pointer) in [
            ("network", json!("host"), "/network"),
            ("network", json!("container:other"), "/network"),
            ("memory_mb", json!(1 << 30), "/memory_mb"),
            ("cpus", json!(1000), "/cpus"),
            ("pids", json!(1_000_000), "/pids"),
            ("user", json!("root"), "/user"),
            ("image", json!("--privileged"), "/image"),
            ("working_dir", json!("/a/../etc"), "/working_dir"),
            ("env", json!({ "BERTH_EXEC": "x" }), "/env"),
            ("tmpfs", json!({ "/a:exec": { "size_mb": 1 } }), "/tmpfs"),
            ("tmpfs", json!({ "/a": { "size_mb": 1, "mode": 1 } }), "/tmpfs/~1a"),
            ("registry_auth", json!({ "username": "u" }), "/registry_auth"),
        ] {
            let mut config = json!({ "image": "a" });
            config[key] = value;
            assert_eq!(wrong(&config), [pointer], "{config}");
        }
        assert_eq!(wrong(&json!({ "image": "a", "runtime": "runsc" })), [""], "a runtime the operator does not offer");
    }

    #[test]
    fn a_workspace_is_a_directory_of_its_own() {
        let workspace = |path: Option<&str>| {
            let spec = Spec { config: json!({ "image": "a" }).into(), workspace_path: path.map(str::to_owned) };
            Config::of(&spec).unwrap().workspace(&spec)
        };
        assert_eq!(workspace(None).unwrap(), "/workspace");
        assert_eq!(workspace(Some("/home/agent/")).unwrap(), "/home/agent");
        for wrong in ["", "/", "relative", "/a/../b", "/proc", "/dev/shm", "/.berth", "/etc/x", "//a"] {
            assert!(workspace(Some(wrong)).is_err(), "{wrong}");
        }
        for tmpfs in ["/a", "/a/b", "/a/b/c"] {
            let config = json!({ "image": "a", "tmpfs": { tmpfs: { "size_mb": 1 } } });
            let spec = Spec { config: config.into(), workspace_path: Some("/a/b".to_owned()) };
            assert!(Config::of(&spec).unwrap().workspace(&spec).is_err(), "{tmpfs}");
        }
    }

    #[test]
    fn resources_stay_below_the_ceilings() {
        let spec = Spec { config: json!({ "image": "a" }).into(), workspace_path: None };
        let ceilings = Ceilings { memory_mb: 100, cpus: 0.5, pids: 64, ..Ceilings::default() };
        let resources = Config::of(&spec).unwrap().resources(&ceilings);
        assert_eq!(resources, Resources { memory_bytes: 100 << 20, nano_cpus: 500_000_000, pids: 64 });
    }
}
