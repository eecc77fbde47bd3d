//! What callers and providers confide is nowhere else: no log at its most talkative, no row, no event, no problem, no metric.

use std::io;
use std::sync::{Arc, Mutex};

use berth::provider::Kind;
use berth::provider::faults::{CAUSE, Fault, Verb};
use reqwest::Method;
use serde_json::{Value, json};

use crate::both;
use crate::harness::Db;
use crate::harness::server::{KEY, Server, Site};

const ENV: &str = "canary-in-the-environment-7f3a";
const STDIN: &str = "canary-on-standard-input-7f3a";
const CONTENT: &str = "canary-in-a-file-7f3a";
const PATH: &str = "canary-as-a-path-7f3a";
const OUTPUT: &str = "canary-in-the-output-7f3a";
const SCOPE: &str = "canary-in-a-scope-7f3a";
const METADATA: &str = "canary-in-metadata-7f3a";
const SECRET: &str = "canary-as-a-secret-7f3a";
const SEAL: &str = "canary-that-seals-the-secrets-7f3a-7f3a";
const HEADER: &str = "canary-in-a-header-7f3a";

/// A whole life with a canary in everything a caller says; returns the secrets it was given.
async fn live(server: &Server) -> Vec<String> {
    Server::good(server.ask(Method::PUT, "/v1/secrets/canary").json(&json!({ "value": SECRET }))).await;
    let config = json!({ "env": { "SEALED": { "secret_ref": { "name": "canary" } } } });
    let environment = json!({ "name": "confided", "provider": "local", "config": config });
    Server::good(server.ask(Method::POST, "/v1/environments").json(&environment)).await;
    let wanted = json!({ "environment": "confided", "holder": "run-1", "scope": { "session": SCOPE }, "metadata": { "note": METADATA } });
    let lease = Server::good(server.ask(Method::POST, "/v1/leases").header("X-Anything", HEADER).json(&wanted)).await;
    let token = lease["token"].as_str().unwrap().to_owned();
    // Proves that environment and input arrive, without saying them.
    let script = "[ \"${#SEALED}\" = 23 ] && [ \"${#SECRET}\" = 30 ] && [ \"$(cat | wc -c)\" = 29 ]";
    let command = json!({ "script": script, "env": { "SECRET": ENV }, "stdin": STDIN });
    let ran = Server::good(server.inside(&lease, Method::POST, "/exec").header("Idempotency-Key", "canary-1").json(&command)).await;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    let streamed = json!({ "script": format!("echo {OUTPUT}"), "env": { "SECRET": ENV } });
    let stream = server.inside(&lease, Method::POST, "/exec/stream").json(&streamed).send().await.unwrap().text().await.unwrap();
    assert!(stream.contains(OUTPUT));
    Server::good(server.put(&lease, PATH, CONTENT)).await;
    assert_eq!(server.file(&lease, PATH).await.as_deref(), Some(CONTENT));
    Server::good(server.inside(&lease, Method::POST, "/checkpoints").json(&json!({}))).await;
    let key = Server::good(server.ask(Method::POST, "/v1/api-keys").json(&json!({ "name": "k", "scopes": ["read"] }))).await;
    // Refusals speak of what they refuse.
    for (path, body) in
        [("/exec", json!({ "script": 7, "env": { "SECRET": ENV } })), ("/exec", json!({ "script": ENV, "cwd": "../../.." }))]
    {
        let (status, _) = Server::send(server.inside(&lease, Method::POST, path).json(&body)).await;
        assert!((400..500).contains(&status));
    }
    let stranger = reqwest::Client::builder().no_proxy().build().unwrap().get(format!("{}/v1/whoami", server.url));
    assert_eq!(Server::send(stranger.bearer_auth(format!("berth_sk_{ENV}"))).await.0, 401);
    Server::good(server.inside(&lease, Method::POST, "/release").json(&json!({ "outcome": "succeeded" }))).await;
    vec![token, key["secret"].as_str().unwrap().to_owned(), KEY.to_owned()]
}

