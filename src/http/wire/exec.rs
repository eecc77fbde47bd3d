//! Commands on the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{page, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::http::extract::Fence;
use crate::model::operation::{Output, Status};
use crate::ops::input;
use crate::ops::view::ExecView;

/// The most bytes of a command with its arguments, or of a script.
const LONGEST_COMMAND: usize = 128 * 1024;
/// The most bytes kept of each stream, and the default.
const MOST_OUTPUT: usize = 1024 * 1024;
/// How long a command may run that does not say.
const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// Runs a command: either `command` with `args`, without a shell, or a `script` for `/bin/sh -c`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRun {
    /// The program: a path, or a name to look up in `PATH`.
    #[schema(min_length = 1, max_length = 131_072)]
    pub command: Option<String>,
    /// Its arguments, passed as they are.
    #[schema(max_items = 10_000)]
    pub args: Option<Vec<String>>,
    /// A script for `/bin/sh -c`, instead of `command`.
    #[schema(min_length = 1, max_length = 131_072)]
    pub script: Option<String>,
    /// Working directory, relative to the workspace or absolute inside the sandbox; the workspace when absent.
    #[schema(min_length = 1, max_length = 4096)]
    pub cwd: Option<String>,
    /// Added to the sandbox's own environment.
    #[schema(value_type = Option<words::EnvironmentVariables>)]
    pub env: Option<BTreeMap<String, String>>,
    /// The user to run as, where the provider can choose.
    #[schema(min_length = 1, max_length = 200)]
    pub user: Option<String>,
    /// Standard input; empty when absent.
    pub stdin: Option<String>,
    /// How `stdin` is written; `utf-8` when absent.
    #[schema(value_type = Option<words::StdinEncoding>)]
    pub stdin_encoding: Option<String>,
    /// Killed with its whole tree after this many milliseconds; 60000 when absent.
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub timeout_ms: Option<u64>,
    /// How much of each stream is kept, its first and last half; 1 MiB when absent.
    #[schema(minimum = 0, maximum = 1_048_576)]
    pub max_output_bytes: Option<usize>,
    /// `auto` when absent.
    #[schema(value_type = Option<words::OutputEncoding>)]
    pub output_encoding: Option<String>,
    /// `kill` when absent.
    #[schema(value_type = Option<words::OnDisconnect>)]
    pub on_disconnect: Option<String>,
    /// With `on_disconnect: keep`, how long to wait for the end before answering 202.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl ExecRun {
    fn argv(&self) -> Vec<String> {
        match (&self.script, &self.command) {
            (Some(script), _) => vec!["/bin/sh".to_owned(), "-c".to_owned(), script.clone()],
            (None, Some(command)) => std::iter::once(command).chain(self.args.iter().flatten()).cloned().collect(),
            (None, None) => Vec::new(),
        }
    }

    fn stdin_bytes(&self) -> Option<Vec<u8>> {
        let sent = self.stdin.as_deref().unwrap_or_default();
        match self.stdin_encoding.as_deref() {
            Some("base64") => STANDARD.decode(sent).ok(),
            _ => Some(sent.as_bytes().to_vec()),
        }
    }

    /// What the verb is asked; the body was checked before.
    pub fn input(self, fence: Fence) -> input::Exec {
        input::Exec {
            carried: fence.carried(),
            argv: self.argv(),
            stdin: self.stdin_bytes().unwrap_or_default(),
            cwd: self.cwd,
            env: self.env.unwrap_or_default(),
            user: self.user,
            timeout: Duration::from_millis(self.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS)),
            max_output_bytes: self.max_output_bytes.unwrap_or(MOST_OUTPUT),
            base64: self.output_encoding.as_deref() == Some("base64"),
            keep_on_disconnect: self.on_disconnect.as_deref() == Some("keep"),
            wait: self.wait_seconds.map(Duration::from_secs),
        }
    }
}

