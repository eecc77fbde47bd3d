//! What verbs are asked for, after the wire form was checked and before any rule was applied.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use crate::clock::Time;
use crate::model::checkpoint::Kind;
use crate::model::environment::{CheckpointPolicy, OnIdle};
use crate::model::lease::{Access, Disposition, OnSameHolder, OnUnavailable, Outcome, Policy, Save};
use crate::model::scope::Scope;

/// How long a request waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// For others: a holder, a drain, a capture. 0 to 300 s.
    pub others: Duration,
    /// `Prefer: respond-async`: do not wait for provider work either.
    pub respond_async: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { others: Duration::from_secs(30), respond_async: false }
    }
}

/// `POST /v1/leases`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4")]
pub struct Acquire {
    pub environment: String,
    pub holder: String,
    pub scope: Option<Scope>,
    pub access: Access,
    pub ttl_seconds: Option<i64>,
    pub policy: Option<Policy>,
    pub harness: Option<String>,
    pub on_same_holder: OnSameHolder,
    pub requested_expires_at: Option<Time>,
    pub require_provider_expiry: bool,
    pub restore_checkpoint_id: Option<Uuid>,
    pub on_unavailable: Option<OnUnavailable>,
    pub discard_workspace: bool,
    pub metadata: Value,
    pub waiting: Waiting,
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4")]
pub struct Renew {
    pub ttl_seconds: Option<i64>,
    pub exact: bool,
}

/// `POST /v1/leases/{id}/release`.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4")]
pub struct ReleaseRequest {
    pub outcome: Option<Outcome>,
    pub disposition: Option<Disposition>,
    pub checkpoint: Option<Save>,
    pub discard_workspace: bool,
    pub cancel_active_work: bool,
    pub reason: Option<String>,
    pub waiting: Waiting,
}

pub use crate::store::Carried;

/// `POST …/recover`.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4")]
pub struct Recover {
    pub carried: Carried,
    pub restore_checkpoint_id: Option<Uuid>,
    pub on_unavailable: Option<OnUnavailable>,
    pub waiting: Waiting,
}

/// `POST …/exec`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §6")]
pub struct Exec {
    pub carried: Carried,
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub stdin: Vec<u8>,
    pub timeout: Duration,
    pub max_output_bytes: usize,
    pub base64: bool,
    pub keep_on_disconnect: bool,
    /// How long an answer may wait for the command's end before a `keep` becomes 202.
    pub wait: Option<Duration>,
}

/// `POST …/checkpoints` of a lease.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5")]
pub struct Capture {
    pub carried: Carried,
    /// `None` is `auto`.
    pub kind: Option<Kind>,
    pub attach: bool,
    pub source_turn_id: Option<String>,
    pub source_tool_call_id: Option<String>,
    pub waiting: Waiting,
}

/// `POST …/{checkpoint_id}/attach`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5")]
pub struct Attach {
    pub generation: i64,
    pub move_back: bool,
    pub lease_id: Option<Uuid>,
}

/// `POST …/rollback`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5")]
pub struct Rollback {
    pub generation: i64,
    pub checkpoint_id: Uuid,
    pub lease_id: Option<Uuid>,
}

/// `POST …/checkpoints` of a sandbox.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5")]
pub struct Record {
    pub generation: i64,
    pub kind: Kind,
    pub workspace_revision: String,
    pub provider_ref: Option<String>,
    pub source_turn_id: Option<String>,
    pub source_tool_call_id: Option<String>,
    pub lease_id: Option<Uuid>,
}

/// What a restore does with unsaved work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsaved {
    /// Refuses.
    #[default]
    Fail,
    /// Saves it first.
    Capture,
    /// Loses it.
    Discard,
}

/// `POST …/restore`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4")]
pub struct Restore {
    pub carried: Carried,
    pub checkpoint_id: Uuid,
    pub unsaved_changes: Unsaved,
    pub waiting: Waiting,
}

/// `POST /v1/environments`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the contract's, api §3")]
pub struct NewEnvironment {
    pub name: String,
    pub provider: String,
    pub config: Value,
    pub policy: Option<Policy>,
    pub ttl_seconds: Option<i64>,
    pub max_ttl_seconds: Option<i64>,
    pub idle_timeout_seconds: Option<i64>,
    pub on_idle: Option<OnIdle>,
    pub retain_seconds: Option<i64>,
    pub checkpoint_policy: CheckpointPolicy,
    pub workspace_path: Option<String>,
    pub max_live_instances: Option<i64>,
    pub metadata: Value,
}

/// `GET` of a list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// 1 to 100.
    pub limit: i64,
    /// Opaque.
    pub cursor: Option<String>,
    /// `status=a,b`.
    pub status: Vec<String>,
    /// Id or name.
    pub environment: Option<String>,
    /// Exact.
    pub holder: Option<String>,
    /// Exact.
    pub sandbox_id: Option<Uuid>,
    /// `scope=key:value`, all must hold.
    pub scope: BTreeMap<String, String>,
    /// `metadata=key:value`, all must hold.
    pub metadata: BTreeMap<String, String>,
    /// `quarantined=true`.
    pub quarantined: Option<bool>,
    /// Exact.
    pub source_turn_id: Option<String>,
    /// Exact.
    pub source_tool_call_id: Option<String>,
}