fn nothing_of(what: &[&str], place: &str, text: &str) {
    for canary in what {
        assert!(!text.contains(canary), "{place} says {canary}");
    }
}

async fn told_in_confidence(db: Db) {
    let site = Site::new(db).await;
    let log = site.data().with_file_name("log");
    let server = site.serve_and_log(&log, &[("BERTH_SECRET_KEY", SEAL)]).await;
    let secrets = [live(&server).await, vec![SEAL.to_owned()]].concat();
    let confided = [&[ENV, STDIN, CONTENT, SECRET], &secrets.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat();
    let never_told = [&confided[..], &[PATH, OUTPUT, SCOPE, METADATA]].concat();
    for path in ["/v1/events?limit=100", "/metrics", "/v1/background"] {
        let text = server.ask(Method::GET, path).send().await.unwrap().text().await.unwrap();
        assert!(text.len() > 100, "{path}: {text}");
        nothing_of(&never_told, path, &text);
    }
    let rows = site.rows().await;
    assert!(rows.contains(SCOPE) && rows.contains(METADATA), "the rows are read: both are theirs to keep");
    nothing_of(&confided, "a row", &rows);
    assert!(server.stop().await.success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("/v1/leases/{id}/exec"), "the log is read");
    nothing_of(&[&never_told[..], &[HEADER]].concat(), "the log", &log);
}

#[tokio::test]
async fn what_callers_confide_is_nowhere_else_sqlite() {
    told_in_confidence(Db::Sqlite).await;
}

#[tokio::test]
async fn what_callers_confide_is_nowhere_else_postgres() {
    told_in_confidence(Db::Postgres).await;
}

/// Everything this process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

both! {
    async fn what_a_provider_says_in_its_own_words_is_nowhere(world) {
        let log = Log::default();
        let writer = log.clone();
        let logs = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
        // A process of its own runs each test where it counts; where it does not, another test's log is as good.
        let ours = logs.try_init().is_ok();
        let mut answers = String::new();
        for (verb, path, body) in [
            (Verb::Exec, "exec", json!({ "command": "true" })),
            (Verb::ReadTree, "checkpoints", json!({})),
            (Verb::ReadTree, "release", json!({})),
        ] {
            for kind in [Kind::Refused, Kind::Transient, Kind::Indeterminate, Kind::Invalid] {
                let lease = world.acquire("h", path).await.unwrap();
                world.faults.next(verb, Fault::FailBefore(kind));
                let headers = [("berth-generation", "1")];
                let at = format!("/v1/leases/{}/{path}", lease.lease.id);
                let said = world.ask_with(crate::harness::BOOTSTRAP, "POST", &at, &headers, body.clone()).await;
                answers.push_str(&said.body.to_string());
                world.faults.clear();
                world.settle().await;
                world.delete(&lease).await.unwrap();
            }
        }
        for kind in [Kind::Refused, Kind::Indeterminate] {
            world.faults.next(Verb::Ensure, Fault::FailBefore(kind));
            let wanted = json!({ "environment": "default", "holder": "h", "scope": { "session": "ensure" } });
            answers.push_str(&world.ask("POST", "/v1/leases", wanted).await.body.to_string());
            world.faults.clear();
            world.settle().await;
        }
        for path in ["/v1/events?limit=100", "/v1/leases?limit=100", "/v1/instances?limit=100"] {
            answers.push_str(&world.ask("GET", path, Value::Null).await.ok(200).to_string());
        }
        assert!(answers.contains("provider_"), "failures were told: {answers}");
        nothing_of(&[CAUSE], "an answer", &answers);
        nothing_of(&[CAUSE], "a row", &crate::harness::client::rows_of(&world.url).await);
        let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
        assert!(!ours || logged.len() > 1000, "the log is read");
        nothing_of(&[CAUSE], "the log", &logged);
    }
}
