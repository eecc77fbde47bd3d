//! The handshake: who a worker is, which methods it has in this life, and what its drivers declare; nothing is trusted before it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::capability::{Declared, KEYS, REUSABLE_LEASES, WIRE_KEYS};

/// The most bytes of a manifest as JSON.
const LARGEST_MANIFEST: usize = 512 * 1024;
/// The most methods, and the most drivers, of one worker.
const MOST: usize = 200;
/// What a driver may say; the second half is what Berth has no verb for.
const DRIVER_KEYS: [&str; 17] = [
    "driverKey",
    "kind",
    "displayName",
    "description",
    "configSchema",
    "supportsReusableLeases",
    "sandboxCapabilities",
    "defaultAcquireTimeoutMs",
    "supportsInteractiveSetup",
    "interactiveSetupConnectionTypes",
    "supportsTemplateCapture",
    "templateRefKind",
    "templateConfigBinding",
    "templateIdentityPaths",
    "supportsTemplateDelete",
    "supportsLoginPty",
    "supportsSetupTokenLogin",
];
/// What a manifest must ask for.
const PERMISSION: &str = "environment.drivers.register";

/// What a worker said of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handshake {
    /// Which of its lives this is.
    pub generation: String,
    /// The optional methods that it has.
    pub methods: BTreeSet<String>,
    /// Whether it refuses a lower generation by itself.
    pub fencing: bool,
    /// Who it is.
    pub manifest: Manifest,
}

/// The parts of a manifest that matter here.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The plugin's own key.
    pub id: String,
    /// The plugin's version.
    pub version: String,
    /// For people.
    pub display_name: String,
    api_version: i64,
    capabilities: Vec<String>,
    /// What it can make environments of.
    #[serde(default)]
    pub environment_drivers: Vec<Driver>,
}

/// One driver of a plugin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Driver {
    /// Its name in environments.
    pub driver_key: String,
    /// What it makes.
    pub kind: DriverKind,
    /// For people.
    pub display_name: String,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema of its configuration.
    #[serde(default = "anything")]
    pub config_schema: Value,
    #[serde(default)]
    supports_reusable_leases: Option<bool>,
    #[serde(default)]
    sandbox_capabilities: BTreeMap<String, bool>,
    /// How long making a sandbox takes at most, if it says.
    #[serde(default)]
    pub default_acquire_timeout_ms: Option<u64>,
}

/// What a driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// Makes sandboxes that may be used again.
    SandboxProvider,
    /// Makes environments for one use each.
    EnvironmentDriver,
}

fn anything() -> Value {
    serde_json::json!({ "type": "object" })
}

impl Driver {
    /// What it declares of the nine; the newer form beats the older.
    pub fn declared(&self) -> Declared {
        let mut declared: Declared =
            WIRE_KEYS.iter().zip(KEYS).filter_map(|(wire, key)| Some((key, *self.sandbox_capabilities.get(*wire)?))).collect();
        if let Some(reuses) = self.supports_reusable_leases {
            declared.entry(REUSABLE_LEASES).or_insert(reuses);
        }
        declared
    }
}

impl Handshake {
    /// Reads the answer to `initialize`. The error names what is wrong, in words of ours.
    pub fn read(answer: &Value) -> Result<Self, &'static str> {
        if answer["ok"] != true {
            return Err("it does not say ok");
        }
        let generation = answer["generation"].as_str().filter(|text| super::client::is_generation(text));
        let generation = generation.ok_or("it names no generation of 1 to 128 visible ASCII characters")?.to_owned();
        let methods = answer["supportedMethods"].as_array().filter(|all| all.len() <= MOST).ok_or("it lists no supportedMethods")?;
        let method = |one: &Value| one.as_str().filter(|name| (1..=100).contains(&name.len()) && name.is_ascii()).map(str::to_owned);
        let methods: Option<BTreeSet<String>> = methods.iter().map(method).collect();
        let methods = methods.ok_or("supportedMethods has something that is no method")?;
        let fencing = answer["fencing"].as_bool().unwrap_or(false);
        Ok(Self { generation, methods, fencing, manifest: Manifest::read(&answer["manifest"])? })
    }

    /// The driver of this key.
    pub fn driver(&self, key: &str) -> Option<&Driver> {
        self.manifest.environment_drivers.iter().find(|driver| driver.driver_key == key)
    }
}

