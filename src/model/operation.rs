//! An operation is one admitted write: an exec, a file write, a sync. It is settled once and never replayed.

use uuid::Uuid;

use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// What kind of write.
    pub enum Kind {
        /// A command.
        Exec => "exec",
        /// A change through the file routes.
        File => "file",
        /// A whole tree laid over the workspace.
        SyncIn => "sync_in",
    }
}

text_enum! {
    /// Where an operation stands; the words are the exec's of the contract.
    pub enum Status {
        /// Admitted; perhaps not sent yet.
        Running => "running",
        /// Over, with an exit code, a signal, or for other kinds a result.
        Exited => "exited",
        /// Killed at its deadline.
        TimedOut => "timed_out",
        /// Killed on request, or by a fence.
        Cancelled => "cancelled",
        /// Its sandbox is gone.
        Lost => "lost",
        /// The answer was lost; it may have happened.
        Unknown => "unknown",
    }
}

/// An operation as stored; output is kept apart.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's Exec, api §6")]
pub struct Operation {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub sandbox_id: Uuid,
    pub instance_id: Uuid,
    pub lease_id: Uuid,
    pub epoch: i64,
    pub generation: i64,
    pub grant_seq: i64,
    pub kind: Kind,
    pub status: Status,
    pub workspace_seq: i64,
    pub exit_code: Option<i64>,
    pub signal: Option<i64>,
    pub process_tree_killed: bool,
    pub lease_expires_at: Option<Time>,
    pub started_at: Time,
    pub ended_at: Option<Time>,
}

/// What is kept of one output stream of an exec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The first and the last half of what was written, up to the limit.
    pub kept: Vec<u8>,
    /// How many bytes were written in all.
    pub total: i64,
}

impl Output {
    /// Whether bytes in the middle were dropped.
    pub fn is_truncated(&self) -> bool {
        i64::try_from(self.kept.len()).unwrap_or(i64::MAX) < self.total
    }
}
