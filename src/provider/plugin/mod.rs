//! Providers in any language behind a URL: one value for each row of the ledger, since a plugin is told with every call whose
//! sandbox it is about. Files, trees, fences and kills go through the plugin's own way of running commands.

pub mod address;
mod client;
pub mod conformance;
mod exec;
mod failure;
mod files;
mod hand;
pub mod handshake;
mod lease;
mod listing;
mod tree;
pub mod worker;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use uuid::Uuid;

use self::client::{Call, Fence};
use self::failure::Failure;
use self::handshake::{DriverKind, Handshake};
use self::worker::Worker;
use super::{
    ByteStream, Destroyed, ExecSpec, FileEntry, FileRead, Isolation, Kind, Listed, ListedSnapshot, Lookup, Made, Observation, OwnerTag,
    Provider, ProviderError, PutOptions, ResolvedConfig, Result, Running, Snapshot, Spec, Traits, TreeRead, WriteMode,
};
use crate::clock::Time;
use crate::model::capability::{self, KEYS, Narrowing};

/// How long a driver may judge a configuration.
const VALIDATE: Duration = Duration::from_secs(30);
/// The name environments use for every plugin.
pub const KIND: &str = "plugin";

/// Whose sandbox a call is about: always from the row, never from what a plugin said.
#[derive(Clone, Debug)]
pub struct Row {
    /// The plugin's registration.
    pub registration: Uuid,
    /// The tenant.
    pub organization: Uuid,
    /// The environment.
    pub environment: Uuid,
    /// The logical sandbox.
    pub sandbox: Uuid,
    /// The ledger's row.
    pub instance: Uuid,
    /// The row's incarnation.
    pub generation: i64,
    /// The sandbox's present incarnation.
    pub current_generation: i64,
    /// The driver that made it, or is to.
    pub driver_key: String,
    /// The driver's configuration, secrets in it.
    pub config: ResolvedConfig,
    /// What the plugin said of its object when it made it.
    pub metadata: Value,
    /// When the plugin itself will end it, if it attested that.
    pub provider_expires_at: Option<Time>,
    /// Where the files are, once that was decided.
    pub workspace: Option<String>,
    /// The run it is for, a UUID.
    pub run: Uuid,
    /// The harness the caller named.
    pub harness: Option<String>,
    /// When the caller wants the plugin to end it.
    pub requested_expires_at: Option<Time>,
    /// Whether it is stopped. The protocol's only look is a resume, so what is at rest is not looked at.
    pub at_rest: bool,
    /// Whether its stop needs a receipt, since somebody asked for it.
    pub stop_confirmed: bool,
}

/// A plugin, for one row.
#[derive(Clone, Debug)]
pub struct Plugin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    worker: Arc<Worker>,
    token: Option<Token>,
    handshake: Arc<Handshake>,
    row: Row,
    traits: Traits,
}

/// What the worker is shown.
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Whether a sandbox's own metadata says that its files cannot be synced natively.
pub fn syncs_by_commands(metadata: &Value) -> bool {
    metadata["backend"] == "job" || metadata["nativeFileSyncUnsupported"] == true
}

/// The account that refs of a registration live in.
pub fn binding(registration: Uuid) -> String {
    format!("plugin:{registration}")
}

/// Whether a driver takes this configuration; a worker that does not judge takes it. Its own words go nowhere.
pub async fn validate_config(
    worker: &Worker,
    token: Option<&Token>,
    handshake: &Handshake,
    driver_key: &str,
    config: &Value,
) -> Result<bool> {
    let method = "environmentValidateConfig";
    if !handshake.methods.contains(method) {
        return Ok(true);
    }
    let params = json!({ "driverKey": driver_key, "config": config });
    let token = token.map(|token| token.0.as_str());
    let call = Call { method, params, token, fence: None, timeout: VALIDATE, idempotency_key: None };
    Ok(worker.http.call(call).await.map_err(ProviderError::from)?.result["ok"] == true)
}

