//! What a streamed command tells, line by line.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{problem, words};
use crate::clock::Time;
use crate::model::operation::Status;
use crate::ops::view::ExecView;

/// How a command ended; what it wrote was told before, and is kept as `GET …/execs/{exec_id}` shows it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecEnd {
    /// The exec's id.
    pub id: Uuid,
    /// In one word.
    #[schema(value_type = words::ExecStatus)]
    pub status: Status,
    /// Its exit code; 127 means that there is no such program.
    pub exit_code: Option<i64>,
    /// The signal that ended it.
    pub signal: Option<i64>,
    /// Whether its whole process tree was found and is dead.
    pub process_tree_killed: bool,
    /// How many bytes of standard output were written in all.
    pub stdout_bytes: i64,
    /// How many bytes of standard error were written in all.
    pub stderr_bytes: i64,
    /// How long it took.
    pub duration_ms: i64,
    /// The sandbox's count of writes with this one.
    pub workspace_seq: i64,
    /// The incarnation it ran in.
    pub generation: i64,
    /// When the lease expires; an exec does not extend it.
    #[schema(value_type = Option<words::Timestamp>)]
    pub lease_expires_at: Option<Time>,
    /// When it was admitted.
    #[schema(value_type = words::Timestamp)]
    pub started_at: Time,
    /// When it ended.
    #[schema(value_type = Option<words::Timestamp>)]
    pub ended_at: Option<Time>,
}

impl ExecEnd {
    /// The end of a command.
    pub fn of(view: &ExecView) -> Self {
        let row = &view.operation;
        let took = row.ended_at.unwrap_or(view.server_time).since(row.started_at);
        Self {
            id: row.id,
            status: row.status,
            exit_code: row.exit_code,
            signal: row.signal,
            process_tree_killed: row.process_tree_killed,
            stdout_bytes: view.stdout.total,
            stderr_bytes: view.stderr.total,
            duration_ms: i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
            workspace_seq: row.workspace_seq,
            generation: row.generation,
            lease_expires_at: row.lease_expires_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
        }
    }
}

/// One line of a streamed command. A stream without `exit` or `error` proves nothing.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ExecStreamEvent {
    /// What it tells.
    #[serde(rename = "type")]
    #[schema(value_type = words::ExecStreamEventType)]
    pub type_: &'static str,
    /// The exec's id, with `start`.
    pub id: Option<Uuid>,
    /// The place of this output among all output, from 1; with `stdout` and `stderr`.
    pub seq: Option<i64>,
    /// What was written; with `stdout` and `stderr`.
    pub data: Option<String>,
    /// How `data` is written.
    #[schema(value_type = Option<words::Encoding>)]
    pub encoding: Option<&'static str>,
    /// How it ended; with `exit`.
    pub exec: Option<ExecEnd>,
    /// What went wrong; with `error`.
    #[schema(value_type = Option<problem::Problem>)]
    pub problem: Option<Value>,
}

impl ExecStreamEvent {
    /// The command runs.
    pub fn start(id: Uuid) -> Self {
        Self { type_: "start", id: Some(id), ..Self::default() }
    }

    /// It wrote something: text where the bytes are UTF-8 and base64 was not asked for.
    pub fn wrote(stream: &'static str, seq: i64, bytes: &[u8], base64: bool) -> Self {
        let (data, encoding) = match std::str::from_utf8(bytes) {
            Ok(text) if !base64 => (text.to_owned(), "utf-8"),
            _ => (STANDARD.encode(bytes), "base64"),
        };
        Self { type_: stream, seq: Some(seq), data: Some(data), encoding: Some(encoding), ..Self::default() }
    }

    /// It is over.
    pub fn exit(view: &ExecView) -> Self {
        Self { type_: "exit", exec: Some(ExecEnd::of(view)), ..Self::default() }
    }

    /// Its end is not known, or it could not be run.
    pub fn error(problem: Value) -> Self {
        Self { type_: "error", problem: Some(problem), ..Self::default() }
    }

    /// Nothing happened for a while.
    pub fn heartbeat() -> Self {
        Self { type_: "heartbeat", ..Self::default() }
    }
}
