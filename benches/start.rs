//! Scenario 15: from the start of the process on an empty data directory to its first 200, and the memory it holds when idle.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratio::{Connection, PAIRS, Scenario, Server, berth, request};

const START_MS: f64 = 300.0;
const IDLE_MIB: f64 = 30.0;
/// How long a server is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let (mut starts, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let data = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let server = Server::start(&mut berth(data.path()));
        let (status, _) = Connection::open(server.address).await.send(&request("GET", "/readyz", "")).await;
        let took = begun.elapsed();
        assert_eq!(status, 200);
        starts.push((took.as_secs_f64() * 1000.0, START_MS));
        tokio::time::sleep(IDLE).await;
        idle.push((resident_mib(server.child.id()), IDLE_MIB));
    }
    let start = Scenario { name: "15 start", must: Some(1.0), target: 3.0, unit: "ms", more_is_better: false }.report(&starts);
    let idle = Scenario { name: "15 idle", must: Some(1.0), target: 2.0, unit: "MiB", more_is_better: false }.report(&idle);
    if start == ExitCode::SUCCESS { idle } else { start }
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}
