//! Commands through a plugin's own way of running them: marked, fenced, and ended by Berth's hand when their time is over.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Plugin;
use super::failure::Failure;
use super::hand::{Command, Executed, encode};
use crate::id;
use crate::model::capability::INCREMENTAL_SESSION_OUTPUT;
use crate::provider::{ExecEnd, ExecEvent, ExecExit, ExecSpec, Kind, ProviderError, Result, Running};

/// Events, and chunks of stdin, that may wait for their reader.
const QUEUE: usize = 8;
/// The most bytes of standard input; the protocol takes it as a whole.
const MOST_INPUT: usize = 16 << 20;
/// How long a command's end may take to be proven.
const PROOF: Duration = Duration::from_secs(20);
/// How long past a command's time its own worker may take to say so.
const LATE: Duration = Duration::from_millis(500);
/// An exit code above this is a signal's, as every shell has it.
const SIGNALS: i32 = 128;
const MOST_SIGNAL: i32 = 64;

/// A command that is about to run.
struct Started {
    plugin: Plugin,
    provider_ref: String,
    spec: ExecSpec,
    cwd: String,
    nonce: String,
    events: mpsc::Sender<ExecEvent>,
    cancel: CancellationToken,
}

/// Why following is over.
enum End {
    /// The worker answered, or did not; with what was passed on of the output before.
    Over(std::result::Result<Executed, Failure>, String),
    Due(ExecEnd),
    Left,
}

impl Plugin {
    /// Starts a command. Given up at any point, whatever was started ends.
    pub(super) async fn start_command(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running> {
        if spec.argv.is_empty() || spec.user.is_some() {
            return Err(ProviderError::new(Kind::Invalid, "a plugin runs a command of at least one word, as the user that it has"));
        }
        if !self.has("environmentExecute") {
            return Err(ProviderError::new(Kind::Unsupported, "the plugin's worker runs no commands"));
        }
        let cwd = self.stand(provider_ref, spec.cwd.as_deref()).await?;
        let (stdin, input) = mpsc::channel(QUEUE);
        let (events, received) = mpsc::channel(QUEUE);
        let cancel = CancellationToken::new();
        let nonce = id::new().simple().to_string();
        let started =
            Started { plugin: self.clone(), provider_ref: provider_ref.to_owned(), spec, cwd, nonce, events, cancel: cancel.clone() };
        self.0.worker.tasks.spawn(started.follow(input));
        Ok(Running { stdin, events: received, cancel })
    }

    /// Where a command is to run; looked at before, where the caller named it.
    async fn stand(&self, provider_ref: &str, cwd: Option<&str>) -> Result<String> {
        let workspace = self.workspace();
        let Some(cwd) = cwd else { return Ok(workspace.to_owned()) };
        if cwd.contains('\0') || cwd.split('/').any(|part| part == "..") {
            return Err(ProviderError::new(Kind::Path, "the working directory climbs, or holds a NUL byte"));
        }
        let path = if cwd.starts_with('/') { cwd.to_owned() } else { format!("{workspace}/{cwd}") };
        self.hand(provider_ref, "stand", &[&path], None).await?;
        Ok(path)
    }
}

impl Started {
    async fn follow(self, input: mpsc::Receiver<Bytes>) {
        let exit = match self.run(input).await {
            End::Over(Ok(executed), streamed) => self.settle(executed, &streamed).await,
            // The answer was lost, and with it all proof; nothing of it may go on unseen.
            End::Over(Err(_), _) | End::Left => {
                self.kill().await;
                None
            }
            End::Due(end) => self.kill().await.then_some(ended(end)),
        };
        if let Some(exit) = exit {
            // A reader that left needs no exit.
            let _ = self.events.send(ExecEvent::Exit(exit)).await;
        }
    }

    async fn run(&self, input: mpsc::Receiver<Bytes>) -> End {
        let deadline = Instant::now() + self.spec.timeout + LATE;
        let work = async {
            let Some(stdin) = gather(input).await else {
                let error = ProviderError::new(Kind::Invalid, "standard input is larger than the protocol takes");
                return End::Over(Err(error.into()), String::new());
            };
            let (executed, streamed) = self.execute(stdin).await;
            End::Over(executed, streamed)
        };
        tokio::select! {
            biased;
            () = self.events.closed() => End::Left,
            () = self.cancel.cancelled() => End::Due(ExecEnd::Cancelled),
            () = tokio::time::sleep_until(deadline) => End::Due(ExecEnd::TimedOut),
            end = work => end,
        }
    }

