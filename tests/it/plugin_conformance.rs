//! The checks that a plugin's author runs: a good worker passes them all, and each lie is found by the check that is about it.

use std::process::Output;
use std::time::Duration;

use berth::provider::plugin::conformance::{Found, Verdict, run};
use berth::provider::plugin::worker::Workers;
use serde_json::json;
use tokio::process::Command;
use uuid::Uuid;

use crate::harness::worker::{Lie, Worker};

async fn verdicts(worker: &Worker) -> Vec<Verdict> {
    let scratch = std::env::temp_dir();
    let at = Workers::new(Vec::new(), scratch).at(&worker.url, Uuid::now_v7()).await.unwrap();
    run(at, None, Some("box".to_owned()), json!({})).await
}

fn broken(verdicts: &[Verdict]) -> Vec<&'static str> {
    verdicts.iter().filter(|one| matches!(one.found, Found::Broken(_))).map(|one| one.check).collect()
}

fn left_out(verdicts: &[Verdict]) -> Vec<&'static str> {
    verdicts.iter().filter(|one| one.found == Found::LeftOut).map(|one| one.check).collect()
}

async fn berth(url: &str, token: Option<&str>) -> Output {
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
    berth.args(["plugin-conformance", "--url", url]).env_remove("BERTH_PLUGIN_TOKEN");
    if let Some(token) = token {
        berth.env("BERTH_PLUGIN_TOKEN", token);
    }
    tokio::time::timeout(Duration::from_secs(100), berth.output()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_worker_passes_and_leaves_nothing() {
    let worker = Worker::start().await;
    let found = verdicts(&worker).await;
    assert_eq!((broken(&found), left_out(&found)), (Vec::new(), vec!["fencing"]), "{found:?}");
    assert!(worker.boxes().is_empty());
    // One that fences is held to it, and one that offers less is asked for less.
    worker.says_it_fences();
    worker.without("environmentResumeLease");
    let found = verdicts(&worker).await;
    assert_eq!((broken(&found), left_out(&found)), (Vec::new(), vec!["stop and resume", "gone"]), "{found:?}");
    assert!(worker.boxes().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lie_is_found_by_the_check_that_is_about_it() {
    for (method, lie, check) in [
        ("initialize", Lie::Result(json!({ "ok": true })), "handshake"),
        ("environmentNoSuchMethod", Lie::Result(json!({})), "unknown methods"),
        ("environmentValidateConfig", Lie::Result(json!({ "ok": false })), "configuration"),
        ("environmentAcquireLease", Lie::After(json!({ "providerLeaseId": null })), "sandboxes"),
        ("environmentDestroyLease", Lie::After(json!({ "providerLeaseId": "another", "state": "destroyed" })), "sandboxes"),
        ("environmentRealizeWorkspace", Lie::Result(json!({ "cwd": "not/absolute" })), "sandboxes"),
        ("environmentExecute", Lie::Huge(80 << 20), "sandboxes"),
        ("environmentReleaseLease", Lie::Result(json!(null)), "stop and resume"),
        ("environmentResumeLease", Lie::Result(json!({ "providerLeaseId": "somebody-elses" })), "stop and resume"),
    ] {
        let worker = Worker::start().await;
        worker.next(method, lie.clone());
        let found = verdicts(&worker).await;
        assert_eq!(broken(&found), [check], "{method} {lie:?}: {found:?}");
    }
    let worker = Worker::start().await;
    worker.says_it_fences();
    worker.forget_marks();
    let found = verdicts(&worker).await;
    assert_eq!(broken(&found), ["fencing"], "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_says_what_holds_and_fails_for_what_does_not() {
    let worker = Worker::start().await;
    worker.with_token("shown-to-a-worker");
    let good = berth(&worker.url, Some("shown-to-a-worker")).await;
    let said = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(good.status.success() && said.contains("ok       commands\n") && said.contains("left out fencing"), "{good:?}");
    let bad = berth(&worker.url, None).await;
    let said = String::from_utf8_lossy(&bad.stdout).into_owned();
    assert!(!bad.status.success() && said.contains("broken   handshake"), "{bad:?}");
    let nowhere = berth("http://8.8.8.8", None).await;
    assert!(!nowhere.status.success() && String::from_utf8_lossy(&nowhere.stderr).contains("--url"), "{nowhere:?}");
}