impl Plugin {
    /// The plugin for this row, as its worker's life of this moment said of itself.
    pub fn bind(worker: Arc<Worker>, token: Option<Token>, handshake: Arc<Handshake>, row: Row) -> Result<Self> {
        let driver = handshake
            .driver(&row.driver_key)
            .ok_or_else(|| ProviderError::new(Kind::Transient, "the plugin's worker does not declare the driver any more"))?;
        let narrowing = Narrowing { no_native_sync: syncs_by_commands(&row.metadata), ..Narrowing::default() };
        let granted = capability::effective(None, &handshake.methods, &driver.declared(), narrowing);
        let has = |method: &str| handshake.methods.contains(method);
        let capabilities = KEYS.iter().zip(&granted).filter(|(_, granted)| granted.is_ok()).map(|(key, _)| *key).collect();
        let resumes = driver.kind == DriverKind::SandboxProvider && has("environmentResumeLease");
        let traits = Traits {
            kind: KIND,
            lookup: Lookup::None,
            isolation: Isolation::Remote,
            fencing: handshake.fencing,
            ensure_takes: Some(lease::acquire_timeout(row.config.reveal(), driver)),
            stop_resume: resumes && (has("environmentStopLease") || has("environmentReleaseLease")),
            tells_stopped_from_gone: resumes,
            capabilities: Cow::Owned(capabilities),
            snapshots: None,
        };
        Ok(Self(Arc::new(Inner { worker, token, handshake, row, traits })))
    }

    fn has(&self, method: &str) -> bool {
        self.0.handshake.methods.contains(method)
    }

    /// A call of this row's; refused before it is made when the worker does not have the method.
    fn asks(
        &self,
        method: &'static str,
        params: Value,
        timeout: Duration,
        idempotency_key: Option<String>,
    ) -> std::result::Result<Call<'_>, Failure> {
        if !self.has(method) {
            return Err(ProviderError::new(Kind::Unsupported, "the plugin's worker does not offer this").into());
        }
        let row = &self.0.row;
        let fence = Some(Fence { sandbox: row.sandbox, generation: row.generation, current: row.current_generation });
        let token = self.0.token.as_ref().map(|token| token.0.as_str());
        Ok(Call { method, params, token, fence, timeout, idempotency_key })
    }

    async fn call(&self, method: &'static str, params: Value, timeout: Duration) -> std::result::Result<Value, Failure> {
        let answer = self.0.worker.http.call(self.asks(method, params, timeout, None)?).await?;
        self.0.worker.heard_from(answer.generation.as_deref()).await;
        Ok(answer.result)
    }
}

#[async_trait]
impl Provider for Plugin {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn config_schema(&self) -> Value {
        self.0.handshake.driver(&self.0.row.driver_key).map_or(Value::Bool(true), |driver| driver.config_schema.clone())
    }

    async fn binding(&self) -> Result<String> {
        Ok(binding(self.0.row.registration))
    }

    async fn ensure(&self, _spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        self.acquire(tag).await
    }

    async fn find(&self, _tag: &OwnerTag) -> Result<Option<Made>> {
        Err(ProviderError::new(Kind::Unsupported, "plugins do not find objects by tag"))
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        self.look(binding, provider_ref).await
    }

    async fn realize(&self, provider_ref: &str, spec: &Spec) -> Result<String> {
        self.realize_workspace(provider_ref, spec).await
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.resume(provider_ref).await
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        self.stop_lease(provider_ref).await
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        self.destroy_lease(provider_ref).await
    }

    async fn list(&self, _deployment: Uuid) -> Result<Vec<Listed>> {
        Err(ProviderError::new(Kind::Unsupported, "plugins have no inventory"))
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        self.raise_fence(provider_ref, grant_seq).await
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        self.count(provider_ref).await
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
        self.read(provider_ref, path).await
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        self.put(provider_ref, grant_seq, path, body, options).await
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        self.remove(provider_ref, grant_seq, path, recursive).await
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
        self.list_directory(provider_ref, path, recursive, after, limit).await
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        self.make(provider_ref, grant_seq, path).await
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        self.rename(provider_ref, grant_seq, from, to, overwrite).await
    }
}
