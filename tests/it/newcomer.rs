//! What somebody meets who tries things out: answers that say what to do next.

use reqwest::Method;
use serde_json::json;

use crate::harness::Db;
use crate::harness::server::{Server, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_what_is_in_the_way() {
    let site = Site::new(Db::Sqlite).await;
    let server = site.serve().await;
    let lease = Server::good(server.acquire("first", "s")).await;

    let wanted = json!({ "environment": "default", "holder": "second", "scope": { "session": "s" }, "wait_seconds": 0 });
    let (status, told) = Server::send(server.ask(Method::POST, "/v1/leases").json(&wanted)).await;
    let until = lease["expires_at"].as_str().unwrap();
    assert_eq!((status, &told["code"]), (409, &json!("lease_conflict")));
    assert!(told["detail"].as_str().unwrap().starts_with(&format!("first holds this scope until {until}")), "{told}");

    let nowhere = json!({ "command": "pwd", "cwd": "nowhere" });
    let (status, told) = Server::send(server.inside(&lease, Method::POST, "/exec").json(&nowhere)).await;
    assert_eq!((status, &told["code"]), (404, &json!("file_not_found")));
    assert!(told["detail"].as_str().unwrap().contains("working directory"), "{told}");

    Server::good(server.put(&lease, "notes.txt", "x")).await;
    let listed = Server::good(server.inside(&lease, Method::GET, "/files/list")).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "without a path it is the workspace: {listed}");

    let taken =
        std::process::Command::new(env!("CARGO_BIN_EXE_berth")).arg("serve").env_clear().env("BERTH_DATA_DIR", site.data()).output();
    let taken = taken.unwrap();
    assert!(!taken.status.success());
    assert!(String::from_utf8_lossy(&taken.stderr).contains("another berth uses the data directory"));
}