    /// Runs it at the worker; with what was passed on of its output meanwhile.
    async fn execute(&self, stdin: Vec<u8>) -> (std::result::Result<Executed, Failure>, String) {
        let (plugin, spec, id, grant) = (&self.plugin, &self.spec, self.spec.id.to_string(), self.spec.grant_seq.to_string());
        let (how, stdin) = match String::from_utf8(stdin) {
            Ok(text) => ("text", text),
            Err(bytes) => ("base64", encode(bytes.as_bytes())),
        };
        let arguments: Vec<&str> = [self.cwd.as_str(), how].into_iter().chain(spec.argv.iter().map(String::as_str)).collect();
        let args = plugin.script(plugin.workspace(), &self.nonce, &id, &grant, "run", &arguments);
        let env = spec.env.iter().cloned().chain([plugin.marker(&id, &grant)]).collect();
        // The worker's own time-out comes after ours, for a command that no hand can reach.
        let command = Command { args, env, stdin: Some(stdin), timeout: spec.timeout + LATE * 2 };
        if !plugin.0.traits.capabilities.contains(&INCREMENTAL_SESSION_OUTPUT) {
            return (plugin.execute(&self.provider_ref, command, None).await, String::new());
        }
        let (sender, mut chunks) = mpsc::channel::<String>(QUEUE);
        let pass = async {
            let mut streamed = String::new();
            while let Some(chunk) = chunks.recv().await {
                streamed.push_str(&chunk);
                // Whoever left is noticed by `run`.
                let _ = self.events.send(ExecEvent::Stdout(chunk.into())).await;
            }
            streamed
        };
        tokio::join!(plugin.execute(&self.provider_ref, command, Some(sender)), pass)
    }

    /// What the worker's answer says, passed on as far as it was not before; none when it proves nothing.
    async fn settle(&self, executed: Executed, streamed: &str) -> Option<ExecExit> {
        if executed.timed_out {
            return self.kill().await.then_some(ended(ExecEnd::TimedOut));
        }
        if executed.stdout.strip_prefix(self.nonce.as_str()).map(str::trim) == Some("fenced") {
            return Some(ended(ExecEnd::Cancelled));
        }
        let (stderr, code, lingering) = exit_word(&executed.stderr, &self.nonce)?;
        // What was streamed is the beginning of the whole; anything else was somebody else's.
        let rest = executed.stdout.strip_prefix(streamed)?;
        if !rest.is_empty() {
            self.events.send(ExecEvent::Stdout(rest.to_owned().into())).await.ok()?;
        }
        if !stderr.is_empty() {
            self.events.send(ExecEvent::Stderr(stderr.to_owned().into())).await.ok()?;
        }
        let signal = code - SIGNALS;
        let end = if (1..=MOST_SIGNAL).contains(&signal) { ExecEnd::Signaled(signal) } else { ExecEnd::Exited(code) };
        Some(ExecExit { end, process_tree_killed: false, lingering })
    }

    async fn kill(&self) -> bool {
        let killing = self.plugin.kill(&self.provider_ref, self.spec.id);
        tokio::time::timeout(PROOF, killing).await.unwrap_or(false)
    }
}

fn ended(end: ExecEnd) -> ExecExit {
    ExecExit { end, process_tree_killed: true, lingering: false }
}

/// Standard input as a whole, once its sender is dropped; none when it is too large.
async fn gather(mut input: mpsc::Receiver<Bytes>) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    while let Some(chunk) = input.recv().await {
        whole.extend_from_slice(&chunk);
        if whole.len() > MOST_INPUT {
            return None;
        }
    }
    Some(whole)
}

/// What a command wrote to standard error before the hand's last word, and that word: its exit code, and whether anything outlives it.
fn exit_word<'a>(stderr: &'a str, nonce: &str) -> Option<(&'a str, i32, bool)> {
    let at = stderr.rfind(nonce)?;
    let mut word = stderr[at + nonce.len()..].split_ascii_whitespace();
    let (code, lingers) = (word.next()?.parse().ok()?, word.next()?);
    Some((&stderr[..at], code, lingers == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_is_taken_out_of_standard_error() {
        assert_eq!(exit_word("n 0 0\n", "n"), Some(("", 0, false)));
        assert_eq!(exit_word("oops\nabc 137 1\n", "abc"), Some(("oops\n", 137, true)));
        assert_eq!(exit_word("no end of lineabc 3 0\n", "abc"), Some(("no end of line", 3, false)));
        assert_eq!(exit_word("oops\n", "abc"), None);
        assert_eq!(exit_word("abc x 0\n", "abc"), None);
    }
}
