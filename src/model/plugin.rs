//! A plugin is a registered worker: an organization's own provider behind a URL.

use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use super::secret::Reference;
use crate::clock::Time;

/// A plugin as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Plugin {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub name: String,
    pub url: String,
    pub token_secret: Option<String>,
    pub token_version: Option<i64>,
    /// What the last life of its worker that was heard said of itself.
    pub handshake: Json<Value>,
    pub deleted_at: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Plugin {
    /// The secret with what its worker is shown, if it is shown anything.
    pub fn token(&self) -> Option<Reference> {
        self.token_secret.clone().map(|name| Reference { name, version: self.token_version })
    }

    /// What a sandbox's fingerprint takes of it: which registration, which plugin, which version.
    pub fn identity(&self) -> Value {
        json!([self.id, self.handshake["manifest"]["id"], self.handshake["manifest"]["version"]])
    }
}
