//! Scenario 11: a live lease goes back to a checkpoint of 1 GB in 80 000 files over HTTP, verified, against untarring it in one thread.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::ExitCode;
use std::time::Instant;

use ratio::Scenario;
use ratio::tree::{Holder, pack, unpack};

const PAIRS: usize = 5;

#[tokio::main]
async fn main() -> ExitCode {
    let data = tempfile::tempdir().unwrap();
    let mut holder = Holder::with_a_full_workspace(data.path()).await;
    let raw = data.path().join("raw.tar.zst");
    pack(&holder.workspace(), &raw);
    let saved = holder.ask("checkpoints", r#"{"kind":"portable_workspace"}"#).await;
    let wanted = format!(r#"{{"checkpoint_id":{},"unsaved_changes":"fail"}}"#, saved["id"]);
    let mut pairs = Vec::new();
    for pair in 0..=PAIRS {
        let begun = Instant::now();
        let back = holder.ask("restore", &wanted).await;
        let ours = begun.elapsed().as_secs_f64();
        assert_eq!(back["acquisition"]["restored_from"]["checkpoint_id"], saved["id"], "{back}");
        holder.lease = back;
        let into = tempfile::tempdir_in(data.path()).unwrap();
        let begun = Instant::now();
        unpack(&raw, into.path());
        let limit = begun.elapsed().as_secs_f64();
        // The first pair brings the archive into the page cache.
        if pair > 0 {
            pairs.push((ours, limit));
        }
    }
    // At most 1.15 times as long.
    Scenario { name: "11 restore", must: Some(0.87), target: 1.54, unit: "s", more_is_better: false }.report(&pairs)
}
