//! Whether a container ran out of memory: the engine has no field for it, but tells it as an event.

use serde::Deserialize;
use serde_json::json;

use super::Docker;
use super::engine::LOOK;
use crate::clock::Time;

/// How far back an event is looked for, in seconds. A command that was killed for it is looked at right after.
const BACK: i64 = 10;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Clock {
    system_time: String,
}

impl Docker {
    /// Whether the kernel has just killed something in this container for want of memory. When in doubt, it has not.
    pub(super) async fn ran_out_of_memory(&self, container: &str) -> bool {
        let Ok(clock) = self.engine.get::<Clock>("/info", &[]).await else { return false };
        let Some(now) = Time::parse(&clock.system_time) else { return false };
        let (since, until) = ((now.0 / 1000 - BACK).to_string(), (now.0 / 1000 + 1).to_string());
        let filters = json!({ "container": [container], "event": ["oom"] }).to_string();
        let query = [("since", since.as_str()), ("until", &until), ("filters", &filters)];
        let Ok(request) = self.engine.request(reqwest::Method::GET, "/events", &query).await else { return false };
        self.engine.answer(request, LOOK).await.is_ok_and(|events| !events.trim_ascii().is_empty())
    }
}
