//! Sandboxes as directories and processes of this machine, each command under a shim that kills its whole tree, and, where
//! bubblewrap works, in namespaces of its own.

mod command;
mod confine;
pub(crate) mod durable;
mod exec;
mod fence;
mod files;
mod follow;
mod inside;
mod instances;
mod layout;
mod output;
mod process;
mod purge;
mod registration;
mod settings;
pub mod shim;
mod start;
mod transfer;
mod wire;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use uuid::Uuid;

pub use settings::{Confinement, LocalSettings, Wish};

use self::confine::Bubblewrap;
use self::exec::Commands;
use self::fence::{count, kill_below};
use self::files::Workspace;
use self::instances::Instances;
use super::{
    ByteStream, DIRECT_CAPABILITIES, Destroyed, ExecSpec, FileEntry, FileRead, Isolation, Kind, Listed, ListedSnapshot, Lookup, Made,
    Observation, OwnerTag, Provider, ProviderError, PutOptions, Result, Running, Snapshot, Spec, Traits, TreeRead, WriteMode,
};

/// What it is where nothing stands around its commands.
const PLAIN: Traits = Traits {
    kind: "local",
    lookup: Lookup::ByTag,
    isolation: Isolation::None,
    fencing: false,
    ensure_takes: None,
    stop_resume: true,
    tells_stopped_from_gone: true,
    capabilities: std::borrow::Cow::Borrowed(DIRECT_CAPABILITIES),
    snapshots: None,
};

/// The provider on this machine. Dropping it ends every command it started.
pub struct Local {
    instances: Instances,
    shim: PathBuf,
    commands: Commands,
    bubblewrap: Option<Arc<Bubblewrap>>,
    traits: Traits,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, shim, bubblewrap, .. } = self;
        let mut shown = f.debug_struct("Local");
        shown.field("instances", instances).field("shim", shim).field("bubblewrap", bubblewrap).finish_non_exhaustive()
    }
}

impl Local {
    /// Opens the place where the instances are; makes and names it if it is new. Whether commands can be isolated is tried out, and
    /// `Invalid` if that is demanded and does not work.
    pub fn open(settings: &LocalSettings) -> Result<Self> {
        let shim =
            fs::canonicalize(&settings.shim).map_err(|e| ProviderError::new(Kind::Invalid, "the shim program is missing").because(e))?;
        let instances = Instances::open(settings).map_err(failed)?;
        let bubblewrap = confine::choose(settings, &instances, &shim)?.map(Arc::new);
        let isolation = if bubblewrap.is_some() { Isolation::Bubblewrap } else { Isolation::None };
        Ok(Self { instances, shim, commands: Commands::new(), bubblewrap, traits: Traits { isolation, ..PLAIN } })
    }

    /// The directory of an existing instance.
    async fn existing(&self, provider_ref: &str) -> Result<PathBuf> {
        let (instances, provider_ref) = (self.instances.clone(), provider_ref.to_owned());
        blocking(move || instances.existing(&provider_ref)).await
    }

    /// Does something with an existing instance, off the runtime.
    async fn within<T: Send + 'static>(
        &self,
        provider_ref: &str,
        act: impl FnOnce(&Path, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (instances, provider_ref) = (self.instances.clone(), provider_ref.to_owned());
        blocking(move || act(&instances.existing(&provider_ref)?, &provider_ref)).await
    }

    /// Changes an existing instance's files, off the runtime, unless its fence is higher.
    async fn change<T: Send + 'static>(
        &self,
        provider_ref: &str,
        grant_seq: i64,
        act: impl FnOnce(Workspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.within(provider_ref, move |instance, _| {
            let _passed = fence::pass(instance, grant_seq)?;
            act(Workspace::open(instance)?)
        })
        .await
    }

    /// Does something with an existing instance's files, off the runtime.
    async fn files<T: Send + 'static>(&self, provider_ref: &str, act: impl FnOnce(Workspace) -> Result<T> + Send + 'static) -> Result<T> {
        self.within(provider_ref, |instance, _| act(Workspace::open(instance)?)).await
    }
}

/// Runs blocking work off the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => Err(ProviderError::new(Kind::Indeterminate, "the work broke off").because(e)),
    }
}

/// What a failure of the machine's own files means.
fn failed(error: io::Error) -> ProviderError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::Full,
        _ => Kind::Transient,
    };
    ProviderError::new(kind, "the machine's files or processes could not be used").because(error)
}

