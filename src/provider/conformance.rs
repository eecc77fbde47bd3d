//! The contract as test functions over any provider. Each makes what it needs, ends it, and panics where the contract is broken.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

pub mod commands;
pub mod files;
pub mod lifecycle;
pub mod snapshots;
pub mod trees;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use uuid::Uuid;

use super::stream::{from_bytes, read_all};
use super::{ExecEvent, ExecExit, ExecSpec, OwnerTag, Provider, PutOptions, Running, Spec};
use crate::id;

/// Nothing in here may take longer; a provider that hangs fails instead of hanging the test.
const BOUND: Duration = Duration::from_mins(1);
/// More than any file of these tests has.
const LARGE: usize = 64 << 20;

/// What can be run in a provider's sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commands {
    /// `sh` and the usual small programs, in real processes.
    Shell,
    /// The scripted commands of the memory provider.
    Scripted,
}

/// A provider under test.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The provider.
    pub provider: &'a dyn Provider,
    /// A configuration that works.
    pub spec: &'a Spec,
    /// What can be run.
    pub commands: Commands,
}

/// The whole contract.
pub async fn all(subject: Subject<'_>) {
    lifecycle::all(subject).await;
    commands::all(subject).await;
    files::all(subject).await;
    trees::all(subject).await;
    snapshots::all(subject).await;
}

/// A tag that nobody has used.
pub fn tag() -> OwnerTag {
    OwnerTag { deployment: id::new(), organization: id::new(), sandbox: id::new(), instance: id::new(), generation: 1 }
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its end.
    pub exit: ExecExit,
}

/// A sandbox made for one test.
pub struct Sandbox<'a> {
    /// What it was made by.
    pub subject: Subject<'a>,
    /// Its ref.
    pub name: String,
    /// Its tag.
    pub tag: OwnerTag,
    /// Its working directory.
    pub workspace: String,
}

impl<'a> Subject<'a> {
    /// Makes a sandbox.
    pub async fn sandbox(self) -> Sandbox<'a> {
        let tag = tag();
        let name = self.provider.ensure(self.spec, &tag).await.expect("ensure").provider_ref;
        let workspace = self.provider.realize(&name, self.spec).await.expect("realize");
        Sandbox { subject: self, name, tag, workspace }
    }

    /// A command that lasts longer than any test.
    fn sleep(self) -> Vec<String> {
        let span = if self.commands == Commands::Shell { "300" } else { "300000" };
        words(&["sleep", span])
    }

    /// A command that ends at once and leaves something running.
    fn linger(self) -> Vec<String> {
        match self.commands {
            Commands::Shell => words(&["sh", "-c", "sleep 300 >/dev/null 2>&1 & exit 0"]),
            Commands::Scripted => words(&["linger", "300000"]),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A command of the first grant.
pub fn command(argv: Vec<String>) -> ExecSpec {
    ExecSpec { id: id::new(), grant_seq: 1, argv, cwd: None, env: Vec::new(), user: None, timeout: BOUND, stdin: true, prepared: None }
}

impl Sandbox<'_> {
    /// The provider.
    pub fn provider(&self) -> &dyn Provider {
        self.subject.provider
    }

    /// Starts a command.
    pub async fn start(&self, spec: ExecSpec) -> Running {
        bounded(self.provider().exec(&self.name, spec)).await.expect("exec")
    }

    /// Runs a command without standard input to its end.
    pub async fn run(&self, spec: ExecSpec) -> Outcome {
        outcome(self.start(spec).await).await
    }

    /// Puts a file.
    pub async fn put(&self, path: &str, content: &[u8]) -> bool {
        let options = PutOptions { mode: None, parents: false };
        let body = from_bytes(Bytes::copy_from_slice(content));
        self.provider().write_file(&self.name, 1, path, body, options).await.unwrap_or_else(|e| panic!("put {path}: {e}"))
    }

    /// Gets a file.
    pub async fn get(&self, path: &str) -> Vec<u8> {
        let file = self.provider().read_file(&self.name, path).await.unwrap_or_else(|e| panic!("get {path}: {e}"));
        read_all(file.body, LARGE).await.expect("body")
    }

    /// How many process trees run.
    pub async fn processes(&self) -> u64 {
        bounded(self.provider().processes(&self.name)).await.expect("processes")
    }

    /// Waits until nothing runs any more.
    pub async fn becomes_quiet(&self) {
        bounded(async {
            while self.processes().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Ends the sandbox.
    pub async fn end(self) {
        bounded(self.provider().destroy(&self.name)).await.expect("destroy");
    }
}

/// Follows a command to its end, with its standard input closed.
pub async fn outcome(running: Running) -> Outcome {
    let Running { stdin, mut events, cancel: _cancel } = running;
    drop(stdin);
    bounded(async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match events.recv().await {
                Some(ExecEvent::Stdout(bytes)) => stdout.extend_from_slice(&bytes),
                Some(ExecEvent::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
                Some(ExecEvent::Exit(exit)) => break Outcome { stdout, stderr, exit },
                None => panic!("the stream ended without an exit"),
            }
        }
    })
    .await
}

/// Waits for something that must come.
pub async fn bounded<T>(something: impl Future<Output = T>) -> T {
    timeout(BOUND, something).await.expect("took too long")
}

/// A deployment that has made nothing.
fn nobody() -> Uuid {
    id::new()
}