impl Manifest {
    fn read(value: &Value) -> Result<Self, &'static str> {
        if value.to_string().len() > LARGEST_MANIFEST {
            return Err("its manifest is larger than 512 KiB");
        }
        let manifest = Self::deserialize(value)
            .map_err(|_| "its manifest does not fit: id, version, displayName, apiVersion, capabilities, environmentDrivers")?;
        let drivers = value["environmentDrivers"].as_array().into_iter().flatten();
        if drivers.filter_map(Value::as_object).flat_map(|driver| driver.keys()).any(|key| !DRIVER_KEYS.contains(&key.as_str())) {
            return Err("a driver of its manifest says something unknown");
        }
        let short = |text: &str, most: usize| !text.trim().is_empty() && text.chars().count() <= most;
        if manifest.api_version != 1 {
            return Err("its manifest is not of apiVersion 1");
        }
        if !short(&manifest.id, 200) || !short(&manifest.version, 100) || !short(&manifest.display_name, 200) {
            return Err("its manifest's id, version or displayName is empty or too long");
        }
        if !manifest.capabilities.iter().any(|one| one == PERMISSION) {
            return Err("its manifest does not ask for environment.drivers.register");
        }
        let drivers = &manifest.environment_drivers;
        if drivers.is_empty() || drivers.len() > MOST {
            return Err("its manifest declares no environmentDrivers");
        }
        let keys: BTreeSet<&str> = drivers.iter().map(|driver| driver.driver_key.as_str()).collect();
        if keys.len() != drivers.len() || !keys.iter().all(|key| is_driver_key(key)) {
            return Err("a driverKey of its manifest is malformed or there twice");
        }
        for driver in drivers {
            if driver.sandbox_capabilities.keys().any(|key| !WIRE_KEYS.contains(&key.as_str())) {
                return Err("a driver declares a capability that is none of the nine");
            }
            if !short(&driver.display_name, 100) || driver.description.as_ref().is_some_and(|text| text.chars().count() > 500) {
                return Err("a driver's displayName or description is empty or too long");
            }
            if jsonschema::draft202012::new(&driver.config_schema).is_err() {
                return Err("a driver's configSchema is no JSON Schema");
            }
        }
        Ok(manifest)
    }
}

fn is_driver_key(key: &str) -> bool {
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    key.len() <= 100 && key.bytes().next().is_some_and(first) && key.bytes().all(|b| first(b) || b".-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        json!({
            "ok": true, "generation": "g-1", "supportedMethods": ["environmentExecute"],
            "manifest": {
                "id": "acme.boxes", "apiVersion": 1, "version": "1.2.3", "displayName": "Boxes", "author": "A", "categories": [],
                "capabilities": ["environment.drivers.register"], "entrypoints": { "worker": "w.js" },
                "environmentDrivers": [{
                    "driverKey": "box", "kind": "sandbox_provider", "displayName": "Box", "supportsReusableLeases": true,
                    "configSchema": { "type": "object" }
                }]
            }
        })
    }

    #[test]
    fn a_whole_answer_is_read() {
        let read = Handshake::read(&answer()).unwrap();
        assert_eq!((read.generation.as_str(), read.manifest.version.as_str(), read.fencing), ("g-1", "1.2.3", false));
        assert_eq!(read.driver("box").unwrap().declared().get(REUSABLE_LEASES), Some(&true));
        let mut newer = answer();
        newer["manifest"]["environmentDrivers"][0]["sandboxCapabilities"] = json!({ "reusableLeases": false, "duplexCommandStream": true });
        let declared = Handshake::read(&newer).unwrap().driver("box").unwrap().declared();
        assert_eq!((declared.get(REUSABLE_LEASES), declared.get("duplex_command_stream")), (Some(&false), Some(&true)));
        // What is kept of it is read again as it was.
        let kept: Handshake = serde_json::from_value(json!(read)).unwrap();
        assert_eq!(kept.driver("box").unwrap().declared(), read.driver("box").unwrap().declared());
    }

    #[test]
    fn everything_else_is_refused() {
        for (pointer, wrong) in [
            ("/ok", json!(false)),
            ("/generation", json!("")),
            ("/generation", json!("a b")),
            ("/supportedMethods", json!(null)),
            ("/supportedMethods", json!([7])),
            ("/manifest", json!(null)),
            ("/manifest/apiVersion", json!(2)),
            ("/manifest/capabilities", json!([])),
            ("/manifest/version", json!(" ")),
            ("/manifest/environmentDrivers", json!([])),
            ("/manifest/environmentDrivers/0/driverKey", json!("Box")),
            ("/manifest/environmentDrivers/0/kind", json!("other")),
            ("/manifest/environmentDrivers/0/supportsReusableLeases", json!({ "typo": 1 })),
            ("/manifest/environmentDrivers/0/configSchema", json!({ "type": "nothing" })),
        ] {
            let mut answer = answer();
            *answer.pointer_mut(pointer).unwrap() = wrong.clone();
            assert!(Handshake::read(&answer).is_err(), "{pointer} {wrong}");
        }
        for (key, value) in [("supportsLoginPTY", json!(true)), ("sandboxCapabilities", json!({ "concurrentSyncAndExec": true }))] {
            let mut answer = answer();
            answer["manifest"]["environmentDrivers"][0][key] = value;
            assert!(Handshake::read(&answer).is_err(), "{key}");
        }
    }
}
