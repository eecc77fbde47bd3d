//! A decorator that counts every call of any provider by verb and outcome, and names it in the log's spans.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    ByteStream, Destroyed, ExecSpec, FileEntry, FileRead, Listed, ListedSnapshot, Made, Observation, OwnerTag, Prepared, Presence,
    Provider, PutOptions, Result, Running, Snapshot, Spec, Traits, TreeRead, WriteMode,
};

/// Calls by provider, verb and outcome: `ok`, what a look proved, the kind of the failure, or `given_up` when nobody waited any more.
pub const CALLS: &str = "berth_provider_calls_total";

/// Counts what goes to the provider inside.
pub struct Counted(pub Arc<dyn Provider>);

/// Counts one call when it is over, however that comes about.
struct Call {
    provider: &'static str,
    verb: &'static str,
    outcome: &'static str,
}

impl Drop for Call {
    fn drop(&mut self) {
        metrics::counter!(CALLS, "provider" => self.provider, "verb" => self.verb, "outcome" => self.outcome).increment(1);
    }
}

impl Counted {
    async fn call<T>(
        &self,
        verb: &'static str,
        outcome: impl FnOnce(&T) -> &'static str + Send,
        work: impl Future<Output = T> + Send,
    ) -> T {
        let mut call = Call { provider: self.0.traits().kind, verb, outcome: "given_up" };
        let ended = work.instrument(tracing::debug_span!("provider_call", provider = call.provider, verb)).await;
        call.outcome = outcome(&ended);
        ended
    }

    async fn tried<T>(&self, verb: &'static str, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.call(verb, |ended| ended.as_ref().map_or_else(|error| error.kind.as_str(), |_| "ok"), work).await
    }
}

fn seen(observation: Observation) -> &'static str {
    match observation {
        Observation::Present(Presence::Running) => "running",
        Observation::Present(Presence::Stopped) => "stopped",
        Observation::Present(Presence::Paused) => "paused",
        Observation::Present(Presence::Ended) => "ended",
        Observation::Absent => "absent",
        Observation::Unknown => "unknown",
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for Counted {
    fn traits(&self) -> &Traits {
        self.0.traits()
    }

    fn config_schema(&self) -> serde_json::Value {
        self.0.config_schema()
    }

    async fn binding(&self) -> Result<String> {
        self.tried("binding", self.0.binding()).await
    }

    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        self.tried("ensure", self.0.ensure(spec, tag)).await
    }

    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>> {
        self.tried("find", self.0.find(tag)).await
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        self.call("observe", |found| seen(*found), self.0.observe(binding, provider_ref)).await
    }

    async fn realize(&self, provider_ref: &str, spec: &Spec) -> Result<String> {
        self.tried("realize", self.0.realize(provider_ref, spec)).await
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.tried("start", self.0.start(provider_ref)).await
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        self.tried("stop", self.0.stop(provider_ref)).await
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        self.tried("destroy", self.0.destroy(provider_ref)).await
    }

    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        self.tried("list", self.0.list(deployment)).await
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        self.tried("fence", self.0.fence(provider_ref, grant_seq)).await
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        self.tried("processes", self.0.processes(provider_ref)).await
    }

    async fn prepare(&self, provider_ref: &str, spec: &ExecSpec) -> Option<Prepared> {
        self.0.prepare(provider_ref, spec).await
    }

    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        self.tried("exec", self.0.exec(provider_ref, spec)).await
    }

    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        self.tried("stat_walk", self.0.stat_walk(provider_ref, exclude)).await
    }

    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        self.tried("read_tree", self.0.read_tree(provider_ref, path, exclude)).await
    }

    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()> {
        self.tried("write_tree", self.0.write_tree(provider_ref, grant_seq, path, tar, mode)).await
    }

    fn snapshot_ref(&self, id: Uuid) -> Option<String> {
        self.0.snapshot_ref(id)
    }

    async fn snapshot(&self, provider_ref: &str, id: Uuid) -> Result<Snapshot> {
        self.tried("snapshot", self.0.snapshot(provider_ref, id)).await
    }

    async fn restore(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made> {
        self.tried("restore", self.0.restore(spec, tag, snapshot_ref)).await
    }

    async fn probe_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool> {
        self.tried("probe_snapshot", self.0.probe_snapshot(binding, snapshot_ref)).await
    }

    async fn list_snapshots(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        self.tried("list_snapshots", self.0.list_snapshots(deployment)).await
    }

    async fn delete_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed> {
        self.tried("delete_snapshot", self.0.delete_snapshot(binding, snapshot_ref)).await
    }

    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        self.tried("read_file", self.0.read_file(provider_ref, path)).await
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        self.tried("write_file", self.0.write_file(provider_ref, grant_seq, path, body, options)).await
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        self.tried("remove_file", self.0.remove_file(provider_ref, grant_seq, path, recursive)).await
    }

    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        self.tried("stat_file", self.0.stat_file(provider_ref, path)).await
    }

    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        self.tried("list_files", self.0.list_files(provider_ref, path, recursive, after, limit)).await
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        self.tried("make_directory", self.0.make_directory(provider_ref, grant_seq, path)).await
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        self.tried("move_file", self.0.move_file(provider_ref, grant_seq, from, to, overwrite)).await
    }
}