impl Checked for ExecRun {
    fn check(&self, errors: &mut Vec<FieldError>) {
        let mut say = |pointer: &str, message: &str| errors.push(FieldError { pointer: pointer.to_owned(), message: message.to_owned() });
        match (&self.command, &self.script) {
            (Some(_), Some(_)) => say("/script", "cannot be sent together with `command`"),
            (None, None) => say("/command", "is required, unless there is a `script`"),
            _ => {}
        }
        if self.script.is_some() && self.args.is_some() {
            say("/args", "cannot be sent together with `script`");
        }
        let argv = self.argv();
        if argv.iter().map(String::len).sum::<usize>() > LONGEST_COMMAND {
            say(if self.script.is_some() { "/script" } else { "/command" }, "has more than 128 KiB with its arguments");
        }
        if argv.iter().any(|argument| argument.contains('\0')) {
            say(if self.script.is_some() { "/script" } else { "/args" }, "must not contain NUL");
        }
        if self.env.iter().flatten().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')) {
            say("/env", "names must not be empty or contain `=`, and nothing may contain NUL");
        }
        for (pointer, text) in [("/cwd", &self.cwd), ("/user", &self.user)] {
            if text.as_ref().is_some_and(|text| text.contains('\0')) {
                say(pointer, "must not contain NUL");
            }
        }
        if self.stdin_bytes().is_none() {
            say("/stdin", "must be base64, as `stdin_encoding` says");
        }
    }
}

/// A command and what became of it. A non-zero exit is an ordinary answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct Exec {
    /// The exec's id.
    pub id: Uuid,
    /// Where it stands.
    #[schema(value_type = words::ExecStatus)]
    pub status: Status,
    /// Its exit code; 127 means that there is no such program.
    pub exit_code: Option<i64>,
    /// The signal that ended it.
    pub signal: Option<i64>,
    /// Whether its whole process tree was found and is dead.
    pub process_tree_killed: bool,
    /// What is kept of standard output: its first and its last half.
    pub stdout: String,
    /// How `stdout` is written.
    #[schema(value_type = words::Encoding)]
    pub stdout_encoding: &'static str,
    /// How many bytes were written in all.
    pub stdout_bytes: i64,
    /// Whether bytes in the middle were dropped.
    pub stdout_truncated: bool,
    /// What is kept of standard error: its first and its last half.
    pub stderr: String,
    /// How `stderr` is written.
    #[schema(value_type = words::Encoding)]
    pub stderr_encoding: &'static str,
    /// How many bytes were written in all.
    pub stderr_bytes: i64,
    /// Whether bytes in the middle were dropped.
    pub stderr_truncated: bool,
    /// How long it took, or has been running.
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

/// Bytes are never mangled: text where they are UTF-8, base64 where they are not or where it was asked for.
fn written(output: &Output, base64: bool) -> (String, &'static str) {
    match std::str::from_utf8(&output.kept) {
        Ok(text) if !base64 => (text.to_owned(), "utf-8"),
        _ => (STANDARD.encode(&output.kept), "base64"),
    }
}

impl Exec {
    /// The command as its reader sees it.
    pub fn of(view: &ExecView) -> Self {
        let row = &view.operation;
        let (stdout, stdout_encoding) = written(&view.stdout, view.base64);
        let (stderr, stderr_encoding) = written(&view.stderr, view.base64);
        let took = row.ended_at.unwrap_or(view.server_time).since(row.started_at);
        Self {
            id: row.id,
            status: row.status,
            exit_code: row.exit_code,
            signal: row.signal,
            process_tree_killed: row.process_tree_killed,
            stdout,
            stdout_encoding,
            stdout_bytes: view.stdout.total,
            stdout_truncated: view.stdout.is_truncated(),
            stderr,
            stderr_encoding,
            stderr_bytes: view.stderr.total,
            stderr_truncated: view.stderr.is_truncated(),
            duration_ms: i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
            workspace_seq: row.workspace_seq,
            generation: row.generation,
            lease_expires_at: row.lease_expires_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
        }
    }
}

page!(
    /// A page of execs, newest first.
    ExecPage,
    Exec,
    ExecView
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_whatever_they_are() {
        let output = |bytes: &[u8]| Output { kept: bytes.to_vec(), total: 4 };
        assert_eq!(written(&output(b"caf\xc3\xa9"), false), ("café".to_owned(), "utf-8"));
        assert_eq!(written(&output(b"\xff\xfe"), false), ("//4=".to_owned(), "base64"));
        assert_eq!(written(&output(b"ok"), true), ("b2s=".to_owned(), "base64"));
    }
}
