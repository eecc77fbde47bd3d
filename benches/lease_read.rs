//! Scenario 3: `GET /v1/leases/{id}` from 32 connections, against a bare axum server that answers JSON of the same size.
#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

mod ratio;

use std::process::{Command, ExitCode};
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use ratio::{Connection, PAIRS, Scenario, Server, per_second, request};
use serde_json::Value;

const CONNECTIONS: usize = 32;
const SPAN: Duration = Duration::from_millis(1500);
/// In whose environment this program is the bare server, and what it answers.
const BARE: &str = "BERTH_BENCH_BARE_ANSWER";

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(answer) = std::env::var(BARE) {
        return bare(&answer).await;
    }
    let data = tempfile::tempdir().unwrap();
    let berth = Server::berth(data.path(), &[("BERTH_PROVIDERS", "memory")]);
    let mut first = Connection::open(berth.address).await;
    let wanted = r#"{"environment":"default","holder":"reader","scope":{"session":"read"}}"#;
    let lease = first.json(&request("POST", "/v1/leases", wanted)).await;
    let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
    let answer = first.json(&request("GET", &path, "")).await;
    let limit = Server::start(Command::new(std::env::current_exe().unwrap()).env(BARE, answer.to_string()));

    let ask = request("GET", &path, "");
    let (mut ours, mut theirs) = (connections(&berth).await, connections(&limit).await);
    let mut pairs = Vec::new();
    for pair in 0..=PAIRS {
        let (our_rate, kept) = rate(ours, &ask).await;
        let (their_rate, also_kept) = rate(theirs, &ask).await;
        (ours, theirs) = (kept, also_kept);
        // The first pair warms both up.
        if pair > 0 {
            pairs.push((our_rate, their_rate));
        }
    }
    let scenario = Scenario { name: "3 lease read", must: Some(0.30), target: 0.60, unit: "requests/s", more_is_better: true };
    scenario.report(&pairs)
}

async fn connections(server: &Server) -> Vec<Connection> {
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        open.push(Connection::open(server.address).await);
    }
    open
}

async fn rate(connections: Vec<Connection>, ask: &[u8]) -> (f64, Vec<Connection>) {
    let ask = ask.to_vec();
    let step = move |mut connection: Connection| {
        let ask = ask.clone();
        async move {
            let (status, _) = connection.send(&ask).await;
            assert_eq!(status, 200);
            connection
        }
    };
    let (rate, kept, _) = per_second(connections, SPAN, step).await;
    (rate, kept)
}

/// Answers any path with the same JSON, serialized anew each time.
async fn bare(answer: &str) -> ExitCode {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let routes = Router::new().route("/v1/leases/{id}", get(move || std::future::ready(Json(answer.clone()))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("bare axum listens on http://{}", listener.local_addr().unwrap());
    axum::serve(listener, routes).await.unwrap();
    ExitCode::SUCCESS
}
