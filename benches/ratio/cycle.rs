//! One holder after another acquires a new sandbox of the memory provider and releases it, over HTTP.

use std::time::Duration;

use super::{Connection, Server, per_second, request};

/// How many connections work at once.
pub const CONNECTIONS: usize = 32;
/// How long one half of a pair lasts.
pub const SPAN: Duration = Duration::from_secs(2);

/// The connections of a benchmark.
pub async fn connections(server: &Server) -> Vec<Connection> {
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        open.push(Connection::open(server.address).await);
    }
    open
}

/// Acquires and releases per second, and how long the slowest took.
pub async fn rate(connections: Vec<Connection>) -> (f64, Vec<Connection>, Duration) {
    per_second(connections, SPAN, |mut connection| async move {
        let wanted = r#"{"environment":"default","holder":"cycle"}"#;
        let lease = connection.json(&request("POST", "/v1/leases", wanted)).await;
        assert_eq!(lease["status"], "active", "{lease}");
        let path = format!("/v1/leases/{}/release", lease["id"].as_str().unwrap());
        let over = connection.json(&request("POST", &path, "{}")).await;
        assert_eq!(over["status"], "released", "{over}");
        connection
    })
    .await
}