#[async_trait]
impl Provider for Local {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn config_schema(&self) -> serde_json::Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "env": {
                    "type": "object",
                    "description": "Added to the environment of every command.",
                    "propertyNames": { "pattern": "^[^=\\u0000]+$" },
                    "additionalProperties": { "type": "string" }
                }
            },
            "additionalProperties": false
        })
    }

    async fn binding(&self) -> Result<String> {
        let instances = self.instances.clone();
        blocking(move || instances.binding()).await
    }

    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        let (instances, spec, tag) = (self.instances.clone(), spec.clone(), tag.clone());
        blocking(move || {
            instances.ensure(&spec, &tag)?;
            Ok(Made { provider_ref: tag.instance.to_string(), provider_expires_at: None, metadata: None })
        })
        .await
    }

    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>> {
        let (instances, tag) = (self.instances.clone(), tag.clone());
        let made = Made { provider_ref: tag.instance.to_string(), provider_expires_at: None, metadata: None };
        let found = blocking(move || {
            let found = instances.find(&tag)?;
            if !found {
                instances.clear_half_made(&tag.instance.to_string())?;
            }
            Ok(found)
        });
        Ok(found.await?.then_some(made))
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        let (instances, binding, provider_ref) = (self.instances.clone(), binding.to_owned(), provider_ref.to_owned());
        blocking(move || Ok(instances.observe(&binding, &provider_ref))).await.unwrap_or(Observation::Unknown)
    }

    async fn realize(&self, provider_ref: &str, _spec: &Spec) -> Result<String> {
        self.within(provider_ref, |instance, _| {
            let workspace = layout::workspace(instance).into_os_string().into_string();
            workspace.map_err(|_| ProviderError::new(Kind::Invalid, "the root is not UTF-8"))
        })
        .await
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.within(provider_ref, |instance, _| layout::write_state(instance, layout::State::Running).map_err(failed)).await
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        self.within(provider_ref, |instance, _| {
            if layout::state(instance).map_err(failed)? == layout::State::Running {
                layout::write_state(instance, layout::State::Stopping).map_err(failed)?;
            }
            Ok(())
        })
        .await?;
        self.commands.cancel_below(provider_ref, None);
        self.within(provider_ref, |instance, provider_ref| {
            kill_below(instance, provider_ref, None)?;
            layout::write_state(instance, layout::State::Stopped).map_err(failed)
        })
        .await
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        let ended = self.within(provider_ref, |instance, provider_ref| {
            // On a full disk this fails, and need not hold up the end: what starts meanwhile is killed after the rename.
            let _ = layout::write_state(instance, layout::State::Stopping);
            kill_below(instance, provider_ref, None)
        });
        self.commands.cancel_below(provider_ref, None);
        let end = match ended.await {
            Ok(()) => Destroyed::Ended,
            Err(e) if e.kind == Kind::NotFound => Destroyed::AlreadyGone,
            Err(e) => return Err(e),
        };
        let (instances, provider_ref) = (self.instances.clone(), provider_ref.to_owned());
        blocking(move || {
            if end == Destroyed::Ended {
                instances.discard(&provider_ref)?;
            }
            instances.clear(&provider_ref)
        })
        .await
        .map(|()| end)
    }

    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        let instances = self.instances.clone();
        blocking(move || instances.list(deployment)).await
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        self.within(provider_ref, move |instance, _| fence::raise(instance, grant_seq)).await?;
        self.commands.cancel_below(provider_ref, Some(grant_seq));
        self.within(provider_ref, move |instance, provider_ref| kill_below(instance, provider_ref, Some(grant_seq))).await
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        self.within(provider_ref, count).await
    }

    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        let bubblewrap = self.bubblewrap.clone();
        let order = move |instance: &Path, provider_ref: &str| command::order(instance, provider_ref, spec, bubblewrap.as_deref());
        let order = self.within(provider_ref, order).await?;
        self.commands.start(&self.shim, provider_ref, order).await
    }

    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        transfer::stat_walk(self.existing(provider_ref).await?, exclude.to_vec()).await
    }

    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        transfer::read_tree(self.existing(provider_ref).await?, path.to_owned(), exclude.to_vec()).await
    }

    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()> {
        transfer::write_tree(self.existing(provider_ref).await?, grant_seq, path.to_owned(), tar, mode).await
    }

    fn snapshot_ref(&self, _id: Uuid) -> Option<String> {
        None
    }

    async fn snapshot(&self, _provider_ref: &str, _id: Uuid) -> Result<Snapshot> {
        Err(ProviderError::no_snapshots())
    }

    async fn restore(&self, _spec: &Spec, _tag: &OwnerTag, _snapshot_ref: &str) -> Result<Made> {
        Err(ProviderError::no_snapshots())
    }

    async fn probe_snapshot(&self, _binding: &str, _snapshot_ref: &str) -> Result<bool> {
        Err(ProviderError::no_snapshots())
    }

    async fn list_snapshots(&self, _deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        Err(ProviderError::no_snapshots())
    }

    async fn delete_snapshot(&self, _binding: &str, _snapshot_ref: &str) -> Result<Destroyed> {
        Err(ProviderError::no_snapshots())
    }

    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        let path = path.to_owned();
        let (entry, file) = self.files(provider_ref, move |workspace| workspace.read(&path)).await?;
        Ok(FileRead { entry, body: Box::pin(tokio::fs::File::from_std(file)) })
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        transfer::put(self.existing(provider_ref).await?, grant_seq, path.to_owned(), body, options).await
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        let path = path.to_owned();
        self.change(provider_ref, grant_seq, move |workspace| workspace.remove(&path, recursive)).await
    }

    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        let path = path.to_owned();
        self.files(provider_ref, move |workspace| workspace.stat(&path)).await
    }

    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        let (path, after) = (path.to_owned(), after.map(<[u8]>::to_vec));
        self.files(provider_ref, move |workspace| workspace.list(&path, recursive, after.as_deref(), limit)).await
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.change(provider_ref, grant_seq, move |workspace| workspace.make_directory(workspace.inside(&path)?)).await
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.change(provider_ref, grant_seq, move |workspace| workspace.rename(&from, &to, overwrite)).await
    }
}
