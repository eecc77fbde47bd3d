//! Plugins on the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{page, words};
use crate::clock::Time;
use crate::http::body::Checked;
use crate::model::plugin;
use crate::model::secret::Reference;
use crate::ops::plugins::NewPlugin;

/// A secret, by name.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretName {
    /// The secret's name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub name: String,
    /// Which version; the latest when absent.
    #[schema(minimum = 1)]
    pub version: Option<i64>,
}

/// Stands for a secret's value.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// Which one.
    pub secret_ref: SecretName,
}

/// Registers a plugin's worker.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginRegister {
    /// Unique in the organization; environments name it.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub name: String,
    /// Where its worker is: https, or http on the server's own machine.
    #[schema(min_length = 1, max_length = 2000)]
    pub url: String,
    /// What the worker is shown as bearer token.
    pub token: Option<SecretRef>,
    /// Refuse the worker unless it refuses lower generations by itself; false when absent.
    pub fencing: Option<bool>,
}

impl Checked for PluginRegister {}

impl PluginRegister {
    /// What the verb is asked.
    pub fn input(self) -> NewPlugin {
        let token = self.token.map(|token| Reference { name: token.secret_ref.name, version: token.secret_ref.version });
        NewPlugin { name: self.name, url: self.url, token, fencing: self.fencing.unwrap_or(false) }
    }
}

/// A registered plugin, as its worker said last of itself.
#[derive(Debug, Serialize, ToSchema)]
pub struct Plugin {
    /// The plugin's id.
    pub id: Uuid,
    /// Environments name it.
    pub name: String,
    /// Where its worker is.
    pub url: String,
    /// The secret that the worker is shown.
    pub token: Option<SecretRef>,
    /// Whether the worker refuses lower generations by itself.
    pub fencing: bool,
    /// Which of its lives was heard last.
    pub generation: String,
    /// The optional methods of that life.
    pub methods: Vec<String>,
    /// The parts of its manifest that matter, as it sent them.
    #[schema(value_type = words::PluginManifest)]
    pub manifest: Value,
    /// When it was registered.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When a new life was heard last.
    #[schema(value_type = words::Timestamp)]
    pub updated_at: Time,
}

impl Plugin {
    /// The plugin as its reader sees it.
    pub fn of(row: &plugin::Plugin) -> Self {
        let said = &row.handshake.0;
        let methods = said["methods"].as_array().into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned));
        let token = row.token().map(|token| SecretRef { secret_ref: SecretName { name: token.name, version: token.version } });
        Self {
            id: row.id,
            name: row.name.clone(),
            url: row.url.clone(),
            token,
            fencing: said["fencing"] == true,
            generation: said["generation"].as_str().unwrap_or_default().to_owned(),
            methods: methods.collect(),
            manifest: said["manifest"].clone(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

page!(
    /// A page of plugins, newest first.
    PluginPage,
    Plugin,
    plugin::Plugin
);
