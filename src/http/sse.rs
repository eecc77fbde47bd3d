//! Server-sent events, and the same as lines of JSON.

use std::time::Duration;

use axum::body::Bytes;
use serde::Serialize;

/// The media type of server-sent events.
pub const MEDIA_TYPE: &str = "text/event-stream";
/// After how long without anything else a heartbeat is sent.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// One event. JSON has no line breaks, so its data is one line.
pub fn event(id: Option<i64>, name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("{id}event: {name}\ndata: {data}\n\n"))
}

/// Nothing happened, and everything up to this id was sent.
pub fn heartbeat(id: Option<i64>) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!(": heartbeat\n{id}\n"))
}
