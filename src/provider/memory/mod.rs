//! The reference implementation of the contract: sandboxes that exist in this process alone, for tests and trials.

mod command;
mod exec;
mod node;
mod tar;
mod tree;
mod world;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::tree::Tree;
use self::world::{Kept, World, now};
use super::faults::Verb;
use super::stream::{self, from_bytes};
use super::{
    ByteStream, CaptureEffect, DIRECT_CAPABILITIES, Destroyed, ExecSpec, FileEntry, FileRead, Isolation, Kind, Listed, ListedSnapshot,
    Lookup, Made, Observation, OwnerTag, Presence, Provider, ProviderError, PutOptions, Result, Running, Snapshot, Snapshots, Spec,
    Takeover, Traits, TreeRead, WriteMode,
};
use crate::id;

/// The most bytes one file or tree may have; a test provider must not eat the machine.
const MOST_BYTES: usize = 256 << 20;

/// A provider whose whole world is this value; clones share it, so it outlives a server that is started anew.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

/// What clones and running commands share.
struct Inner {
    traits: Traits,
    world: Mutex<World>,
    calls: Mutex<HashMap<Verb, u64>>,
    tasks: TaskTracker,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("objects", &self.0.lock().objects.len()).finish_non_exhaustive()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty world that finds its objects by tag.
    pub fn new() -> Self {
        Self::with_lookup(Lookup::ByTag)
    }

    /// An empty world with another way to find things, for tests of what follows from it.
    pub fn with_lookup(lookup: Lookup) -> Self {
        let traits = Traits {
            kind: "memory",
            lookup,
            isolation: Isolation::None,
            fencing: false,
            ensure_takes: None,
            stop_resume: true,
            tells_stopped_from_gone: true,
            capabilities: std::borrow::Cow::Borrowed(DIRECT_CAPABILITIES),
            snapshots: Some(Snapshots { effect: CaptureEffect::Pauses, takeover: Takeover::SameRequest }),
        };
        let world = Mutex::new(World::new(format!("memory:{}", id::new())));
        Self(Arc::new(Inner { traits, world, calls: Mutex::default(), tasks: TaskTracker::new() }))
    }

    /// Every object there is: its ref, its owner, whether it runs.
    pub fn inventory(&self) -> Vec<(String, OwnerTag, bool)> {
        self.0.lock().objects.iter().map(|(name, object)| (name.clone(), object.tag.clone(), object.running)).collect()
    }

    /// What an object's configuration called it when it was made.
    pub fn label(&self, provider_ref: &str) -> Option<String> {
        self.0.lock().objects.get(provider_ref).and_then(|object| object.label.clone())
    }

    /// How often a verb was called.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner).get(&verb).copied().unwrap_or(0)
    }

    /// Becomes another account, as if the server were pointed elsewhere; returns the new binding.
    pub fn rebind(&self) -> String {
        let binding = format!("memory:{}", id::new());
        self.0.lock().binding.clone_from(&binding);
        binding
    }

    /// Removes an object behind Berth's back; false when there is none.
    pub fn vanish(&self, provider_ref: &str) -> bool {
        self.0.lock().objects.remove(provider_ref).map(|mut object| object.kill_all()).is_some()
    }

    /// Moves the provider's clock, by which objects have their age and their end.
    pub fn advance(&self, by: Duration) {
        self.0.lock().ahead += by;
    }

    /// Ends every object whose life is over by the provider's clock, as a provider does that attests an end.
    pub fn end_lives(&self) {
        let mut world = self.0.lock();
        let now = world.now();
        world.objects.retain(|_, object| {
            let lives = object.ends_at.is_none_or(|at| at > now);
            if !lives {
                object.kill_all();
            }
            lives
        });
    }

    /// The snapshots there are.
    pub fn snapshots(&self) -> Vec<String> {
        self.0.lock().snapshots.keys().cloned().collect()
    }

    /// Removes a snapshot behind Berth's back; false when there is none.
    pub fn lose_snapshot(&self, snapshot_ref: &str) -> bool {
        self.0.lock().snapshots.remove(snapshot_ref).is_some()
    }

    /// Stops an object behind Berth's back; false when there is none.
    pub fn stop_behind(&self, provider_ref: &str) -> bool {
        let mut world = self.0.lock();
        world.object(provider_ref).map(|object| (object.running, ()) = (false, object.kill_all())).is_ok()
    }

    /// Counts a call and enters the world.
    fn enter(&self, verb: Verb) -> MutexGuard<'_, World> {
        *self.0.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(verb).or_insert(0) += 1;
        self.0.lock()
    }

    /// Changes an object's files, unless its fence is higher.
    fn change<T>(&self, provider_ref: &str, grant_seq: i64, act: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        let mut world = self.0.lock();
        let object = world.object(provider_ref)?;
        if object.fence > grant_seq {
            return Err(ProviderError::fenced());
        }
        act(&mut object.tree)
    }

    fn tree<T>(&self, verb: Verb, provider_ref: &str, act: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        act(&mut self.enter(verb).object(provider_ref)?.tree)
    }
}

