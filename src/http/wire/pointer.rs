//! What moves a sandbox's pointer, and archives, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::asked::waiting;
use super::checkpoint::{Checkpoint, CheckpointTree};
use super::words;
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::http::extract::Fence;
use crate::model::checkpoint::Kind;
use crate::ops::input::{Record, Restore, Rollback, Unsaved};
use crate::ops::upload::Uploaded;

/// Records a checkpoint that was made elsewhere.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRecord {
    /// The incarnation this is meant for.
    #[schema(minimum = 1)]
    pub generation: i64,
    /// What it is made of.
    #[schema(value_type = words::RecordedKind)]
    pub kind: Kind,
    /// `wa1:` for a portable one, `wa2:` for a native one, then 13 digits of milliseconds and 64 hex digits.
    #[schema(min_length = 1, max_length = 256)]
    pub workspace_revision: String,
    /// The provider's name of a native one.
    #[schema(min_length = 1, max_length = 1024)]
    pub provider_ref: Option<String>,
    /// The turn of the run it belongs to, to find it by.
    #[schema(min_length = 1, max_length = 200)]
    pub source_turn_id: Option<String>,
    /// The tool call it belongs to, to find it by.
    #[schema(min_length = 1, max_length = 200)]
    pub source_tool_call_id: Option<String>,
    /// The live writer's lease, when there is one.
    pub lease_id: Option<Uuid>,
}

impl Checked for CheckpointRecord {}

impl From<CheckpointRecord> for Record {
    fn from(r: CheckpointRecord) -> Self {
        Self {
            generation: r.generation,
            kind: r.kind,
            workspace_revision: r.workspace_revision,
            provider_ref: r.provider_ref,
            source_turn_id: r.source_turn_id,
            source_tool_call_id: r.source_tool_call_id,
            lease_id: r.lease_id,
        }
    }
}

/// Rejects a checkpoint.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxRollback {
    /// The incarnation this is meant for.
    #[schema(minimum = 1)]
    pub generation: i64,
    /// The *rejected* checkpoint.
    pub checkpoint_id: Uuid,
    /// The live writer's lease, when there is one.
    pub lease_id: Option<Uuid>,
}

impl Checked for SandboxRollback {}

impl From<SandboxRollback> for Rollback {
    fn from(r: SandboxRollback) -> Self {
        Self { generation: r.generation, checkpoint_id: r.checkpoint_id, lease_id: r.lease_id }
    }
}

/// Where the pointer is after a rollback.
#[derive(Debug, Serialize, ToSchema)]
pub struct RolledBack {
    /// The current checkpoint now; null when there is none left.
    pub current: Option<Checkpoint>,
    /// Whether this call moved the pointer; false when it named another checkpoint already.
    pub moved: bool,
}

/// Takes revisions that nobody points at.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxCollect {
    /// Only what was made, or detached, before this moment.
    #[schema(value_type = words::Timestamp)]
    pub before: Time,
    /// At most this many, clamped to 0..1000; 0 or less takes nothing.
    pub limit: i64,
}

impl Checked for SandboxCollect {}

/// What was collected.
#[derive(Debug, Serialize, ToSchema)]
pub struct Collected {
    /// The revisions that were taken, oldest first.
    pub collected: Vec<String>,
}

/// Puts a live lease's workspace back to a checkpoint.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRestore {
    /// A checkpoint of this lease's sandbox.
    pub checkpoint_id: Uuid,
    /// What to do with unsaved work; `fail` when absent.
    #[schema(value_type = Option<words::UnsavedChanges>)]
    pub unsaved_changes: Option<String>,
    /// How long to wait for running operations, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl Checked for LeaseRestore {
    fn check(&self, errors: &mut Vec<FieldError>) {
        if self.unsaved_changes.as_deref().is_some_and(|word| !["fail", "capture", "discard"].contains(&word)) {
            errors.push(FieldError { pointer: "/unsaved_changes".to_owned(), message: "must be fail, capture or discard".to_owned() });
        }
    }
}

impl LeaseRestore {
    /// What the verb is asked.
    pub fn input(&self, fence: Fence, respond_async: bool) -> Restore {
        let unsaved_changes = match self.unsaved_changes.as_deref() {
            Some("capture") => Unsaved::Capture,
            Some("discard") => Unsaved::Discard,
            _ => Unsaved::Fail,
        };
        Restore {
            carried: fence.carried(),
            checkpoint_id: self.checkpoint_id,
            unsaved_changes,
            waiting: waiting(self.wait_seconds, respond_async),
        }
    }
}

/// An archive that is stored, and goes after 24 hours unless it is recorded.
#[derive(Debug, Serialize, ToSchema)]
pub struct Archive {
    /// What to record it as.
    pub workspace_revision: String,
    /// SHA-256 of the stored bytes, lower-case hex.
    pub archive_sha256: String,
    /// Size of the stored bytes.
    pub size_bytes: i64,
    /// What it contains; null for the receipt of a native snapshot, of which nothing is known.
    pub tree: Option<CheckpointTree>,
}

impl From<Uploaded> for Archive {
    fn from(u: Uploaded) -> Self {
        let tree = u.tree.map(|tree| CheckpointTree {
            algorithm: tree.algorithm,
            digest: tree.digest,
            entries: tree.entries,
            files: tree.files,
            bytes: tree.bytes,
        });
        Self { workspace_revision: u.workspace_revision, archive_sha256: u.archive_sha256, size_bytes: u.size_bytes, tree }
    }
}
