//! An environment is a named, versioned provider configuration with the defaults of its leases.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::lease::{Policy, Save};
use super::sandbox::Sandbox;
use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// What an idle instance becomes.
    pub enum OnIdle {
        /// Stopped and kept.
        Stop => "stop",
        /// Captured if dirty, then torn down.
        Destroy => "destroy",
    }
}

/// When and how checkpoints are taken and kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// At a release that names none; `auto` for scoped leases, `none` for anonymous ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_release: Option<Save>,
    /// At an expiry; the same defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<Save>,
    /// How many revisions are kept, at least 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<i64>,
    /// A revision younger than this is never collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_for_seconds: Option<i64>,
    /// Replacement and destroy need a verified portable checkpoint that is not behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// Paths left out of captures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<Vec<String>>,
}

/// An environment as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §3")]
pub struct Environment {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub name: String,
    pub provider: String,
    pub config: Json<Value>,
    pub policy: Option<Policy>,
    pub ttl_ms: i64,
    pub max_ttl_ms: i64,
    pub idle_timeout_ms: i64,
    pub on_idle: OnIdle,
    pub retain_ms: i64,
    pub checkpoint_policy: Json<CheckpointPolicy>,
    pub workspace_path: Option<String>,
    pub max_live_instances: Option<i64>,
    pub metadata: Json<Value>,
    pub version: i64,
    pub archived_at: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Environment {
    /// Whether what a sandbox holds must be in a verified portable checkpoint before its instance is replaced or destroyed. Anonymous
    /// sandboxes are exempt: nobody could ask for the work back.
    pub fn requires_checkpoint_of(&self, sandbox: &Sandbox) -> bool {
        self.checkpoint_policy.required == Some(true) && !sandbox.is_anonymous()
    }

    /// How the workspace is saved when a lease ends and its caller said nothing. Where checkpoints are required, a policy is no
    /// consent to go without one.
    pub fn save_at_end(&self, expired: bool, anonymous: bool) -> Save {
        let configured = if expired { self.checkpoint_policy.on_expiry } else { self.checkpoint_policy.on_release };
        match configured.unwrap_or(if anonymous { Save::None } else { Save::Auto }) {
            Save::None if !anonymous && self.checkpoint_policy.required == Some(true) => Save::Auto,
            save => save,
        }
    }
}
