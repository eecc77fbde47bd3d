//! Scenario 9: a full portable checkpoint of 1 GB in 80 000 files over HTTP, against tar, zstd and a digest of the same tree, and the
//! memory it takes.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::time::Instant;

use ratio::Scenario;
use ratio::tree::{Holder, pack};

const PAIRS: usize = 5;
const EXTRA_MIB: f64 = 64.0;

#[tokio::main]
async fn main() -> ExitCode {
    let data = tempfile::tempdir().unwrap();
    let mut holder = Holder::with_a_full_workspace(data.path()).await;
    let raw = data.path().join("raw.tar.zst");
    let idle = holder.memory("VmRSS");
    let mut pairs = Vec::new();
    for pair in 0..=PAIRS {
        let begun = Instant::now();
        let saved = holder.ask("checkpoints", r#"{"kind":"portable_workspace"}"#).await;
        let ours = begun.elapsed().as_secs_f64();
        assert_eq!(saved["status"], "attached", "{saved}");
        let begun = Instant::now();
        pack(&holder.workspace(), &raw);
        let limit = begun.elapsed().as_secs_f64();
        // The first pair brings the files into the page cache.
        if pair > 0 {
            pairs.push((ours, limit));
        }
    }
    let extra = holder.memory("VmHWM") - idle;
    let time = Scenario { name: "9 checkpoint", must: Some(0.80), target: 0.95, unit: "s", more_is_better: false }.report(&pairs);
    let memory = Scenario { name: "9 memory", must: Some(1.0), target: 1.6, unit: "MiB", more_is_better: false };
    let memory = memory.report(&[(extra, EXTRA_MIB)]);
    if time == ExitCode::SUCCESS { memory } else { time }
}
