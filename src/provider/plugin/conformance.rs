//! The protocol as checks of a worker at a URL, for whoever writes one: each makes what it needs, ends it, and says what does not hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::Call;
use super::failure::Failure;
use super::handshake::Handshake;
use super::worker::{NotRegistered, Worker};
use super::{Plugin, Row, Token, validate_config};
use crate::id;
use crate::provider::stream::{from_bytes, read_all};
use crate::provider::{
    Destroyed, ExecEnd, ExecEvent, ExecExit, ExecSpec, Kind, OwnerTag, Provider, ProviderError, PutOptions, ResolvedConfig, Running, Spec,
};

/// How long one check may take.
const BOUND: Duration = Duration::from_mins(2);
/// How long a command may be past its time before its worker is one that does not end it.
const LATE: Duration = Duration::from_secs(30);

/// What a check came to; the text says what does not hold.
type Checked = Result<(), String>;

/// One check and what it came to.
#[derive(Debug)]
pub struct Verdict {
    /// What was checked.
    pub check: &'static str,
    /// Whether it holds.
    pub found: Found,
}

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It holds.
    Holds,
    /// The worker does not offer what it is about.
    LeftOut,
    /// It does not hold, and this is how.
    Broken(String),
}

/// A worker under test, by what its present life said of itself.
struct Bench {
    worker: Arc<Worker>,
    token: Option<String>,
    handshake: Arc<Handshake>,
    driver_key: String,
    config: Value,
}

/// A sandbox of one check's.
struct Sample {
    row: Row,
    name: String,
}

/// Checks a worker, with this driver of it, or its first one, and this configuration. Makes a few sandboxes and ends them.
pub async fn run(worker: Worker, token: Option<String>, driver_key: Option<String>, config: Value) -> Vec<Verdict> {
    let worker = Arc::new(worker);
    let handshake = match worker.introduce(token.as_deref()).await {
        Ok(handshake) => handshake,
        Err(NotRegistered::Destination(why)) => return vec![broken("handshake", why)],
        Err(NotRegistered::Step(step, why)) => return vec![broken("handshake", &format!("{step}: {why}"))],
    };
    let driver_key = driver_key.or_else(|| handshake.manifest.environment_drivers.first().map(|driver| driver.driver_key.clone()));
    let Some(driver_key) = driver_key.filter(|key| handshake.driver(key).is_some()) else {
        return vec![broken("handshake", "its manifest has no such driver")];
    };
    let bench = &Bench { worker, token, handshake, driver_key, config };
    let resumes = bench.handshake.methods.contains("environmentResumeLease");
    let stops = bench.bind(bench.row()).is_ok_and(|plugin| plugin.traits().stop_resume);
    vec![
        Verdict { check: "handshake", found: Found::Holds },
        check("initialize", true, bench.initialize_is_repeatable()).await,
        check("unknown methods", true, bench.unknown_methods_are_told()).await,
        check("configuration", bench.handshake.methods.contains("environmentValidateConfig"), bench.configuration_is_taken()).await,
        check("sandboxes", true, bench.two_acquires_are_two()).await,
        check("commands", true, bench.commands_are_exact()).await,
        check("time-outs", true, bench.time_is_kept()).await,
        check("files", true, bench.files_are_bytes()).await,
        check("stop and resume", stops, bench.a_stop_keeps_files()).await,
        check("gone", resumes, bench.what_is_gone_is_told()).await,
        check("destroy", true, bench.destroy_is_repeatable()).await,
        check("fencing", bench.handshake.fencing, bench.lower_generations_are_refused()).await,
    ]
}

fn broken(check: &'static str, how: &str) -> Verdict {
    Verdict { check, found: Found::Broken(how.to_owned()) }
}

async fn check(name: &'static str, offered: bool, work: impl Future<Output = Checked>) -> Verdict {
    if !offered {
        return Verdict { check: name, found: Found::LeftOut };
    }
    match timeout(BOUND, work).await {
        Ok(Ok(())) => Verdict { check: name, found: Found::Holds },
        Ok(Err(how)) => broken(name, &how),
        Err(_) => broken(name, "it took longer than two minutes"),
    }
}

fn failed(what: &str) -> impl Fn(ProviderError) -> String + '_ {
    move |error| format!("{what}: {} ({})", error.message, error.kind.as_str())
}

fn holds(so: bool, otherwise: &str) -> Checked {
    if so { Ok(()) } else { Err(otherwise.to_owned()) }
}

impl Bench {
    fn row(&self) -> Row {
        Row {
            registration: id::new(),
            organization: id::new(),
            environment: id::new(),
            sandbox: id::new(),
            instance: id::new(),
            generation: 1,
            current_generation: 1,
            driver_key: self.driver_key.clone(),
            config: ResolvedConfig::from(self.config.clone()),
            metadata: json!({}),
            provider_expires_at: None,
            workspace: None,
            run: id::new(),
            harness: None,
            requested_expires_at: None,
            at_rest: false,
            stop_confirmed: true,
        }
    }

