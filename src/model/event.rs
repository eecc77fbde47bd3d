//! Events tell what happened, in the transaction in which it happened.

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::clock::Time;

/// Who caused something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// An API key.
    Key {
        /// The key's id.
        id: Uuid,
        /// The key's name.
        name: String,
    },
    /// A lease token.
    Token {
        /// The lease's id.
        lease: Uuid,
    },
    /// Berth itself: the reaper, the driver, the cleaner.
    System {
        /// Which task.
        task: &'static str,
    },
}

impl Actor {
    /// `key`, `lease_token` or `system`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Key { .. } => "api_key",
            Self::Token { .. } => "lease_token",
            Self::System { .. } => "system",
        }
    }

    /// The id, where there is one.
    pub fn id(&self) -> Option<Uuid> {
        match self {
            Self::Key { id, .. } => Some(*id),
            Self::Token { lease } => Some(*lease),
            Self::System { .. } => None,
        }
    }

    /// The name, where there is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Key { name, .. } => Some(name),
            Self::Token { .. } => None,
            Self::System { task } => Some(task),
        }
    }
}

/// An event as stored and shown.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §7")]
pub struct Event {
    pub id: Uuid,
    pub seq: i64,
    #[sqlx(rename = "type")]
    pub type_: String,
    pub time: Time,
    pub subject_kind: String,
    pub subject_id: Uuid,
    pub generation: Option<i64>,
    pub actor_kind: String,
    pub actor_id: Option<Uuid>,
    pub actor_name: Option<String>,
    pub data: Json<Value>,
}
