//! Which engine this is. The engine's id can outlive its data root, so a volume in that root says which root it is: emptied or
//! exchanged, it is another engine to us, and what it does not have proves nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::engine::{Answer, Engine, Failure};
use super::owner::ENGINE;
use super::wire::{Info, Listing, Volume};
use crate::id;
use crate::provider::{Kind, ProviderError, Result};

/// The volume that names a data root.
const VOLUME: &str = "berth-engine";

/// What was read of the engine's identity.
#[derive(Debug, Default)]
pub(super) struct Binding {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The engine's id by the root's name; asked for once, since it costs more than a look at the volume.
    ids: HashMap<String, String>,
    /// What a caller was told last.
    told: Option<String>,
}

impl Binding {
    /// The engine's name as it is read now.
    pub(super) async fn read(&self, engine: &Engine) -> Result<String> {
        let binding = self.current(engine).await?;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).told = Some(binding.clone());
        Ok(binding)
    }

    /// The name of the data root, for the labels of what is made in it.
    pub(super) async fn root(&self, engine: &Engine) -> Result<String> {
        Ok(root(engine).await?)
    }

    /// Proves that this is the engine the caller was told of, so that what it does not have does not exist.
    pub(super) async fn still(&self, engine: &Engine) -> Result<()> {
        let now = self.current(engine).await?;
        let told = self.seen.lock().unwrap_or_else(PoisonError::into_inner).told.clone();
        if told.is_none_or(|told| told == now) {
            return Ok(());
        }
        Err(ProviderError::new(Kind::Transient, "the container engine is not the one it was"))
    }

    async fn current(&self, engine: &Engine) -> Result<String> {
        let root = root(engine).await?;
        if engine.about().await?.is_podman {
            return Ok(format!("podman:{root}"));
        }
        let known = self.seen.lock().unwrap_or_else(PoisonError::into_inner).ids.get(&root).cloned();
        let id = if let Some(id) = known {
            id
        } else {
            let info: Info = engine.get("/info", &[]).await?;
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).ids.insert(root.clone(), info.id.clone());
            info.id
        };
        Ok(format!("docker:{id}/{root}"))
    }
}

/// The name of the data root: the volume's, or, where somebody removed the volume, that of containers made in it; a root that
/// has neither gets a new one.
async fn root(engine: &Engine) -> Answer<String> {
    match engine.get::<Volume>(&format!("/volumes/{VOLUME}"), &[]).await {
        Ok(volume) => return named(volume.labels),
        Err(failure) if failure.is(404) => {}
        Err(failure) => return Err(failure),
    }
    let filters = json!({ "label": [ENGINE] }).to_string();
    let containers: Vec<Listing> = engine.get("/containers/json", &[("all", "true"), ("filters", &filters)]).await?;
    let of_container = containers.into_iter().filter_map(|one| one.labels?.remove(ENGINE)).min();
    let name = of_container.unwrap_or_else(|| id::new().to_string());
    // Whoever was first has named it; the answer tells.
    let volume: Volume = engine.post("/volumes/create", &[], &json!({ "Name": VOLUME, "Labels": { ENGINE: name } })).await?;
    named(volume.labels)
}

fn named(labels: Option<HashMap<String, String>>) -> Answer<String> {
    let name = labels.unwrap_or_default().remove(ENGINE);
    name.ok_or(Failure::Unfit("the volume berth-engine is not Berth's; it needs that name for itself"))
}