    fn bind(&self, row: Row) -> Result<Plugin, String> {
        let token = self.token.clone().map(Token);
        Plugin::bind(Arc::clone(&self.worker), token, Arc::clone(&self.handshake), row).map_err(failed("the driver"))
    }

    fn of(&self, sample: &Sample) -> Result<Plugin, String> {
        self.bind(sample.row.clone())
    }

    /// Makes a sandbox with a working directory; one without is ended.
    async fn sample(&self) -> Result<Sample, String> {
        let (mut row, spec) = (self.row(), self.spec());
        let tag = OwnerTag {
            deployment: id::new(),
            organization: row.organization,
            sandbox: row.sandbox,
            instance: row.instance,
            generation: row.generation,
        };
        let made = self.bind(row.clone())?.ensure(&spec, &tag).await.map_err(failed("environmentAcquireLease"))?;
        row.metadata = made.metadata.unwrap_or_else(|| json!({}));
        let mut sample = Sample { row, name: made.provider_ref };
        match self.of(&sample)?.realize(&sample.name, &spec).await {
            Ok(workspace) => sample.row.workspace = Some(workspace),
            Err(error) => {
                self.end(&sample).await?;
                return Err(failed("the working directory")(error));
            }
        }
        Ok(sample)
    }

    fn spec(&self) -> Spec {
        Spec { config: ResolvedConfig::from(self.config.clone()), workspace_path: None }
    }

    async fn end(&self, sample: &Sample) -> Checked {
        let ended = self.of(sample)?.destroy(&sample.name).await.map_err(failed("environmentDestroyLease"))?;
        holds(ended == Destroyed::Ended, "a sandbox that was there was not ended")
    }

    /// A check with a sandbox, which is ended whatever it came to.
    async fn with_sample(&self, work: impl AsyncFnOnce(&Sample, &Plugin) -> Checked) -> Checked {
        let sample = self.sample().await?;
        let plugin = self.of(&sample)?;
        let checked = work(&sample, &plugin).await;
        checked.and(self.end(&sample).await)
    }

    async fn raw(&self, method: &'static str, params: Value) -> Result<Option<String>, Failure> {
        let call = Call { method, params, token: self.token.as_deref(), fence: None, timeout: LATE, idempotency_key: None };
        Ok(self.worker.http.call(call).await?.generation)
    }

    async fn initialize_is_repeatable(&self) -> Checked {
        let again = self.worker.introduce(self.token.as_deref()).await.map_err(|_| "a second initialize failed")?;
        holds(again.generation == self.handshake.generation, "a second initialize is another life, or it was started anew")?;
        let told = self.raw("initialize", self.worker.introduction()).await.map_err(|f| failed("initialize")(f.into()))?;
        holds(told.as_ref() == Some(&self.handshake.generation), "the header x-plugin-generation is not the life's")
    }

    async fn unknown_methods_are_told(&self) -> Checked {
        match self.raw("environmentNoSuchMethod", json!({})).await {
            Err(Failure::Said { code: -32_601 | -32_004, .. }) => Ok(()),
            Err(Failure::Said { code, .. }) => Err(format!("an unknown method is answered with the code {code}, not -32601")),
            Err(Failure::Transport(error)) => Err(failed("an unknown method")(error)),
            Ok(_) => Err("an unknown method has a result".to_owned()),
        }
    }

    async fn configuration_is_taken(&self) -> Checked {
        let token = self.token.clone().map(Token);
        let accepted = validate_config(&self.worker, token.as_ref(), &self.handshake, &self.driver_key, &self.config).await;
        holds(accepted.map_err(failed("environmentValidateConfig"))?, "the driver does not take the configuration that was given")
    }

    async fn two_acquires_are_two(&self) -> Checked {
        let one = self.sample().await?;
        let other = self.sample().await;
        let apart = other.as_ref().map_or(Ok(()), |other| holds(other.name != one.name, "two acquires have one providerLeaseId"));
        let ended = self.end(&one).await;
        self.end(&other?).await.and(ended).and(apart)
    }

    async fn commands_are_exact(&self) -> Checked {
        let script = "cat; printf '%s' \"$TONE\"; echo oops >&2; exit 7";
        self.with_sample(async |sample, plugin| {
            let env = vec![("TONE".to_owned(), "blue".to_owned())];
            let spec = ExecSpec { env, ..command(&["sh", "-c", script], LATE) };
            let (stdout, stderr, exit) = ran(plugin, &sample.name, spec, b"in \xff\n").await?;
            holds(stdout.starts_with(b"in ") && stdout.ends_with(b"\nblue"), "standard input or the environment did not reach a command")?;
            holds(stderr == b"oops\n", "standard error is not what a command wrote")?;
            holds(exit.end == ExecEnd::Exited(7), "an exit code is not the command's")?;
            let spec = command(&["sh", "-c", "pwd"], LATE);
            let (stdout, ..) = ran(plugin, &sample.name, spec, b"").await?;
            let workspace = sample.row.workspace.as_deref().unwrap_or_default();
            holds(String::from_utf8_lossy(&stdout).trim() == workspace, "a command does not run in the working directory")
        })
        .await
    }

