//! Berth's hand in a plugin's sandbox: a shell script that goes in with a command of the plugin's, and what it answers.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Plugin;
use super::client::Answer;
use super::failure::Failure;
use super::lease::with;
use crate::id;
use crate::provider::{Kind, ProviderError, Result};

const SCRIPT: &str = include_str!("hand.sh");
/// Where a sandbox keeps what is Berth's and not the work's. Never by the environment, which a command may bring along.
const TEMPORARY: &str = "/tmp";
/// How long a verb may take at the worker.
const PATIENCE: Duration = Duration::from_secs(50);
/// What is added to the time that a command has, so that the worker tells of a time-out before its answer is called lost.
const MARGIN: Duration = Duration::from_secs(30);
/// The verbs that change nothing, so that a lost answer leaves nothing open.
const LOOKS: [&str; 7] = ["count", "stand", "ours", "list", "stat", "read", "take"];
/// The grant of what is Berth's own, which no fence ends.
const CONTROL: &str = "control";
/// The file in a workspace by which it is known again.
pub(super) const SENTINEL: &str = ".berth-instance";

/// A command for the worker.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) stdin: Option<String>,
    pub(super) timeout: Duration,
}

/// What the worker says of a command that ran; what it leaves out proves nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Executed {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) timed_out: bool,
}

/// What a verb answered.
pub(super) struct Said {
    /// What it wrote before its word.
    pub(super) output: String,
    /// Its last word.
    pub(super) word: String,
}

impl Said {
    /// What it wrote, decoded.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        decode(&self.output)
    }

    /// The number behind `done`.
    pub(super) fn number(&self) -> Option<u64> {
        self.word.strip_prefix("done ")?.parse().ok()
    }
}

