//! The test's engine, its image, and what exists on it.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use berth::id;
use berth::provider::conformance::{Commands, Subject};
use berth::provider::docker::{Address, Ceilings, Certificates, Docker, DockerSettings, Seal};
use berth::provider::{Provider, Result, Spec};
use serde_json::{Value, json};

/// A small image with a shell and the usual programs.
pub const IMAGE: &str = "berth-test:1";

/// The engine's address.
pub fn host() -> String {
    std::env::var("BERTH_TEST_DOCKER").expect("BERTH_TEST_DOCKER names a Docker engine, as tests/run.sh sets it")
}

/// Docker's own client, on the test's engine.
pub fn docker(arguments: &[&str]) -> Output {
    Command::new("docker").args(["-H", &host()]).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// What the client says, which must go well.
pub fn said(arguments: &[&str]) -> String {
    let output = docker(arguments);
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A provider of a deployment of its own.
pub struct Place {
    pub provider: Docker,
    pub spec: Spec,
    pub scratch: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self::with(json!({ "image": IMAGE }))
    }

    pub fn with(config: Value) -> Self {
        Self::at(&host(), config)
    }

    pub fn at(host: &str, config: Value) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let scratch = tempfile::tempdir().unwrap();
        let provider = open(host, None, scratch.path().to_owned(), id::new().as_bytes());
        Self { provider, spec: Spec { config: config.into(), workspace_path: None }, scratch }
    }

    pub fn subject(&self) -> Subject<'_> {
        Subject { provider: &self.provider, spec: &self.spec, commands: Commands::Shell }
    }

    /// What was kept on its way into a container, and is still there.
    pub fn left_over(&self) -> usize {
        std::fs::read_dir(self.scratch.path()).unwrap().count()
    }
}

pub fn open(host: &str, certificates: Option<Certificates>, scratch: std::path::PathBuf, key: &[u8]) -> Docker {
    try_open(host, certificates, scratch, key).unwrap()
}

pub fn try_open(host: &str, certificates: Option<Certificates>, scratch: std::path::PathBuf, key: &[u8]) -> Result<Docker> {
    let settings = DockerSettings {
        address: Address::parse(host).unwrap(),
        certificates,
        ceilings: Ceilings::default(),
        scratch,
        seal: Seal::of(key),
    };
    Docker::open(settings)
}

/// The same, as everything above a provider knows it.
pub fn shared(provider: &Docker) -> Arc<dyn Provider> {
    Arc::new(provider.clone())
}

/// Makes an image of what is put into a directory.
pub fn import(name: &str, fill: impl FnOnce(&std::path::Path)) -> String {
    let root = tempfile::tempdir().unwrap();
    fill(root.path());
    let tag = format!("berth-test-{name}:{}", std::process::id());
    let tar = root.path().with_extension("tar");
    let packed = Command::new("tar").arg("-C").arg(root.path()).arg("-cf").arg(&tar).arg(".").status().unwrap();
    assert!(packed.success());
    said(&["import", tar.to_str().unwrap(), &tag]);
    std::fs::remove_file(tar).unwrap();
    tag
}

/// Makes an image say that it is for another processor than it is.
pub fn make_foreign(image: &str) {
    let dir = tempfile::tempdir().unwrap();
    let tar = dir.path().join("image.tar");
    said(&["save", "-o", tar.to_str().unwrap(), image]);
    let (this, other) = if cfg!(target_arch = "aarch64") { ("arm64", "amd64") } else { ("amd64", "arm64") };
    // Of one length, so that the tar stays whole.
    let [from, to] = [this, other].map(|processor| format!("\"architecture\":\"{processor}\""));
    let mut saved = std::fs::read(&tar).unwrap();
    let places: Vec<usize> = saved.windows(from.len()).enumerate().filter(|(_, part)| *part == from.as_bytes()).map(|(at, _)| at).collect();
    for at in places {
        saved[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    std::fs::write(&tar, saved).unwrap();
    said(&["load", "-i", tar.to_str().unwrap()]);
}