    async fn time_is_kept(&self) -> Checked {
        self.with_sample(async |sample, plugin| {
            let begun = Instant::now();
            let (.., exit) = ran(plugin, &sample.name, command(&["sleep", "300"], Duration::from_millis(500)), b"").await?;
            holds(exit.end == ExecEnd::TimedOut && begun.elapsed() < LATE, "a command past its time was not ended")?;
            holds(plugin.processes(&sample.name).await.map_err(failed("counting processes"))? == 0, "something of it runs on")
        })
        .await
    }

    async fn files_are_bytes(&self) -> Checked {
        self.with_sample(async |sample, plugin| {
            let content: Vec<u8> = (0..=u8::MAX).cycle().take(3 << 20).collect();
            put(plugin, &sample.name, "dir/file", content.clone()).await?;
            holds(get(plugin, &sample.name, "dir/file").await? == content, "a file came back changed")
        })
        .await
    }

    async fn a_stop_keeps_files(&self) -> Checked {
        self.with_sample(async |sample, plugin| {
            put(plugin, &sample.name, "kept", b"content".to_vec()).await?;
            plugin.stop(&sample.name).await.map_err(failed("a stop"))?;
            for _ in 0..2 {
                plugin.start(&sample.name).await.map_err(failed("environmentResumeLease"))?;
            }
            holds(get(plugin, &sample.name, "kept").await? == b"content", "a resumed sandbox has not the files it had")
        })
        .await
    }

    async fn what_is_gone_is_told(&self) -> Checked {
        match self.bind(self.row())?.start(&format!("berth-never-made-{}", id::new().simple())).await {
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            Err(error) => Err(format!("a resume of what is not there is to answer providerLeaseId null; {}", error.message)),
            Ok(()) => Err("what was never made was resumed".to_owned()),
        }
    }

    async fn destroy_is_repeatable(&self) -> Checked {
        let sample = self.sample().await?;
        self.end(&sample).await?;
        self.of(&sample)?.destroy(&sample.name).await.map_err(failed("a second destroy"))?;
        if !self.handshake.methods.contains("environmentResumeLease") {
            return Ok(());
        }
        let gone = self.of(&sample)?.start(&sample.name).await.err().map(|error| error.kind);
        holds(gone == Some(Kind::NotFound), "what was destroyed can be resumed, or is not told to be gone")
    }

    async fn lower_generations_are_refused(&self) -> Checked {
        let sample = self.sample().await?;
        let later = Row { generation: 2, current_generation: 2, ..sample.row.clone() };
        let raised = self.bind(later)?.processes(&sample.name).await.map_err(failed("a call of a higher generation"));
        let refused = self.of(&sample)?.processes(&sample.name).await.is_err();
        // The end of an exact object is never too late.
        self.end(&sample).await.and(raised.map(|_| ())).and(holds(refused, "a call below Berth-Current-Generation was not refused"))
    }
}

fn command(argv: &[&str], timeout: Duration) -> ExecSpec {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    ExecSpec { id: id::new(), grant_seq: 1, argv, cwd: None, env: Vec::new(), user: None, timeout, stdin: true, prepared: None }
}

/// A command to its end: what it wrote to each stream, and how it ended.
async fn ran(plugin: &Plugin, name: &str, spec: ExecSpec, input: &'static [u8]) -> Result<(Vec<u8>, Vec<u8>, ExecExit), String> {
    let running = plugin.exec(name, spec).await.map_err(failed("environmentExecute"))?;
    let Running { stdin, mut events, cancel: _cancel } = running;
    // One that is over already takes no input.
    let _ = stdin.send(Bytes::from_static(input)).await;
    drop(stdin);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match events.recv().await {
            Some(ExecEvent::Stdout(bytes)) => stdout.extend_from_slice(&bytes),
            Some(ExecEvent::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
            Some(ExecEvent::Exit(exit)) => return Ok((stdout, stderr, exit)),
            None => return Err("environmentExecute: its answer says nothing of the command's end".to_owned()),
        }
    }
}

async fn put(plugin: &Plugin, name: &str, path: &str, content: Vec<u8>) -> Checked {
    let options = PutOptions { mode: None, parents: true };
    plugin.write_file(name, 1, path, from_bytes(content), options).await.map(|_| ()).map_err(failed("writing a file by commands"))
}

async fn get(plugin: &Plugin, name: &str, path: &str) -> Result<Vec<u8>, String> {
    let read = plugin.read_file(name, path).await.map_err(failed("reading a file by commands"))?;
    read_all(read.body, 64 << 20).await.map_err(|_| "reading a file by commands broke off".to_owned())
}
