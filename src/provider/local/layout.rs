//! Where things lie on disk, and the small files that say what an instance is and may do.
//!
//! `<root>/binding` names this place. `<root>/instances/<id>/` is an instance from the moment of its rename into there to
//! the moment of its rename into `<root>/trash/`; half-made ones lie in `<root>/making/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::durable;

/// What an instance may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Commands may start.
    Running,
    /// No command may start; those that run are being ended.
    Stopping,
    /// Nothing runs.
    Stopped,
}

/// The files of commands.
pub(super) fn workspace(instance: &Path) -> PathBuf {
    instance.join("workspace")
}

/// The commands' directory for temporary files; never captured.
pub(super) fn temporary(instance: &Path) -> PathBuf {
    instance.join("tmp")
}

/// The registrations of running commands.
pub(super) fn run(instance: &Path) -> PathBuf {
    instance.join("run")
}

/// Where files and trees are made before they are renamed into the workspace; on the same file system.
pub(super) fn staging(instance: &Path) -> PathBuf {
    instance.join("staging")
}

/// The owner tag.
pub(super) fn tag(instance: &Path) -> PathBuf {
    instance.join("tag.json")
}

/// What the configuration adds to the environment of commands.
pub(super) fn environment(instance: &Path) -> PathBuf {
    instance.join("env.json")
}

/// The lowest grant whose commands may run.
pub(super) fn fence(instance: &Path) -> io::Result<i64> {
    fs::read_to_string(instance.join("fence"))?.trim().parse().map_err(io::Error::other)
}

/// What the instance may do.
pub(super) fn state(instance: &Path) -> io::Result<State> {
    Ok(serde_json::from_slice(&fs::read(instance.join("state"))?)?)
}

/// Writes the first fence.
pub(super) fn write_fence(instance: &Path, grant_seq: i64) -> io::Result<()> {
    durable::replace(&instance.join("fence"), grant_seq.to_string().as_bytes())
}

/// Changes what the instance may do.
pub(super) fn write_state(instance: &Path, state: State) -> io::Result<()> {
    durable::replace(&instance.join("state"), &serde_json::to_vec(&state)?)
}
