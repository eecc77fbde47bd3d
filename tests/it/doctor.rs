//! `berth doctor`: beside a running server and without one, well and ill.

use std::process::Stdio;

use tokio::process::Command;

use crate::harness::Db;
use crate::harness::server::{Server, Site};

/// What it says, and whether it found everything well.
async fn doctor(site: &Site) -> (String, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("doctor").env_clear().env("BERTH_DATA_DIR", site.data()).env("BERTH_PROVIDERS", "local").env("BERTH_LOG", "off");
    if let Some(url) = site.database_url() {
        command.env("BERTH_DATABASE_URL", url);
    }
    let told = command.stdin(Stdio::null()).output().await.unwrap();
    (String::from_utf8(told.stdout).unwrap(), told.status.success())
}

async fn well_and_ill(db: Db) {
    let site = Site::new(db).await;
    let (told, well) = doctor(&site).await;
    assert!(!well && told.contains("wrong data directory"), "{told}");
    assert!(!site.data().exists(), "looking makes nothing");
    let server = site.serve().await;
    let lease = Server::good(server.acquire("run", "s")).await;
    let (told, well) = doctor(&site).await;
    assert!(well, "beside a running server: {told}");
    for line in
        ["ok    database        a write works", "ok    invariants      all hold", "ok    ledger          1 instances", "ok    local"]
    {
        assert!(told.contains(line), "{line} is not in {told}");
    }
    // It looked and took nothing away: the server's work goes on.
    Server::good(server.script(&lease, "echo on")).await;
    server.kill().await;
    site.execute("UPDATE sandbox SET generation = 7").await;
    let spool = site.data().join("spool");
    std::fs::create_dir_all(&spool).unwrap();
    let left = r#"{"instance_id":"0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e03","provider":"local","provider_ref":"left-over","provider_expires_at":null}"#;
    std::fs::write(spool.join("one.json"), left).unwrap();
    let (told, well) = doctor(&site).await;
    assert!(!well, "{told}");
    for line in ["wrong invariants      not so for 1: a current instance", "wrong spool           1 objects", "left-over"] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_what_is_wrong_sqlite() {
    well_and_ill(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_what_is_wrong_postgres() {
    well_and_ill(Db::Postgres).await;
}
