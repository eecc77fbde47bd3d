//! The engine's own snapshots: images, made of a container while it stands still, and sealed as ours.

use std::collections::HashMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use super::Docker;
use super::owner::{DEPLOYMENT, Labels};
use super::wire::{Image, ImageListing};
use crate::clock::Time;
use crate::provider::{Destroyed, Kind, ListedSnapshot, Made, OwnerTag, ProviderError, Result, Snapshot, Spec};

/// The repository of all snapshots; the tag is the snapshot's id.
const REPOSITORY: &str = "berth-snapshot";
const SNAPSHOT: &str = "berth.snapshot";
const SEAL: &str = "berth.snapshot.seal";
/// How long taking one may take.
const WHOLE: Duration = Duration::from_mins(15);

/// What the snapshot of this id is called.
pub(super) fn name(id: Uuid) -> String {
    format!("{REPOSITORY}:{id}")
}

/// The id in a snapshot's name; nothing else was ever called a snapshot here.
fn id_of(snapshot_ref: &str) -> Result<Uuid> {
    let id = snapshot_ref.strip_prefix(REPOSITORY).and_then(|rest| Uuid::parse_str(rest.strip_prefix(':')?).ok());
    id.filter(|id| name(*id) == snapshot_ref).ok_or_else(|| ProviderError::new(Kind::NotFound, "no snapshot of this provider"))
}

impl Docker {
    pub(super) async fn take_snapshot(&self, container: &str, id: Uuid) -> Result<Snapshot> {
        let facts = self.facts(container).await?;
        if facts.read_only {
            // Its workspace is a volume, which no image takes along.
            return Err(ProviderError::new(Kind::Unsupported, "the workspace of a read-only container is in no image"));
        }
        let snapshot = Snapshot { snapshot_ref: name(id), size_bytes: None, expires_at: None };
        if self.snapshot_image(id).await?.is_some() {
            return Ok(snapshot);
        }
        let labels: HashMap<&str, String> =
            HashMap::from([(SNAPSHOT, id.to_string()), (SEAL, self.seal.of_snapshot(id)), (DEPLOYMENT, facts.tag.deployment.to_string())]);
        let tag = id.to_string();
        let query = [("container", container), ("repo", REPOSITORY), ("tag", &tag), ("pause", "true")];
        let request = self.engine.request(Method::POST, "/commit", &query).await?.json(&json!({ "Labels": labels }));
        match self.engine.answer(request, WHOLE).await {
            Ok(_) => Ok(snapshot),
            Err(failure) if failure.is(404) => Err(self.gone().await),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn make_of_snapshot(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made> {
        let id = id_of(snapshot_ref)?;
        match self.snapshot_image(id).await? {
            Some(image) => self.make_of(spec, tag, Some(image)).await,
            // An earlier call may have made it while there still was one.
            None => match self.look_by_name(tag).await? {
                Some(found) => self.recognize(&found, tag),
                None => Err(ProviderError::new(Kind::NotFound, "no such snapshot")),
            },
        }
    }

    pub(super) async fn has_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool> {
        self.bound_to(binding).await?;
        let found = match id_of(snapshot_ref) {
            Ok(id) => self.snapshot_image(id).await?.is_some(),
            Err(_) => false,
        };
        self.bound_to(binding).await.map(|()| found)
    }

    pub(super) async fn remove_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed> {
        self.bound_to(binding).await?;
        let Ok(id) = id_of(snapshot_ref) else { return Ok(Destroyed::AlreadyGone) };
        let removed = match self.snapshot_image(id).await? {
            Some(_) => self.engine.act(Method::DELETE, &format!("/images/{snapshot_ref}"), &[]).await.map(|_| Destroyed::Ended),
            None => Ok(Destroyed::AlreadyGone),
        };
        match removed {
            Ok(Destroyed::Ended) => Ok(Destroyed::Ended),
            Ok(Destroyed::AlreadyGone) => self.bound_to(binding).await.map(|()| Destroyed::AlreadyGone),
            Err(failure) if failure.is(404) => self.bound_to(binding).await.map(|()| Destroyed::AlreadyGone),
            // A container was made of it; with that one's end it can go.
            Err(failure) if failure.is(409) => Err(ProviderError::new(Kind::Transient, "a container still stands on the snapshot")),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Every image that is a snapshot of this deployment, by the name that its seal is over and no other.
    pub(super) async fn snapshot_inventory(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>> {
        let filters = json!({ "label": [format!("{DEPLOYMENT}={deployment}"), SNAPSHOT] }).to_string();
        let found: Vec<ImageListing> = self.engine.get("/images/json", &[("filters", &filters)]).await?;
        let ours = found.into_iter().flat_map(|image| {
            let (labels, created_at) = (image.labels.unwrap_or_default(), Some(Time(image.created.saturating_mul(1000))));
            // Podman says of what has no registry that it is here.
            let tags = image.repo_tags.unwrap_or_default().into_iter();
            let tags = tags.map(|name| name.strip_prefix("localhost/").map(str::to_owned).unwrap_or(name));
            let named: Vec<_> = tags.filter(|name| id_of(name).is_ok_and(|id| self.is_sealed(id, &labels))).collect();
            named.into_iter().map(move |snapshot_ref| ListedSnapshot { snapshot_ref, created_at })
        });
        Ok(ours.collect())
    }

    fn is_sealed(&self, id: Uuid, labels: &Labels) -> bool {
        let says = |key, value: String| labels.get(key).is_some_and(|said| *said == value);
        says(SNAPSHOT, id.to_string()) && says(SEAL, self.seal.of_snapshot(id))
    }

    /// The image of a snapshot of ours; none only with proof.
    async fn snapshot_image(&self, id: Uuid) -> Result<Option<Image>> {
        match self.engine.get::<Image>(&format!("/images/{}/json", name(id)), &[]).await {
            Ok(image) => {
                if image.config.as_ref().and_then(|config| config.labels.as_ref()).is_some_and(|labels| self.is_sealed(id, labels)) {
                    return Ok(Some(image));
                }
                Err(ProviderError::new(Kind::Refused, "an image that is not ours has the snapshot's name"))
            }
            Err(failure) if failure.is(404) => self.binding.still(&self.engine).await.map(|()| None),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn bound_to(&self, binding: &str) -> Result<()> {
        if self.binding.read(&self.engine).await? == binding {
            return Ok(());
        }
        Err(ProviderError::new(Kind::Refused, "this is another engine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_called_by_its_id_and_nothing_else() {
        let id = crate::id::new();
        assert_eq!(id_of(&name(id)).unwrap(), id);
        for other in ["berth-snapshot", "debian:12", "berth-snapshot:latest", &name(id).to_uppercase(), &format!("x/{}", name(id))] {
            assert!(id_of(other).is_err(), "{other}");
        }
    }
}
