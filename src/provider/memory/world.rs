//! What exists in a memory provider: its objects, and the processes in them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::tree::Tree;
use crate::clock::Time;
use crate::id;
use crate::provider::{Kind, Made, OwnerTag, ProviderError, Result, Spec};

/// One sandbox in memory.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) tag: OwnerTag,
    pub(super) running: bool,
    /// What the configuration called it.
    pub(super) label: Option<String>,
    pub(super) fence: i64,
    pub(super) tree: Tree,
    pub(super) created_at: Time,
    /// When the provider ends it by itself.
    pub(super) ends_at: Option<Time>,
    /// By operation; whoever is not in here any more has no effect any more.
    pub(super) processes: HashMap<Uuid, Process>,
}

/// A command, or what outlived it.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) grant_seq: i64,
    pub(super) killed: CancellationToken,
}

/// The files of an object as they were.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) tree: Tree,
    /// Whose object it was.
    pub(super) deployment: Uuid,
    pub(super) created_at: Time,
}

/// Everything there is, by ref.
#[derive(Debug)]
pub(super) struct World {
    pub(super) binding: String,
    /// How far its clock is ahead of the machine's.
    pub(super) ahead: Duration,
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) snapshots: BTreeMap<String, Kept>,
}

impl World {
    pub(super) fn new(binding: String) -> Self {
        Self { binding, ahead: Duration::ZERO, objects: BTreeMap::new(), snapshots: BTreeMap::new() }
    }

    /// The provider's own time.
    pub(super) fn now(&self) -> Time {
        now().after(self.ahead)
    }

    /// A new object with these files, running.
    pub(super) fn make(&mut self, spec: &Spec, tag: &OwnerTag, tree: Tree) -> Made {
        let provider_ref = format!("memory-{}", id::new());
        let label = spec.config.reveal()["label"].as_str().map(str::to_owned);
        let created_at = self.now();
        let ends_at = spec.config.reveal()["lifetime_seconds"].as_u64().map(|life| created_at.after(Duration::from_secs(life)));
        let object = Object { tag: tag.clone(), running: true, label, fence: 0, tree, created_at, ends_at, processes: HashMap::new() };
        self.objects.insert(provider_ref.clone(), object);
        Made { provider_ref, provider_expires_at: ends_at, metadata: None }
    }

    /// Refuses unless this is the account that is meant.
    pub(super) fn bound_to(&self, binding: &str) -> Result<()> {
        if self.binding == binding { Ok(()) } else { Err(ProviderError::new(Kind::Refused, "this is another account")) }
    }

    pub(super) fn object(&mut self, provider_ref: &str) -> Result<&mut Object> {
        self.objects.get_mut(provider_ref).ok_or_else(|| ProviderError::new(Kind::NotFound, "no such object"))
    }

    /// The object of this tag.
    pub(super) fn find(&self, tag: &OwnerTag) -> Option<Made> {
        let found = self.objects.iter().find(|(_, object)| object.tag == *tag);
        found.map(|(name, object)| Made { provider_ref: name.clone(), provider_expires_at: object.ends_at, metadata: None })
    }

    pub(super) fn running(&mut self, provider_ref: &str) -> Result<&mut Object> {
        let object = self.object(provider_ref)?;
        if object.running { Ok(object) } else { Err(ProviderError::new(Kind::Refused, "the object is stopped")) }
    }
}

impl Object {
    /// Ends every process of a grant below this one.
    pub(super) fn kill_below(&mut self, grant_seq: i64) {
        self.processes.retain(|_, process| {
            let stays = process.grant_seq >= grant_seq;
            if !stays {
                process.killed.cancel();
            }
            stays
        });
    }

    /// Ends every process.
    pub(super) fn kill_all(&mut self) {
        for (_, process) in self.processes.drain() {
            process.killed.cancel();
        }
    }
}

/// The machine's time, for ages and file times; ownership is never decided by it.
#[expect(clippy::disallowed_methods, reason = "file and object times, as a file system would give them")]
pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
