//! The local provider on this machine: the contract, and what commands do to get away.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

/// Runs each test over a provider whose commands nothing stands around, and over one with bubblewrap.
macro_rules! in_both_modes {
    ($($name:ident)*) => {
        mod plain {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::local::Place::new(berth::provider::Wish::Never)).await;
                }
            )*
        }
        mod bubblewrap {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(crate::local::Place::new(berth::provider::Wish::Always)).await;
                }
            )*
        }
    };
}

mod bubblewrapped;
mod disk;
mod flow;
mod runaways;

use std::path::PathBuf;

use berth::id;
use berth::provider::conformance::{Commands, Subject, all};
use berth::provider::local::Local;
use berth::provider::{Confinement, LocalSettings, Spec, Wish};
use tempfile::TempDir;

in_both_modes!(local_keeps_the_contract);

/// A provider with a root of its own; the root goes last.
struct Place {
    provider: Local,
    spec: Spec,
    wish: Wish,
    root: TempDir,
}

fn settings(root: PathBuf, wish: Wish) -> LocalSettings {
    let confinement = Confinement { bubblewrap: wish, ..Confinement::default() };
    LocalSettings { confinement, ..LocalSettings::new(root, env!("CARGO_BIN_EXE_berth").into()) }
}

impl Place {
    /// Not below `/tmp`, as no data directory should be: see `a_place_below_tmp_works_as_well`.
    fn new(wish: Wish) -> Self {
        Self::of(tempfile::tempdir_in("/var/tmp").unwrap(), wish)
    }

    fn of(root: TempDir, wish: Wish) -> Self {
        let provider = Local::open(&settings(root.path().to_owned(), wish)).unwrap();
        Self { provider, spec: Spec { config: serde_json::json!({}).into(), workspace_path: None }, wish, root }
    }

    /// What another server is told that is to find the same sandboxes.
    fn settings(&self) -> LocalSettings {
        settings(self.root.path().to_owned(), self.wish)
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

async fn local_keeps_the_contract(place: Place) {
    all(place.subject()).await;
    for directory in ["instances", "making", "trash"] {
        assert_eq!(place.left_in(directory), 0, "{directory}");
    }
}
