//! The one door into a running container: a shell script that goes in with every exec, and what it answers. A helper that lives
//! in the container can take its place.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, Upgraded};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::codec::FramedRead;
use uuid::Uuid;

use super::engine::{ACT, Answer, Failure, LOOK};
use super::frames::{Frames, Stream};
use super::lifecycle::{Facts, safe};
use super::tarball::Tarball;
use super::wire::{Created, ExecState};
use super::{Docker, STATE};
use crate::id;
use crate::provider::spool::Spool;
use crate::provider::{Kind, ProviderError, Result, stream};

const SCRIPT: &str = include_str!("agent.sh");
/// What staged content is called.
const STAGED: &str = "it";
/// What a verb may say; a listing of a very large tree is the longest.
const MOST_SAID: usize = 256 << 20;
/// How long a verb may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// Whose exec it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Grant {
    /// A caller's command.
    Command(i64),
    /// A change of files, by a verb of Berth's own: fenced and ended like a command.
    Change(i64),
    /// Berth's own.
    Control,
}

/// One exec through the script.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) container: String,
    pub(super) instance: Uuid,
    pub(super) id: Uuid,
    pub(super) grant: Grant,
    pub(super) verb: &'static str,
    pub(super) arguments: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<String>,
    pub(super) user: Option<String>,
    pub(super) stdin: bool,
    /// The engine's name of the exec, where it was made before.
    pub(super) prepared: Option<String>,
    /// The name by which the script's own words are known.
    pub(super) nonce: String,
}

/// An exec that was started.
pub(super) struct Open {
    pub(super) exec: String,
    pub(super) io: Upgraded,
}

/// How far the start of an exec came.
pub(super) enum NotOpen {
    /// It surely does not run.
    Surely(ProviderError),
    /// It may run.
    Perhaps(ProviderError),
}

/// What a verb answered.
pub(super) struct Said {
    /// What it wrote before its word.
    pub(super) output: Vec<u8>,
    /// `done`, perhaps with something behind it, or why not.
    pub(super) word: String,
}

/// A name nobody else has.
pub(super) fn nonce() -> String {
    id::new().simple().to_string()
}

/// Where an instance's registrations and fence are. Named by the instance, since a snapshot takes those of its container along.
pub(super) fn state(instance: Uuid) -> String {
    format!("{STATE}/{instance}")
}

impl Call {
    fn body(&self) -> serde_json::Value {
        let grant = match self.grant {
            Grant::Command(grant) | Grant::Change(grant) => grant.to_string(),
            Grant::Control => "control".to_owned(),
        };
        // A change leaves nothing behind, so what is registered is enough to find it.
        let mark = if let Grant::Command(grant) = self.grant { grant.to_string() } else { "control".to_owned() };
        let (state, id) = (state(self.instance), self.id.to_string());
        let fixed = ["/bin/sh", "-c", SCRIPT, "berth", &state, &self.nonce, &id, &grant, self.verb];
        let command: Vec<&str> = fixed.into_iter().chain(self.arguments.iter().map(String::as_str)).collect();
        let mut env: Vec<String> = self.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        env.push(format!("BERTH_EXEC={id}:{mark}:"));
        json!({
            "AttachStdin": self.stdin, "AttachStdout": true, "AttachStderr": true, "Tty": false,
            "Cmd": command, "Env": env, "WorkingDir": self.cwd.as_deref().unwrap_or(""), "User": self.user.as_deref().unwrap_or(""),
        })
    }
}

impl Docker {
    /// Starts an exec and takes over its connection.
    pub(super) async fn open_exec(&self, call: &Call) -> std::result::Result<Open, NotOpen> {
        let exec = match &call.prepared {
            Some(exec) => exec.clone(),
            None => self.create_exec(call).await.map_err(NotOpen::Surely)?,
        };
        match timeout(ACT, self.take_over(&exec)).await.unwrap_or(Err(Failure::Lost(None))) {
            Ok(io) => Ok(Open { exec, io }),
            Err(failure @ Failure::Lost(_)) => Err(NotOpen::Perhaps(failure.into())),
            // Gone between the two calls.
            Err(failure) if failure.is(404) => Err(NotOpen::Surely(ProviderError::new(Kind::Refused, "the container does not run"))),
            Err(failure) => Err(NotOpen::Surely(failure.into())),
        }
    }