#[async_trait]
impl Provider for Memory {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn config_schema(&self) -> serde_json::Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "label": { "type": "string", "description": "Means nothing; makes configurations differ." },
                "lifetime_seconds": { "type": "integer", "minimum": 1, "description": "After how long the provider ends it; never, if absent." }
            },
            "additionalProperties": false
        })
    }

    async fn binding(&self) -> Result<String> {
        Ok(self.enter(Verb::Binding).binding.clone())
    }

    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        let mut world = self.enter(Verb::Ensure);
        if self.0.traits.lookup == Lookup::ByTag
            && let Some(made) = world.find(tag)
        {
            return Ok(made);
        }
        let tree = Tree::new(spec.workspace_path.as_deref().filter(|path| path.starts_with('/')).unwrap_or("/workspace"));
        Ok(world.make(spec, tag, tree))
    }

    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>> {
        let world = self.enter(Verb::Find);
        if self.0.traits.lookup != Lookup::ByTag {
            return Err(ProviderError::new(Kind::Unsupported, "objects are not found by tag"));
        }
        Ok(world.find(tag))
    }

    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        let world = self.enter(Verb::Observe);
        match world.objects.get(provider_ref) {
            _ if world.binding != binding => Observation::Unknown,
            None => Observation::Absent,
            Some(object) if object.running => Observation::Present(Presence::Running),
            Some(_) => Observation::Present(Presence::Stopped),
        }
    }

    async fn realize(&self, provider_ref: &str, spec: &Spec) -> Result<String> {
        self.tree(Verb::Realize, provider_ref, |tree| {
            if let Some(path) = spec.workspace_path.as_deref().filter(|path| path.starts_with('/')) {
                tree.place(path.trim_end_matches('/'));
            }
            Ok(tree.root())
        })
    }

    async fn start(&self, provider_ref: &str) -> Result<()> {
        self.enter(Verb::Start).object(provider_ref)?.running = true;
        Ok(())
    }

    async fn stop(&self, provider_ref: &str) -> Result<()> {
        let mut world = self.enter(Verb::Stop);
        let object = world.object(provider_ref)?;
        object.kill_all();
        object.running = false;
        Ok(())
    }

    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed> {
        let mut world = self.enter(Verb::Destroy);
        Ok(world.objects.remove(provider_ref).map_or(Destroyed::AlreadyGone, |mut object| {
            object.kill_all();
            Destroyed::Ended
        }))
    }

    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        let world = self.enter(Verb::List);
        let ours = world.objects.iter().filter(|(_, object)| object.tag.deployment == deployment);
        Ok(ours
            .map(|(name, object)| Listed { provider_ref: name.clone(), tag: object.tag.clone(), created_at: Some(object.created_at) })
            .collect())
    }

    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        let mut world = self.enter(Verb::Fence);
        let object = world.object(provider_ref)?;
        object.fence = object.fence.max(grant_seq);
        object.kill_below(grant_seq);
        Ok(())
    }

    async fn processes(&self, provider_ref: &str) -> Result<u64> {
        Ok(u64::try_from(self.enter(Verb::Processes).object(provider_ref)?.processes.len()).unwrap_or(u64::MAX))
    }

    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        drop(self.enter(Verb::Exec));
        exec::start(&self.0, provider_ref, spec)
    }

    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String> {
        self.tree(Verb::StatWalk, provider_ref, |tree| Ok(tree.digest(|path| tar::excluded(path, exclude))))
    }

    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead> {
        let tree = self.tree(Verb::ReadTree, provider_ref, |tree| Ok(tree.taken_out(&tree.enter(path.as_bytes())?)))?;
        let (mut writer, tar) = stream::channel();
        let (count, skipped) = tokio::sync::oneshot::channel();
        let exclude = exclude.to_vec();
        self.0.tasks.spawn_blocking(move || {
            // A reader that left needs neither the rest nor the count; a tar cut short shows as a broken stream.
            if tar::write(&tree, &exclude, &mut writer).is_ok() {
                let _ = count.send(0);
                let _ = writer.finish();
            }
        });
        Ok(TreeRead { tar, skipped })
    }

    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()> {
        drop(self.enter(Verb::WriteTree));
        let bytes = stream::read_all(tar, MOST_BYTES).await?;
        self.change(provider_ref, grant_seq, |tree| {
            let mut changed = tree.clone();
            let key = changed.make_directory(path.as_bytes(), now())?;
            let mut inner = changed.taken_out(&key);
            if mode == WriteMode::Replace {
                inner = inner.emptied();
            }
            self::tar::read(&mut inner, &bytes)?;
            changed.put_back(&key, inner);
            *tree = changed;
            Ok(())
        })
    }

    fn snapshot_ref(&self, id: Uuid) -> Option<String> {
        Some(format!("memory-snapshot-{id}"))
    }

    async fn snapshot(&self, provider_ref: &str, id: Uuid) -> Result<Snapshot> {
        let mut world = self.enter(Verb::Snapshot);
        let object = world.object(provider_ref)?;
        let kept = Kept { tree: object.tree.clone(), deployment: object.tag.deployment, created_at: world.now() };
        let snapshot_ref = format!("memory-snapshot-{id}");
        world.snapshots.entry(snapshot_ref.clone()).or_insert(kept);
        Ok(Snapshot { snapshot_ref, size_bytes: None, expires_at: None })
    }

    async fn restore(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made> {
        let mut world = self.enter(Verb::Restore);
        if let Some(made) = world.find(tag) {
            return Ok(made);
        }
        let kept = world.snapshots.get(snapshot_ref).cloned().ok_or_else(|| ProviderError::new(Kind::NotFound, "no such snapshot"))?;
        Ok(world.make(spec, tag, kept.tree))
    }

    async fn probe_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool> {
        let world = self.enter(Verb::ProbeSnapshot);
        world.bound_to(binding)?;
        Ok(world.snapshots.contains_key(snapshot_ref))
    }

    async fn list_snapshots(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        let world = self.enter(Verb::ListSnapshots);
        let ours = world.snapshots.iter().filter(|(_, kept)| kept.deployment == deployment);
        Ok(ours.map(|(name, kept)| ListedSnapshot { snapshot_ref: name.clone(), created_at: Some(kept.created_at) }).collect())
    }

    async fn delete_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed> {
        let mut world = self.enter(Verb::DeleteSnapshot);
        world.bound_to(binding)?;
        Ok(world.snapshots.remove(snapshot_ref).map_or(Destroyed::AlreadyGone, |_| Destroyed::Ended))
    }

    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead> {
        let (entry, bytes) = self.tree(Verb::ReadFile, provider_ref, |tree| tree.read(path.as_bytes()))?;
        Ok(FileRead { entry, body: from_bytes(bytes) })
    }

    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool> {
        drop(self.enter(Verb::WriteFile));
        let bytes = stream::read_all(body, MOST_BYTES).await?;
        self.change(provider_ref, grant_seq, |tree| tree.write(path.as_bytes(), bytes.into(), options, now()))
    }

    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()> {
        drop(self.enter(Verb::RemoveFile));
        self.change(provider_ref, grant_seq, |tree| tree.remove(path.as_bytes(), recursive))
    }

    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry> {
        self.tree(Verb::StatFile, provider_ref, |tree| tree.stat(path.as_bytes()))
    }

    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>> {
        self.tree(Verb::ListFiles, provider_ref, |tree| tree.list(path.as_bytes(), recursive, after, limit))
    }

    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()> {
        drop(self.enter(Verb::MakeDirectory));
        self.change(provider_ref, grant_seq, |tree| tree.make_directory(path.as_bytes(), now()).map(|_| ()))
    }

    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()> {
        drop(self.enter(Verb::MoveFile));
        self.change(provider_ref, grant_seq, |tree| tree.rename(from.as_bytes(), to.as_bytes(), overwrite))
    }
}

#[cfg(test)]
mod tests;
