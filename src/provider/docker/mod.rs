//! Sandboxes as containers of a Docker engine, or of whatever speaks its API.

mod address;
mod agent;
mod binding;
mod config;
mod create;
mod engine;
mod exec;
mod files;
mod follow;
mod frames;
mod image;
mod lifecycle;
mod memory;
mod owner;
mod paths;
mod registry;
mod snapshot;
mod tarball;
mod tree;
mod wire;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use moka::sync::Cache;
use uuid::Uuid;

pub use address::{Address, Certificates};
pub use owner::Seal;

use self::binding::Binding;
use self::engine::Engine;
use self::exec::Commands;
use self::image::Images;
use self::lifecycle::Facts;
use super::{
    ByteStream, CaptureEffect, DIRECT_CAPABILITIES, Destroyed, ExecSpec, FileEntry, FileRead, Isolation, Listed, ListedSnapshot, Lookup,
    Made, Observation, OwnerTag, Prepared, Provider, PutOptions, Result, Running, Snapshot, Snapshots, Spec, Takeover, Traits, TreeRead,
    WriteMode,
};

/// Where Berth keeps what is its own inside a container.
const STATE: &str = "/.berth";

static TRAITS: Traits = Traits {
    kind: "docker",
    lookup: Lookup::ByTag,
    isolation: Isolation::Container,
    fencing: false,
    ensure_takes: None,
    stop_resume: true,
    tells_stopped_from_gone: true,
    capabilities: std::borrow::Cow::Borrowed(DIRECT_CAPABILITIES),
    snapshots: Some(Snapshots { effect: CaptureEffect::Pauses, takeover: Takeover::SameRequest }),
};

/// What no environment may go beyond.
#[derive(Clone, Debug)]
pub struct Ceilings {
    /// Memory of one container, in MiB.
    pub memory_mb: u64,
    /// Processors of one container.
    pub cpus: f64,
    /// Processes and threads of one container.
    pub pids: u64,
    /// Networks that may be asked for, besides `none` and `bridge`.
    pub networks: Vec<String>,
    /// Runtimes that may be asked for.
    pub runtimes: Vec<String>,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { memory_mb: 8192, cpus: 8.0, pids: 4096, networks: Vec::new(), runtimes: Vec::new() }
    }
}

/// How an engine is reached, and what is allowed on it.
#[derive(Clone, Debug)]
pub struct DockerSettings {
    /// Where the engine is.
    pub address: Address,
    /// What to show it, and whom to trust, over TLS.
    pub certificates: Option<Certificates>,
    /// What no environment may go beyond.
    pub ceilings: Ceilings,
    /// Where content is kept on its way; nothing stays in there.
    pub scratch: PathBuf,
    /// By which this deployment knows its own containers.
    pub seal: Seal,
}

/// The provider on one engine. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Docker {
    engine: Arc<Engine>,
    binding: Arc<Binding>,
    images: Arc<Images>,
    commands: Arc<Commands>,
    facts: Cache<String, Arc<Facts>>,
    ceilings: Arc<Ceilings>,
    scratch: Arc<PathBuf>,
    seal: Arc<Seal>,
}

impl Docker {
    /// A provider on this engine; whether it is there is not asked.
    pub fn open(settings: DockerSettings) -> Result<Self> {
        Ok(Self {
            engine: Arc::new(Engine::new(&settings.address, settings.certificates.as_ref())?),
            binding: Arc::default(),
            images: Arc::default(),
            commands: Arc::default(),
            facts: Cache::new(10_000),
            ceilings: Arc::new(settings.ceilings),
            scratch: Arc::new(settings.scratch),
            seal: Arc::new(settings.seal),
        })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for Docker {
    fn traits(&self) -> &Traits {
        &TRAITS
    }

    fn config_schema(&self) -> serde_json::Value {
        config::schema(&self.ceilings)
    }

    async fn binding(&self) -> Result<String> {
        self.binding.read(&self.engine).await
    }

    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        self.make(spec, tag).await
    }

    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>> {
        self.look_by_name(tag).await?.map(|found| self.recognize(&found, tag)).transpose()
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        self.look(binding, provider_ref).await
    }

    async fn realize(&self, provider_ref: &str, _spec: &Spec) -> Result<String> {
        // Decided when the container was made, and made by the engine when it was started.
        Ok(self.facts(provider_ref).await?.workspace.clone())
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.run(provider_ref).await
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        self.halt(provider_ref).await
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        self.remove(provider_ref).await
    }

    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        self.inventory(deployment).await
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        self.raise_fence(provider_ref, grant_seq).await
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        self.count(provider_ref).await
    }

    async fn prepare(&self, provider_ref: &str, spec: &ExecSpec) -> Option<Prepared> {
        self.prepare_command(provider_ref, spec).await
    }

    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        self.start_command(provider_ref, spec).await
    }

    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        self.stamp(provider_ref, exclude).await
    }

    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        self.read_directory(provider_ref, path, exclude).await
    }

    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()> {
        self.write_directory(provider_ref, grant_seq, path, tar, mode).await
    }

    fn snapshot_ref(&self, id: Uuid) -> Option<String> {
        Some(snapshot::name(id))
    }

    async fn snapshot(&self, provider_ref: &str, id: Uuid) -> Result<Snapshot> {
        self.take_snapshot(provider_ref, id).await
    }

    async fn restore(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made> {
        self.make_of_snapshot(spec, tag, snapshot_ref).await
    }

    async fn probe_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool> {
        self.has_snapshot(binding, snapshot_ref).await
    }

    async fn list_snapshots(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        self.snapshot_inventory(deployment).await
    }

    async fn delete_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed> {
        self.remove_snapshot(binding, snapshot_ref).await
    }

    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        self.read(provider_ref, path).await
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        self.put(provider_ref, grant_seq, path, body, options).await
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        self.remove_path(provider_ref, grant_seq, path, recursive).await
    }

    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        self.stat(provider_ref, path).await
    }

    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        self.list(provider_ref, path, recursive, after, limit).await
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        self.make_path(provider_ref, grant_seq, path).await
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        self.rename(provider_ref, grant_seq, from, to, overwrite).await
    }
}
