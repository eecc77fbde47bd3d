//! An engine behind TLS that knows its clients, and whose disk is small; tests/run.sh starts it beside the other one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth::provider::conformance::{command, commands, files, lifecycle, tag};
use berth::provider::docker::Certificates;
use berth::provider::stream::from_bytes;
use berth::provider::{ExecEnd, Kind, Observation, Presence, Provider, PutOptions, WORKSPACE, WriteMode};
use serde_json::json;

use super::engine::{IMAGE, Place, open, try_open};

fn address() -> String {
    std::env::var("BERTH_TEST_DOCKER_TLS").expect("BERTH_TEST_DOCKER_TLS names an engine behind TLS, as tests/run.sh sets it")
}

fn certificates() -> PathBuf {
    std::env::var("BERTH_TEST_DOCKER_CERTS").expect("BERTH_TEST_DOCKER_CERTS is set with the engine").into()
}

/// Its disk has room for one test at a time.
fn alone() -> File {
    let turn = File::open(certificates().join("ca.pem")).unwrap();
    turn.lock().unwrap();
    turn
}

fn secured() -> Place {
    let place = Place::at(&address(), json!({ "image": IMAGE }));
    let provider = open(&address(), Some(Certificates(certificates())), place.scratch.path().to_owned(), berth::id::new().as_bytes());
    Place { provider, ..place }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_behind_tls_keeps_the_contract() {
    let _alone = alone();
    let place = secured();
    lifecycle::all(place.subject()).await;
    commands::all(place.subject()).await;
    files::all(place.subject()).await;
    assert_eq!(place.left_over(), 0);
}

/// An authority of one's own, and what it vouches for: a client that nobody knows.
fn strangers(dir: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=stranger", "-keyout"])
        .arg(dir.join("key.pem"))
        .arg("-out")
        .arg(dir.join("cert.pem"))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::copy(dir.join("cert.pem"), dir.join("ca.pem")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_prove_who_they_are_gets_nowhere() {
    let _alone = alone();
    let (place, dir) = (secured(), tempfile::tempdir().unwrap());
    let of = tag();
    let tries = |certificates: Option<Certificates>| open(&address(), certificates, place.scratch.path().to_owned(), b"stranger");
    // An engine that the client's authority does not vouch for; a client that the engine's does not; and no word of TLS.
    strangers(dir.path());
    let not_the_engine = tries(Some(Certificates(dir.path().to_owned())));
    assert_eq!(not_the_engine.binding().await.unwrap_err().kind, Kind::Refused, "nothing was said to it");
    std::fs::copy(certificates().join("ca.pem"), dir.path().join("ca.pem")).unwrap();
    for provider in [tries(Some(Certificates(dir.path().to_owned()))), tries(None)] {
        provider.binding().await.unwrap_err();
        provider.ensure(&place.spec, &of).await.unwrap_err();
        let observed = provider.observe("any", &"0".repeat(64)).await;
        assert_eq!(observed, Observation::Unknown);
    }
    assert_eq!(place.provider.find(&of).await.unwrap(), None);
    for name in ["key.pem", "cert.pem", "ca.pem"] {
        std::fs::write(dir.path().join(name), "nonsense").unwrap();
        let opened = try_open(&address(), Some(Certificates(dir.path().to_owned())), PathBuf::new(), b"x");
        assert_eq!(opened.err().map(|e| e.kind), Some(Kind::Invalid), "{name} is refused at the start");
        strangers(dir.path());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_leaves_nothing_behind() {
    let _alone = alone();
    let place = secured();
    let provider = &place.provider;
    let sandbox = place.subject().sandbox().await;
    sandbox.put("kept", b"content").await;
    sandbox.put("kept-too", b"content").await;
    let sh = |script: &str| command(["sh", "-c", script].map(str::to_owned).to_vec());
    let filled = sandbox.run(sh("cat /dev/zero > filler")).await;
    assert_eq!(filled.exit.end, ExecEnd::Exited(1));
    assert!(String::from_utf8_lossy(&filled.stderr).contains("No space left"), "{filled:?}");

    let put = |path: &'static str| {
        let options = PutOptions { mode: None, parents: true };
        provider.write_file(&sandbox.name, 1, path, from_bytes(vec![1; 1 << 20]), options)
    };
    let mut told = Vec::new();
    for path in ["new", "below/new", "kept-too"] {
        told.push(put(path).await.unwrap_err().kind);
    }
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1 << 20);
    header.set_mode(0o644);
    tar.append_data(&mut header, "laid", vec![1; 1 << 20].as_slice()).unwrap();
    let tar = tar.into_inner().unwrap();
    for mode in [WriteMode::Merge, WriteMode::Replace] {
        told.push(provider.write_tree(&sandbox.name, 1, WORKSPACE, from_bytes(tar.clone()), mode).await.unwrap_err().kind);
    }
    assert_eq!(told, [Kind::Full; 5]);
    let more = place.provider.ensure(&place.spec, &tag()).await;
    assert_eq!(more.as_ref().err().map(|e| e.kind), Some(Kind::Full), "{more:?}");
    assert_eq!(place.left_over(), 0);

    // What was there is there, nothing else is, and room can be made from inside as from outside.
    let binding = provider.binding().await.unwrap();
    assert_eq!(provider.observe(&binding, &sandbox.name).await, Observation::Present(Presence::Running));
    assert_eq!(sandbox.get("kept").await, b"content");
    let listed = provider.list_files(&sandbox.name, "", true, None, 100).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| String::from_utf8_lossy(&entry.path)).collect();
    assert_eq!(names, ["filler", "kept", "kept-too"]);
    let freed = sandbox.run(sh("rm filler && echo freed")).await;
    assert_eq!((freed.exit.end, freed.stdout.as_slice()), (ExecEnd::Exited(0), b"freed\n".as_slice()));
    provider.write_tree(&sandbox.name, 1, WORKSPACE, from_bytes(tar), WriteMode::Replace).await.unwrap();
    assert_eq!(sandbox.get("laid").await.len(), 1 << 20);
    sandbox.end().await;
}
