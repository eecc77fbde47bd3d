//! What every benchmark shares: interleaved pairs told as one JSON line, a child server, and a client that costs little.
#![allow(
    clippy::allow_attributes,
    dead_code,
    unused_imports,
    unused_macros,
    missing_docs,
    clippy::unwrap_used,
    reason = "no benchmark uses all of it, and one that cannot go on has failed"
)]

pub mod cycle;
pub mod raw;
pub mod tree;

use std::future::Future;
use std::io::{BufRead, BufReader as Lines};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The key of a benchmark's server.
pub const KEY: &str = "a-key-of-the-benchmarks-that-is-long-enough-0123456789";
/// How many pairs are measured.
pub const PAIRS: usize = 7;

/// What a ratio is held against; without a `must` it is only told.
pub struct Scenario {
    pub name: &'static str,
    pub must: Option<f64>,
    pub target: f64,
    pub unit: &'static str,
    /// Whether more is better; the ratio is at least 1 where ours is as good as the limit.
    pub more_is_better: bool,
}

impl Scenario {
    /// Prints the line; fails below the `must`.
    pub fn report(&self, pairs: &[(f64, f64)]) -> ExitCode {
        self.report_with(pairs, &json!({}))
    }

    /// The same with further members.
    pub fn report_with(&self, pairs: &[(f64, f64)], more: &Value) -> ExitCode {
        let ratios = sorted(pairs.iter().map(|(ours, limit)| if self.more_is_better { ours / limit } else { limit / ours }));
        let ratio = median(&ratios);
        let mut line = json!({
            "scenario": self.name, "ratio": rounded(ratio), "min": rounded(ratios[0]), "max": rounded(ratios[ratios.len() - 1]),
            "must": self.must, "target": self.target, "ours": rounded(median(&sorted(pairs.iter().map(|p| p.0)))),
            "limit": rounded(median(&sorted(pairs.iter().map(|p| p.1)))), "unit": self.unit, "pairs": pairs.len(),
        });
        line.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        println!("{line}");
        if self.must.is_some_and(|must| ratio < must) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A child server; killed when dropped.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    /// Kept open: a program that cannot say what it has to say ends.
    says: Lines<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Server {
    /// Starts a program and waits for its line `… listens on http://ADDRESS…`. What it logs is written and thrown away.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let says = Lines::new(child.stdout.take().unwrap());
        let mut server = Self { child, address: SocketAddr::from(([0, 0, 0, 0], 0)), says };
        let mut line = String::new();
        while server.says.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.trim_end().split_once(" listens on http://") {
                server.address = rest.split(". ").next().unwrap_or(rest).parse().unwrap();
                return server;
            }
            line.clear();
        }
        panic!("the program ended before it listened");
    }

    /// `berth serve` as it is shipped, on a data directory.
    pub fn berth(data: &Path, settings: &[(&str, &str)]) -> Self {
        Self::start(berth(data).envs(settings.iter().copied()))
    }
}

/// The command `berth serve` with default settings on free ports, and no limit of requests.
pub fn berth(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("serve").env_clear().env("PATH", "/usr/bin:/bin").env("BERTH_DATA_DIR", data);
    command.env("BERTH_LISTEN", "127.0.0.1:0").env("BERTH_METRICS_LISTEN", "127.0.0.1:0").env("BERTH_BOOTSTRAP_KEY", KEY);
    // One key asks for everything here.
    command.env("BERTH_RATE_LIMIT_PER_SECOND", "0");
    command
}

/// A request as its bytes, which are the same every time.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    format!("{method} {path} HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {KEY}\r\n{kind}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// One connection that is kept. It reads status and length and nothing else, so that it takes little from whom it measures.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&mut self, request: &[u8]) -> (u16, Vec<u8>) {
        self.0.get_mut().write_all(request).await.unwrap();
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).await.unwrap() > 0, "the server closed the connection");
            let head = line.trim_end();
            if head.is_empty() {
                break;
            }
            if status == 0 {
                status = head.split(' ').nth(1).unwrap().parse().unwrap();
            } else if let Some((name, value)) = head.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        (status, body)
    }

    /// The answer's JSON; the answer must be a good one.
    pub async fn json(&mut self, request: &[u8]) -> Value {
        let (status, body) = self.send(request).await;
        assert!((200..300).contains(&status), "{status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }
}

/// How often per second the workers get a step done together, the workers, and the slowest step.
#[allow(clippy::disallowed_methods, reason = "a benchmark owns what it spawns")]
pub async fn per_second<T, F>(workers: Vec<T>, span: Duration, step: impl Fn(T) -> F + Clone + Send + 'static) -> (f64, Vec<T>, Duration)
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for mut worker in workers {
        let step = step.clone();
        running.spawn(async move {
            let (mut done, mut slowest) = (0_u32, Duration::ZERO);
            while begun.elapsed() < span {
                let started = Instant::now();
                worker = step(worker).await;
                slowest = slowest.max(started.elapsed());
                done += 1;
            }
            (worker, done, slowest)
        });
    }
    let (mut back, mut all, mut slowest) = (Vec::new(), 0, Duration::ZERO);
    while let Some(ended) = running.join_next().await {
        let (worker, done, slow) = ended.unwrap();
        back.push(worker);
        all += done;
        slowest = slowest.max(slow);
    }
    (f64::from(all) / begun.elapsed().as_secs_f64(), back, slowest)
}
