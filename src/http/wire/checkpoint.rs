//! Checkpoints on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{page, words};
use crate::clock::Time;
use crate::http::body::Checked;
use crate::http::extract::Fence;
use crate::http::wire::asked::waiting;
use crate::model::checkpoint::{self, Kind, Status};
use crate::ops::input::{Attach, Capture};

/// Captures the workspace of a lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointCapture {
    /// `auto` when absent.
    #[schema(value_type = Option<words::CaptureKind>)]
    pub kind: Option<String>,
    /// Make it the current one; true when absent.
    pub attach: Option<bool>,
    /// The turn of the run it belongs to, to find it by.
    #[schema(min_length = 1, max_length = 200)]
    pub source_turn_id: Option<String>,
    /// The tool call it belongs to, to find it by.
    #[schema(min_length = 1, max_length = 200)]
    pub source_tool_call_id: Option<String>,
    /// How long to wait for running operations, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl Checked for CheckpointCapture {}

impl CheckpointCapture {
    /// What the verb is asked; `auto` is no kind of its own.
    pub fn input(self, fence: Fence, respond_async: bool) -> Capture {
        Capture {
            carried: fence.carried(),
            kind: self.kind.as_deref().and_then(Kind::parse),
            attach: self.attach.unwrap_or(true),
            source_turn_id: self.source_turn_id,
            source_tool_call_id: self.source_tool_call_id,
            waiting: waiting(self.wait_seconds, respond_async),
        }
    }
}

/// Makes a checkpoint the current one of its sandbox.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointAttach {
    /// The incarnation this is meant for.
    #[schema(minimum = 1)]
    pub generation: i64,
    /// Go back to it although a later one is current.
    pub move_back: Option<bool>,
    /// The live writer's lease, when there is one.
    pub lease_id: Option<Uuid>,
}

impl Checked for CheckpointAttach {}

impl CheckpointAttach {
    /// What the verb is asked.
    pub fn input(self) -> Attach {
        Attach { generation: self.generation, move_back: self.move_back.unwrap_or(false), lease_id: self.lease_id }
    }
}

/// Something a reader of a checkpoint should know.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckpointWarning {
    /// Which.
    pub code: String,
    /// How often.
    pub count: i64,
    /// The first place, if there is one.
    pub path: Option<String>,
}

/// What a portable archive contains.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckpointTree {
    /// How the digest is computed.
    pub algorithm: String,
    /// Lower-case hex.
    pub digest: String,
    /// Entries, the root not counted.
    pub entries: i64,
    /// Regular files.
    pub files: i64,
    /// Bytes of file content.
    pub bytes: i64,
}

/// One revision of a workspace.
#[derive(Debug, Serialize, ToSchema)]
pub struct Checkpoint {
    /// The checkpoint's id.
    pub id: Uuid,
    /// The logical sandbox.
    pub sandbox_id: Uuid,
    /// The incarnation it was taken from.
    pub generation: i64,
    /// The sandbox's count of writes that it contains; null for one made elsewhere.
    pub workspace_seq: Option<i64>,
    /// What it is made of.
    #[schema(value_type = words::CheckpointKind)]
    pub kind: Kind,
    /// Where it stands.
    #[schema(value_type = words::CheckpointStatus)]
    pub status: Status,
    /// The turn of the run it belongs to.
    pub source_turn_id: Option<String>,
    /// The tool call it belongs to.
    pub source_tool_call_id: Option<String>,
    /// The provider's name of a native one.
    pub provider_ref: Option<String>,
    /// Its revision; null while it is being captured.
    pub workspace_revision: Option<String>,
    /// Bytes as stored.
    pub size_bytes: Option<i64>,
    /// SHA-256 of the bytes as stored, lower-case hex.
    pub archive_sha256: Option<String>,
    /// What a portable one contains.
    pub tree: Option<CheckpointTree>,
    /// The checkpoint a fork began from.
    pub parent_id: Option<Uuid>,
    /// Whether anything could have written while the bytes were taken.
    #[schema(value_type = Option<words::Consistency>)]
    pub consistency: Option<checkpoint::Consistency>,
    /// What a reader should know.
    pub warnings: Vec<CheckpointWarning>,
    /// Why the capture failed.
    pub failure_code: Option<String>,
    /// When the pointer last moved to it.
    #[schema(value_type = Option<words::Timestamp>)]
    pub attached_at: Option<Time>,
    /// When it was rejected or fell out of retention.
    #[schema(value_type = Option<words::Timestamp>)]
    pub detached_at: Option<Time>,
    /// Whether it is what the sandbox would be restored from now.
    pub current: bool,
    /// The later one that was published before it.
    pub superseded_by: Option<Uuid>,
    /// When its provider will drop it, if that is known.
    #[schema(value_type = Option<words::Timestamp>)]
    pub expires_at: Option<Time>,
    /// When its row was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
}

impl Checkpoint {
    /// The checkpoint as its reader sees it.
    pub fn of(row: &checkpoint::Checkpoint) -> Self {
        Self {
            id: row.id,
            sandbox_id: row.sandbox_id,
            generation: row.generation,
            workspace_seq: row.workspace_seq,
            kind: row.kind,
            status: row.status,
            source_turn_id: row.source_turn_id.clone(),
            source_tool_call_id: row.source_tool_call_id.clone(),
            provider_ref: row.provider_ref.clone(),
            workspace_revision: row.workspace_revision.clone(),
            size_bytes: row.size_bytes,
            archive_sha256: row.archive_sha256.clone(),
            tree: row.tree.as_ref().map(|tree| CheckpointTree {
                algorithm: tree.algorithm.clone(),
                digest: tree.digest.clone(),
                entries: tree.entries,
                files: tree.files,
                bytes: tree.bytes,
            }),
            parent_id: row.parent_id,
            consistency: row.consistency,
            warnings: row
                .warnings
                .iter()
                .map(|w| CheckpointWarning { code: w.code.clone(), count: w.count, path: w.path.clone() })
                .collect(),
            failure_code: row.failure_code.clone(),
            attached_at: row.attached_at,
            detached_at: row.detached_at,
            current: row.current,
            superseded_by: row.superseded_by,
            expires_at: row.expires_at,
            created_at: row.created_at,
        }
    }
}

page!(
    /// A page of checkpoints, newest first.
    CheckpointPage,
    Checkpoint,
    checkpoint::Checkpoint
);
