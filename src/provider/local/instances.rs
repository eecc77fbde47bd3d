//! Instances as directories: how they are made, found, listed and removed, and what proves that one is gone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Deserialize;
use uuid::Uuid;

use super::fence::kill_below;
use super::purge::purge;
use super::{durable, failed, layout};
use crate::clock::Time;
use crate::id;
use crate::provider::{Kind, Listed, LocalSettings, Observation, OwnerTag, Presence, ProviderError, Result, Spec};

/// The place of all instances.
#[derive(Clone, Debug)]
pub(super) struct Instances {
    root: PathBuf,
    binding: String,
}

/// The part of a configuration that this provider has.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    env: std::collections::BTreeMap<String, String>,
}

impl Instances {
    /// Opens the place, and names it if it is new.
    pub(super) fn open(settings: &LocalSettings) -> io::Result<Self> {
        fs::create_dir_all(&settings.root)?;
        let root = fs::canonicalize(&settings.root)?;
        for directory in ["instances", "making", "trash"] {
            fs::create_dir_all(root.join(directory))?;
        }
        let binding = root.join("binding");
        match durable::create(&binding, id::new().to_string().as_bytes()) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => durable::sync(&root)?,
        }
        let binding = read_binding(&root)?;
        Ok(Self { root, binding })
    }

    /// Where the instances are, with no link in the way.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The place's name as it is read now; differs from the name at the start when the place was exchanged.
    pub(super) fn binding(&self) -> Result<String> {
        read_binding(&self.root).map_err(|e| ProviderError::new(Kind::Transient, "the data directory has no readable id").because(e))
    }

    /// The directory of an existing instance; `NotFound` only with proof.
    pub(super) fn existing(&self, provider_ref: &str) -> Result<PathBuf> {
        let instance = self.directory(provider_ref)?;
        match fs::symlink_metadata(&instance) {
            Ok(_) => Ok(instance),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.same_place()?;
                Err(ProviderError::new(Kind::NotFound, "no such instance"))
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// Proves that this is still the place that was opened, so that what is not in it does not exist.
    fn same_place(&self) -> Result<()> {
        if self.binding()? == self.binding && self.root.join("instances").is_dir() {
            return Ok(());
        }
        Err(ProviderError::new(Kind::Transient, "the data directory is not the one that was opened"))
    }

    fn directory(&self, provider_ref: &str) -> Result<PathBuf> {
        match Uuid::parse_str(provider_ref) {
            Ok(id) if id.to_string() == provider_ref => Ok(self.root.join("instances").join(provider_ref)),
            // Nothing of this name was ever made here.
            _ => Err(ProviderError::new(Kind::NotFound, "no ref of this provider")),
        }
    }

    pub(super) fn observe(&self, binding: &str, provider_ref: &str) -> Observation {
        // Looked at between two readings of the binding: what is missing while the place is away is not absent.
        let named = || self.binding().is_ok_and(|named| named == binding);
        let before = named();
        let seen = self.existing(provider_ref).and_then(|instance| layout::state(&instance).map_err(failed));
        if !before || !named() {
            return Observation::Unknown;
        }
        match seen {
            Ok(layout::State::Running | layout::State::Stopping) => Observation::Present(Presence::Running),
            Ok(layout::State::Stopped) => Observation::Present(Presence::Stopped),
            Err(e) if e.kind == Kind::NotFound => Observation::Absent,
            Err(_) => Observation::Unknown,
        }
    }

    /// Makes the instance of this tag, unless it is there.
    pub(super) fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<()> {
        let config: Config = serde_json::from_value(spec.config.reveal().clone())
            .map_err(|e| ProviderError::new(Kind::Invalid, "the configuration does not fit").because(e))?;
        self.same_place()?;
        let name = tag.instance.to_string();
        if !self.find(tag)? {
            let making = format!("{name}.{}", id::new());
            if let Err(error) = self.make(&self.root.join("making").join(&making), tag, &config) {
                purge(&self.root.join("making"), &making).map_err(failed)?;
                // Someone else may have been faster with the same tag, and have cleared away what was being made here.
                if !self.find(tag)? {
                    return Err(failed(error));
                }
            }
        }
        self.clear_half_made(&name)
    }

    /// Removes what attempts that died left in the making: nobody will finish it.
    pub(super) fn clear_half_made(&self, provider_ref: &str) -> Result<()> {
        let making = self.root.join("making");
        for entry in fs::read_dir(&making).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some(name) = name.to_str().filter(|name| name.starts_with(provider_ref)) {
                purge(&making, name).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn make(&self, beside: &Path, tag: &OwnerTag, config: &Config) -> io::Result<()> {
        fs::create_dir(beside)?;
        for directory in [layout::workspace(beside), layout::run(beside), layout::temporary(beside), layout::staging(beside)] {
            fs::create_dir(directory)?;
        }
        durable::create(&layout::tag(beside), &serde_json::to_vec(tag)?)?;
        durable::create(&layout::environment(beside), &serde_json::to_vec(&config.env)?)?;
        layout::write_fence(beside, 0)?;
        layout::write_state(beside, layout::State::Running)?;
        let instances = self.root.join("instances");
        renameat_with(CWD, beside, CWD, instances.join(tag.instance.to_string()), RenameFlags::NOREPLACE)?;
        durable::sync(&instances)
    }

    /// Whether the instance of this tag exists; `Refused` when its place is another owner's.
    pub(super) fn find(&self, tag: &OwnerTag) -> Result<bool> {
        let instance = match self.existing(&tag.instance.to_string()) {
            Ok(instance) => instance,
            Err(e) if e.kind == Kind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        if read_tag(&instance).map_err(failed)? == *tag {
            return Ok(true);
        }
        Err(ProviderError::new(Kind::Refused, "the instance has another owner"))
    }

    /// Every instance of a deployment. One whose tag cannot be read is left out: it is nobody's to sweep.
    pub(super) fn list(&self, deployment: Uuid) -> Result<Vec<Listed>> {
        self.same_place()?;
        let mut listed = Vec::new();
        for entry in fs::read_dir(self.root.join("instances")).map_err(failed)? {
            let instance = entry.map_err(failed)?.path();
            let Some(provider_ref) = instance.file_name().and_then(OsStr::to_str).map(str::to_owned) else { continue };
            match read_tag(&instance) {
                Ok(tag) if tag.deployment == deployment => listed.push(Listed { provider_ref, tag, created_at: created_at(&instance) }),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(_) => tracing::warn!(instance = provider_ref, "an instance has no readable tag"),
            }
        }
        Ok(listed)
    }

    /// Moves an instance out of existence; `clear` does the rest.
    pub(super) fn discard(&self, provider_ref: &str) -> Result<()> {
        let discarded = self.root.join("trash").join(format!("{provider_ref}.{}", id::new()));
        match fs::rename(self.directory(provider_ref)?, discarded) {
            // Another destroy was faster.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            moved => moved.and_then(|()| durable::sync(&self.root.join("instances"))).map_err(failed),
        }
    }

    /// Ends and removes what is left of an instance in the trash and in the making, of earlier attempts too.
    pub(super) fn clear(&self, provider_ref: &str) -> Result<()> {
        if self.directory(provider_ref).is_err() {
            return Ok(());
        }
        for place in ["trash", "making"].map(|name| self.root.join(name)) {
            for entry in fs::read_dir(&place).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                if let Some(name) = name.to_str().filter(|name| name.starts_with(provider_ref)) {
                    // A command may have started between the last kill and the rename into the trash.
                    kill_below(&place.join(name), provider_ref, None)?;
                    purge(&place, name).map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

fn read_binding(root: &Path) -> io::Result<String> {
    let id = fs::read_to_string(root.join("binding"))?;
    Uuid::parse_str(id.trim()).map(|id| format!("local:{id}")).map_err(io::Error::other)
}

fn read_tag(instance: &Path) -> io::Result<OwnerTag> {
    Ok(serde_json::from_slice(&fs::read(layout::tag(instance))?)?)
}

fn created_at(instance: &Path) -> Option<Time> {
    let made = fs::metadata(layout::tag(instance)).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(made.as_millis()).ok().map(Time)
}