/// Text of base64 with lines, decoded.
pub(super) fn decode(text: &str) -> Result<Vec<u8>> {
    let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(compact).map_err(|e| ProviderError::new(Kind::Transient, "the sandbox's answer is garbled").because(e))
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

impl Plugin {
    /// Where the row's files are; nowhere before that was decided.
    pub(super) fn workspace(&self) -> &str {
        self.0.row.workspace.as_deref().unwrap_or("")
    }

    /// What the worker's shell is given: the script, and a verb with its arguments.
    pub(super) fn script(&self, workspace: &str, nonce: &str, id: &str, grant: &str, verb: &str, arguments: &[&str]) -> Vec<String> {
        let instance = self.0.row.instance.to_string();
        let state = format!("{TEMPORARY}/.berth-{instance}");
        let fixed = ["-c", SCRIPT, "berth", &state, &instance, nonce, id, grant, verb, workspace];
        fixed.iter().chain(arguments).map(|one| (*one).to_owned()).collect()
    }

    /// By which a command is found again, in its environment.
    pub(super) fn marker(&self, id: &str, grant: &str) -> (String, String) {
        ("BERTH_EXEC".to_owned(), format!("{}:{id}:{grant}:", self.0.row.instance))
    }

    /// Has the worker run the script, and hands on what it streams of standard output.
    pub(super) async fn execute(
        &self,
        provider_ref: &str,
        command: Command,
        hear: Option<mpsc::Sender<String>>,
    ) -> std::result::Result<Executed, Failure> {
        let env: Map<String, Value> = command.env.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
        let timeout_ms = u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX);
        let ran = json!({
            "lease": self.lease(provider_ref), "command": "/bin/sh", "args": command.args, "env": env, "stdin": command.stdin,
            "timeoutMs": timeout_ms, "bypassSession": true,
        });
        let call = self.asks("environmentExecute", with(self.base(), ran), command.timeout + MARGIN, None)?;
        let answer: Answer<Executed> = match hear {
            Some(hear) => self.0.worker.http.follow(call, &hear).await?,
            None => self.0.worker.http.ask_for(call).await?,
        };
        self.0.worker.heard_from(answer.generation.as_deref()).await;
        Ok(answer.result)
    }

    /// One of Berth's own verbs.
    pub(super) async fn hand(&self, provider_ref: &str, verb: &str, arguments: &[&str], stdin: Option<String>) -> Result<Said> {
        self.hand_at(provider_ref, CONTROL, self.workspace(), verb, arguments, stdin).await
    }

    /// A verb that changes files: marked, fenced and ended like a command of the grant that it was admitted under.
    pub(super) async fn change(&self, provider_ref: &str, grant_seq: i64, verb: &str, arguments: &[&str]) -> Result<Said> {
        self.hand_at(provider_ref, &grant_seq.to_string(), self.workspace(), verb, arguments, None).await
    }

    async fn hand_at(
        &self,
        provider_ref: &str,
        grant: &str,
        workspace: &str,
        verb: &str,
        arguments: &[&str],
        stdin: Option<String>,
    ) -> Result<Said> {
        let (nonce, id) = (id::new().simple().to_string(), id::new().to_string());
        let args = self.script(workspace, &nonce, &id, grant, verb, arguments);
        let command = Command { args, env: vec![self.marker(&id, grant)], stdin, timeout: PATIENCE };
        let executed = self.execute(provider_ref, command, None).await.map_err(ProviderError::from);
        let executed = executed.map_err(|error| match error.kind {
            Kind::Indeterminate if LOOKS.contains(&verb) => ProviderError::new(Kind::Transient, error.message).because(error),
            _ => error,
        })?;
        let silent = || ProviderError::new(Kind::Transient, "the sandbox did not answer as its shell should");
        let (output, word) = last_line(&executed.stdout, &nonce).ok_or_else(silent)?;
        let said = Said { output: output.to_owned(), word: word.to_owned() };
        match said.word.as_str() {
            "fenced" => Err(ProviderError::fenced()),
            "lost" => Err(ProviderError::new(Kind::FileNotFound, "the workspace is gone")),
            "escapes" => Err(ProviderError::new(Kind::Path, "the path leaves the workspace")),
            "missing" => Err(ProviderError::new(Kind::FileNotFound, "no such file or directory")),
            "notdir" => Err(ProviderError::new(Kind::NotADirectory, "a part of the path is no directory")),
            "isdir" => Err(ProviderError::new(Kind::IsADirectory, "it is a directory")),
            "exists" => Err(ProviderError::new(Kind::FileExists, "something is there already")),
            "blind" => Err(ProviderError::new(Kind::Unsupported, "the sandbox has no /proc to find processes in")),
            _ => Ok(said),
        }
    }

    /// Raises the fence and ends what is below it.
    pub(super) async fn raise_fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()> {
        done(&self.hand(provider_ref, "fence", &[&grant_seq.max(0).to_string()], None).await?)
    }

    /// Ends one command with everything it started; false when that is not proven.
    pub(super) async fn kill(&self, provider_ref: &str, id: Uuid) -> bool {
        for _ in 0..3 {
            if self.hand(provider_ref, "kill", &[&id.to_string()], None).await.is_ok_and(|said| said.word == "done") {
                return true;
            }
        }
        false
    }

    pub(super) async fn count(&self, provider_ref: &str) -> Result<u64> {
        self.hand(provider_ref, "count", &[], None).await?.number().ok_or_else(undone)
    }

    /// Makes the workspace and leaves in it by what it is known again.
    pub(super) async fn mark(&self, provider_ref: &str, workspace: &str) -> Result<()> {
        done(&self.hand_at(provider_ref, CONTROL, workspace, "mark", &[], None).await?)
    }

    /// Whether what was resumed has the files it had. Before a workspace was decided there is nothing to know again.
    pub(super) async fn is_ours(&self, provider_ref: &str) -> Result<bool> {
        if self.0.row.workspace.is_none() {
            return Ok(true);
        }
        Ok(self.hand(provider_ref, "ours", &[], None).await?.word == "done")
    }
}

/// `done`, or what was tried did not happen.
pub(super) fn done(said: &Said) -> Result<()> {
    match said.word.as_str() {
        "done" => Ok(()),
        "full" => Err(ProviderError::new(Kind::Full, "the sandbox's disk did not take it")),
        _ => Err(undone()),
    }
}

pub(super) fn undone() -> ProviderError {
    ProviderError::new(Kind::Transient, "the sandbox could not do it")
}

/// What stands before the script's last line, and what that says.
fn last_line<'a>(output: &'a str, nonce: &str) -> Option<(&'a str, &'a str)> {
    let line = output.strip_suffix('\n')?;
    let start = line.rfind('\n').map_or(0, |at| at + 1);
    let word = line[start..].strip_prefix(nonce)?.strip_prefix(' ')?;
    Some((&output[..start], word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_scripts() {
        assert_eq!(last_line("n done\n", "n"), Some(("", "done")));
        assert_eq!(last_line("YWI=\nn done 3\n", "n"), Some(("YWI=\n", "done 3")));
        assert_eq!(last_line("n done", "n"), None);
        assert_eq!(last_line("m done\n", "n"), None);
    }

    #[test]
    fn the_hand_is_shell() {
        let checked = std::process::Command::new("sh").args(["-n", "-c", SCRIPT]).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
