//! The local provider on this machine: the contract, and what commands do to get away.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod disk;
mod flow;
mod runaways;

use std::path::PathBuf;

use berth::id;
use berth::provider::conformance::{Commands, Subject, all};
use berth::provider::local::Local;
use berth::provider::{LocalSettings, Spec};
use tempfile::TempDir;

/// A provider with a root of its own; the root goes last.
struct Place {
    provider: Local,
    spec: Spec,
    root: TempDir,
}

fn settings(root: PathBuf) -> LocalSettings {
    LocalSettings { root, shim: env!("CARGO_BIN_EXE_berth").into() }
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let provider = Local::open(&settings(root.path().to_owned())).unwrap();
        Self { provider, spec: Spec { config: serde_json::json!({}).into(), workspace_path: None }, root }
    }

    fn subject(&self) -> Subject<'_> {
        Subject { provider: &self.provider, spec: &self.spec, commands: Commands::Shell }
    }

    /// What lies in one of the root's directories.
    fn left_in(&self, directory: &str) -> usize {
        std::fs::read_dir(self.root.path().join(directory)).unwrap().count()
    }
}

/// A span for `sleep` that no other process sleeps for, by which its processes are found whatever they did to themselves.
struct Mark(String);

impl Mark {
    fn new() -> Self {
        Self(format!("4000.{}", id::new().as_u128() % 1_000_000_000_000_000))
    }

    /// How many processes have the mark on their command line.
    fn alive(&self) -> usize {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.windows(self.0.len()).any(|part| part == self.0.as_bytes())).count()
    }

    /// Waits until at least so many are there.
    async fn appears(&self, count: usize) {
        eventually(|| self.alive() >= count, "the processes never appeared").await;
    }

    /// Waits until none is there.
    async fn disappears(&self) {
        eventually(|| self.alive() == 0, "something lives on").await;
    }
}

async fn eventually(mut is_so: impl FnMut() -> bool, what: &str) {
    for _ in 0..4000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{what}");
}

fn sh(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_keeps_the_contract() {
    let place = Place::new();
    all(place.subject()).await;
    for directory in ["instances", "making", "trash"] {
        assert_eq!(place.left_in(directory), 0, "{directory}");
    }
}
