//! Every method of the contract, passed on through the script.

use async_trait::async_trait;
use uuid::Uuid;

use super::{Fault, Faults, Lie, Step, Verb};
use crate::provider::{
    ByteStream, Destroyed, ExecSpec, FileEntry, FileRead, Kind, Listed, ListedSnapshot, Made, Observation, OwnerTag, Prepared, Provider,
    ProviderError, PutOptions, Result, Running, Snapshot, Spec, Traits, TreeRead, WriteMode,
};

impl Faults {
    /// One call through the script.
    async fn through<T>(
        &self,
        verb: Verb,
        provider_ref: Option<&str>,
        call: impl Future<Output = Result<T>> + Send,
        lie: impl FnOnce(T, Lie) -> T + Send,
    ) -> Result<T> {
        match self.step(verb, provider_ref) {
            None => call.await,
            Some(Step::Fault(Fault::FailBefore(kind))) => Err(scripted(kind)),
            Some(Step::Fault(Fault::FailAfter(kind))) => {
                let _ = call.await?;
                Err(scripted(kind))
            }
            Some(Step::Fault(Fault::Delay(span))) => {
                tokio::time::sleep(span).await;
                call.await
            }
            Some(Step::Fault(Fault::Lie(what))) => Ok(lie(call.await?, what)),
            Some(Step::Hang { after: false, gate }) => {
                gate.pass().await;
                call.await
            }
            Some(Step::Hang { after: true, gate }) => {
                let answer = call.await;
                gate.pass().await;
                answer
            }
        }
    }

    /// A call whose answer nobody lies about.
    async fn plain<T>(&self, verb: Verb, provider_ref: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.through(verb, Some(provider_ref), call, |answer, _| answer).await
    }
}

fn scripted(kind: Kind) -> ProviderError {
    ProviderError::new(kind, "a scripted fault").because(std::io::Error::other(super::CAUSE))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for Faults {
    fn traits(&self) -> &Traits {
        self.inner.traits()
    }

    fn config_schema(&self) -> serde_json::Value {
        self.inner.config_schema()
    }

    async fn binding(&self) -> Result<String> {
        self.through(Verb::Binding, None, self.inner.binding(), |answer, _| answer).await
    }

    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        let lie = |made, lie| match lie {
            Lie::Ref(provider_ref) => Made { provider_ref, ..made },
            _ => made,
        };
        self.through(Verb::Ensure, None, self.inner.ensure(spec, tag), lie).await
    }

    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>> {
        let lie = |found, lie| match lie {
            Lie::Ref(provider_ref) => Some(Made { provider_ref, provider_expires_at: None, metadata: None }),
            Lie::Nothing => None,
            Lie::Observed(_) => found,
        };
        self.through(Verb::Find, None, self.inner.find(tag), lie).await
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        let look = async { Ok(self.inner.observe(binding, provider_ref).await) };
        let lie = |seen, lie| if let Lie::Observed(other) = lie { other } else { seen };
        // A look has no errors: what fails has proven nothing.
        self.through(Verb::Observe, Some(provider_ref), look, lie).await.unwrap_or(Observation::Unknown)
    }

    async fn realize(&self, provider_ref: &str, spec: &Spec) -> Result<String> {
        self.plain(Verb::Realize, provider_ref, self.inner.realize(provider_ref, spec)).await
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.plain(Verb::Start, provider_ref, self.inner.start(provider_ref)).await
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        self.plain(Verb::Stop, provider_ref, self.inner.stop(provider_ref)).await
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        let lie = |end, lie| if matches!(lie, Lie::Nothing) { Destroyed::AlreadyGone } else { end };
        self.through(Verb::Destroy, Some(provider_ref), self.inner.destroy(provider_ref), lie).await
    }

    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        let lie = |listed, lie| if matches!(lie, Lie::Nothing) { Vec::new() } else { listed };
        self.through(Verb::List, None, self.inner.list(deployment), lie).await
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        self.plain(Verb::Fence, provider_ref, self.inner.fence(provider_ref, grant_seq)).await
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        self.plain(Verb::Processes, provider_ref, self.inner.processes(provider_ref)).await
    }

    async fn prepare(&self, provider_ref: &str, spec: &ExecSpec) -> Option<Prepared> {
        self.inner.prepare(provider_ref, spec).await
    }

    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        self.plain(Verb::Exec, provider_ref, self.inner.exec(provider_ref, spec)).await
    }

    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        self.plain(Verb::StatWalk, provider_ref, self.inner.stat_walk(provider_ref, exclude)).await
    }

    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        self.plain(Verb::ReadTree, provider_ref, self.inner.read_tree(provider_ref, path, exclude)).await
    }

    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()> {
        self.plain(Verb::WriteTree, provider_ref, self.inner.write_tree(provider_ref, grant_seq, path, tar, mode)).await
    }

    fn snapshot_ref(&self, id: Uuid) -> Option<String> {
        self.inner.snapshot_ref(id)
    }

    async fn snapshot(&self, provider_ref: &str, id: Uuid) -> Result<Snapshot> {
        let lie = |made, lie| match lie {
            Lie::Ref(snapshot_ref) => Snapshot { snapshot_ref, ..made },
            _ => made,
        };
        self.through(Verb::Snapshot, Some(provider_ref), self.inner.snapshot(provider_ref, id), lie).await
    }

    async fn restore(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made> {
        let lie = |made, lie| match lie {
            Lie::Ref(provider_ref) => Made { provider_ref, ..made },
            _ => made,
        };
        self.through(Verb::Restore, Some(snapshot_ref), self.inner.restore(spec, tag, snapshot_ref), lie).await
    }

    async fn probe_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool> {
        let lie = |there, lie| there && !matches!(lie, Lie::Nothing);
        self.through(Verb::ProbeSnapshot, Some(snapshot_ref), self.inner.probe_snapshot(binding, snapshot_ref), lie).await
    }

    async fn list_snapshots(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        let lie = |listed, lie| if matches!(lie, Lie::Nothing) { Vec::new() } else { listed };
        self.through(Verb::ListSnapshots, None, self.inner.list_snapshots(deployment), lie).await
    }

    async fn delete_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed> {
        let lie = |end, lie| if matches!(lie, Lie::Nothing) { Destroyed::AlreadyGone } else { end };
        self.through(Verb::DeleteSnapshot, Some(snapshot_ref), self.inner.delete_snapshot(binding, snapshot_ref), lie).await
    }

    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        self.plain(Verb::ReadFile, provider_ref, self.inner.read_file(provider_ref, path)).await
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        self.plain(Verb::WriteFile, provider_ref, self.inner.write_file(provider_ref, grant_seq, path, body, options)).await
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        self.plain(Verb::RemoveFile, provider_ref, self.inner.remove_file(provider_ref, grant_seq, path, recursive)).await
    }

    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        self.plain(Verb::StatFile, provider_ref, self.inner.stat_file(provider_ref, path)).await
    }

    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        self.plain(Verb::ListFiles, provider_ref, self.inner.list_files(provider_ref, path, recursive, after, limit)).await
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        self.plain(Verb::MakeDirectory, provider_ref, self.inner.make_directory(provider_ref, grant_seq, path)).await
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        self.plain(Verb::MoveFile, provider_ref, self.inner.move_file(provider_ref, grant_seq, from, to, overwrite)).await
    }
}