    /// Makes an exec, which does nothing before it is started.
    pub(super) async fn create_exec(&self, call: &Call) -> Result<String> {
        let path = format!("/containers/{}/exec", safe(&call.container)?);
        match self.engine.post::<Created>(&path, &[], &call.body()).await {
            Ok(created) => Ok(created.id),
            Err(failure) if failure.is(404) => Err(self.gone().await),
            // Podman tells it like any failure of its own.
            Err(failure) if failure.is(500) && !self.inspect(&call.container).await?.runs() => {
                Err(ProviderError::new(Kind::Refused, "the container does not run"))
            }
            // What was not started does nothing.
            Err(Failure::Lost(_)) => Err(ProviderError::new(Kind::Refused, "the container engine did not answer")),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn take_over(&self, exec: &str) -> Answer<Upgraded> {
        let request = self.engine.request(Method::POST, &format!("/exec/{exec}/start"), &[]).await?;
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "tcp").json(&json!({ "Detach": false, "Tty": false }));
        self.engine.send(request).await?.upgrade().await.map_err(|e| Failure::Lost(Some(e)))
    }

    /// How an exec ended; `None` while it runs.
    pub(super) async fn exit_code(&self, exec: &str) -> Answer<Option<i32>> {
        let mut looks = 0;
        loop {
            let state: ExecState = self.engine.get(&format!("/exec/{exec}/json"), &[]).await?;
            looks += 1;
            // The engine closes the stream a moment before it has the code.
            if !state.running || looks > 20 {
                return Ok(state.exit_code.filter(|_| !state.running));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// One of Berth's own verbs, as the container's user or another.
    pub(super) async fn control(
        &self,
        id: &str,
        facts: &Facts,
        verb: &'static str,
        arguments: &[&str],
        user: Option<&str>,
    ) -> Result<Said> {
        self.ask(id, facts, Grant::Control, verb, arguments, user, None).await
    }

    /// A verb that changes files under a grant; `Fenced` when the fence is higher.
    pub(super) async fn change(&self, id: &str, facts: &Facts, grant_seq: i64, verb: &'static str, arguments: &[&str]) -> Result<Said> {
        self.change_with(id, facts, grant_seq, verb, arguments, None).await
    }

    /// The same, with what it reads.
    pub(super) async fn change_with(
        &self,
        id: &str,
        facts: &Facts,
        grant_seq: i64,
        verb: &'static str,
        arguments: &[&str],
        input: Option<Bytes>,
    ) -> Result<Said> {
        let said = self.ask(id, facts, Grant::Change(grant_seq), verb, arguments, None, input).await?;
        if said.word == "fenced" { Err(ProviderError::fenced()) } else { Ok(said) }
    }

    async fn ask(
        &self,
        id: &str,
        facts: &Facts,
        grant: Grant,
        verb: &'static str,
        arguments: &[&str],
        user: Option<&str>,
        input: Option<Bytes>,
    ) -> Result<Said> {
        let call = Call {
            container: id.to_owned(),
            instance: facts.tag.instance,
            id: id::new(),
            grant,
            verb,
            arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
            env: Vec::new(),
            cwd: Some("/".to_owned()),
            user: user.map(str::to_owned),
            stdin: input.is_some(),
            prepared: None,
            nonce: nonce(),
        };
        for first in [true, false] {
            let said = timeout(PATIENCE, self.converse(&call, input.clone())).await;
            let said = said.unwrap_or_else(|_| Err(ProviderError::new(Kind::Transient, "the container did not answer in time")))?;
            if said.word != "unregistered" || !first {
                return Ok(said);
            }
            self.make_state(id, facts).await?;
        }
        unreachable!("the second answer is returned")
    }

    /// Makes what the script could not make.
    pub(super) async fn make_state(&self, id: &str, facts: &Facts) -> Result<()> {
        self.make_in_state(id, facts, &[("run", 0o1777), ("fence", 0o1777)]).await
    }

    /// Makes directories of ours, and everything above them.
    pub(super) async fn make_in_state(&self, id: &str, facts: &Facts, directories: &[(&str, u32)]) -> Result<()> {
        let (into, _, tar) = in_state(facts, directories);
        self.put_stream(id, into, stream::from_bytes(tar.finish())).await
    }

    /// Brings content into the container, as `it` in a directory of ours of this name, where nobody looks; returns that directory.
    pub(super) async fn stage(&self, id: &str, facts: &Facts, name: &str, mode: u32, content: Spool) -> Result<String> {
        let (into, ours, tar) = in_state(facts, &[(name, 0o700)]);
        let (head, tail) = tar.file(format!("{ours}/{name}/{STAGED}").as_bytes(), mode, content.length());
        let whole = Box::pin(io::Cursor::new(head).chain(content.read()?).chain(io::Cursor::new(tail)));
        let staged = format!("{}/{name}", state(facts.tag.instance));
        if let Err(error) = self.put_stream(id, into, whole).await {
            self.unstage(id, facts, &staged).await;
            return Err(error);
        }
        Ok(staged)
    }

    /// Removes what was staged; should that fail, it goes with the container.
    pub(super) async fn unstage(&self, id: &str, facts: &Facts, staged: &str) {
        let _ = self.control(id, facts, "remove", &[staged, "tree"], None).await;
    }

    async fn converse(&self, call: &Call, input: Option<Bytes>) -> Result<Said> {
        let open = self.open_exec(call).await.map_err(|not| match not {
            NotOpen::Surely(error) | NotOpen::Perhaps(error) => error,
        })?;
        let broken = || ProviderError::new(Kind::Transient, "the container's answer broke off");
        let (output, mut stdin) = tokio::io::split(open.io);
        let feeding = async {
            let Some(input) = input else { return };
            // Whoever no longer reads says why.
            if stdin.write_all(&input).await.is_ok() {
                let _ = stdin.shutdown().await;
            }
        };
        tokio::pin!(feeding);
        let mut fed = false;
        let mut frames = FramedRead::new(output, Frames::default());
        let mut output = Vec::new();
        loop {
            let frame = tokio::select! {
                () = &mut feeding, if !fed => { fed = true; continue; }
                frame = frames.next() => frame,
            };
            let Some(frame) = frame else { break };
            let (stream, bytes) = frame.map_err(|e| broken().because(e))?;
            if stream == Stream::Stdout {
                output.extend_from_slice(&bytes);
            }
            if let Some(word) = last_line(&output, &call.nonce) {
                output.truncate(word.0);
                return Ok(Said { output, word: word.1 });
            }
            if output.len() > MOST_SAID {
                return Err(ProviderError::new(Kind::Full, "the container's answer is too long"));
            }
        }
        Err(self.silent(&open.exec).await)
    }

    /// Why an exec ended without a word.
    pub(super) async fn silent(&self, exec: &str) -> ProviderError {
        match self.exit_code(exec).await {
            Ok(Some(126 | 127)) => ProviderError::new(Kind::Invalid, "the container has no /bin/sh that runs, which commands go through"),
            _ => ProviderError::new(Kind::Transient, "the container's answer broke off"),
        }
    }
}

/// The beginning of a tar with directories of ours in it: where it is unpacked, and what the place of ours is called there.
fn in_state(facts: &Facts, directories: &[(&str, u32)]) -> (&'static str, String, Tarball) {
    let mut tar = Tarball::new(facts.owner);
    let instance = facts.tag.instance;
    // Below a read-only root, the place itself is a volume that is there already.
    let (into, ours) = if facts.read_only { (STATE, instance.to_string()) } else { ("/", format!(".berth/{instance}")) };
    if !facts.read_only {
        tar.directory(STATE.trim_start_matches('/').as_bytes(), 0o1777);
    }
    tar.directory(ours.as_bytes(), 0o1777);
    for (name, mode) in directories {
        tar.directory(format!("{ours}/{name}").as_bytes(), *mode);
    }
    (into, ours, tar)
}

/// Where the script's last line begins, and what it says.
fn last_line(output: &[u8], nonce: &str) -> Option<(usize, String)> {
    let line = output.strip_suffix(b"\n")?;
    let start = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let word = line[start..].strip_prefix(nonce.as_bytes())?.strip_prefix(b" ")?;
    // A record of a walk begins like it, and has more to it.
    let word = std::str::from_utf8(word).ok().filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))?;
    Some((start, word.to_owned()))
}

/// Reads the first line of a command's standard output, and returns with it what else came meanwhile.
pub(super) async fn first_line(
    frames: &mut FramedRead<impl tokio::io::AsyncRead + Unpin, Frames>,
) -> std::io::Result<Option<(Vec<u8>, Vec<(Stream, Bytes)>)>> {
    let (mut line, mut early) = (Vec::new(), Vec::new());
    while let Some(frame) = frames.next().await {
        let (stream, mut bytes) = frame?;
        if stream == Stream::Stderr {
            // The two streams are not in step: a command's errors may overtake the word that it runs.
            early.push((stream, bytes));
        } else if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(&bytes.split_to(end));
            early.push((stream, bytes.split_off(1)));
            return Ok(Some((line, early)));
        } else {
            line.extend_from_slice(&bytes);
        }
        if line.len() > 4096 {
            break;
        }
    }
    Ok(None)
}

/// How long the first word of a command may take.
pub(super) const FIRST_WORD: Duration = Duration::from_secs(30);

/// Reads what is left of a connection, so that the engine is not kept waiting.
pub(super) async fn drain(mut io: impl tokio::io::AsyncRead + Unpin) {
    let mut scrap = vec![0; 64 * 1024];
    let reading = async { while io.read(&mut scrap).await.is_ok_and(|read| read > 0) {} };
    // Nobody waits for it.
    let _ = timeout(LOOK, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_told_from_a_record() {
        assert_eq!(last_line(b"n done\n", "n"), Some((0, "done".to_owned())));
        assert_eq!(last_line(b"x\nn done 3\n", "n"), Some((2, "done 3".to_owned())));
        assert_eq!(last_line(b"n 81a4 0 1\n", "n"), None);
        assert_eq!(last_line(b"n done", "n"), None);
        assert_eq!(last_line(b"m done\n", "n"), None);
    }
}
