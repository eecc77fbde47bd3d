//! The parts of the Engine API's answers that are read.

use std::collections::HashMap;

use serde::Deserialize;

/// `GET /version`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Version {
    #[serde(rename = "ApiVersion")]
    pub(super) newest_api: String,
    #[serde(rename = "MinAPIVersion")]
    pub(super) oldest_api: Option<String>,
    pub(super) arch: String,
    #[serde(default)]
    pub(super) components: Vec<Component>,
}

/// A part of an engine.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Component {
    pub(super) name: String,
}

/// `GET /info`.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    #[serde(rename = "ID")]
    pub(super) id: String,
}

/// A volume.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Volume {
    pub(super) labels: Option<HashMap<String, String>>,
}

/// What was made.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Created {
    pub(super) id: String,
}

/// `GET /containers/{id}/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) name: String,
    /// The id of its image.
    pub(super) image: String,
    pub(super) state: State,
    pub(super) config: ContainerConfig,
    pub(super) host_config: HostConfig,
}

/// A container's state.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    pub(super) status: String,
}

/// A container's configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerConfig {
    pub(super) labels: Option<HashMap<String, String>>,
}

impl Container {
    /// Whether commands can run in it.
    pub(super) fn runs(&self) -> bool {
        self.state.status == "running"
    }
}

/// What the engine does around a container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostConfig {
    pub(super) readonly_rootfs: bool,
}

/// One line of `GET /containers/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listing {
    pub(super) id: String,
    pub(super) names: Vec<String>,
    pub(super) labels: Option<HashMap<String, String>>,
    pub(super) created: i64,
}

/// `GET /images/{name}/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Image {
    pub(super) id: String,
    pub(super) architecture: String,
    pub(super) os: String,
    pub(super) config: Option<ImageConfig>,
}

/// One line of `GET /images/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ImageListing {
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) labels: Option<HashMap<String, String>>,
    pub(super) created: i64,
}

/// What an image says about its containers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ImageConfig {
    pub(super) user: Option<String>,
    pub(super) labels: Option<HashMap<String, String>>,
}

/// `GET /exec/{id}/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExecState {
    pub(super) running: bool,
    pub(super) exit_code: Option<i32>,
}

/// The header `X-Docker-Container-Path-Stat`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PathStat {
    pub(super) size: i64,
    /// Go's `os.FileMode`.
    pub(super) mode: u32,
    pub(super) mtime: String,
    /// Where a symbolic link leads in the end, absolute.
    pub(super) link_target: String,
}

/// One line of a pull's progress.
#[derive(Debug, Deserialize)]
pub(super) struct PullLine {
    pub(super) error: Option<String>,
}
