//! Explanations on the wire: why something lives, what would end it, when, and what holds that back.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Next, words};
use crate::clock::Time;
use crate::ops::view;

/// One reason why something lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct Because {
    /// Which rule, in one word, such as `lease_active` or `retained`.
    pub rule: String,
    /// Since when it holds.
    #[schema(value_type = Option<words::Timestamp>)]
    pub since: Option<Time>,
    /// Until when, if that is known.
    #[schema(value_type = Option<words::Timestamp>)]
    pub until: Option<Time>,
    /// For a person.
    pub detail: String,
}

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct Happened {
    /// The event's type.
    #[serde(rename = "type")]
    pub type_: String,
    /// When.
    #[schema(value_type = words::Timestamp)]
    pub time: Time,
    /// Who, if it has a name.
    pub actor: Option<String>,
}

/// Why something lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct Explanation {
    /// Whether anything of it lives.
    pub alive: bool,
    /// Every rule that keeps it.
    pub because: Vec<Because>,
    /// What will happen by itself.
    pub next: Next,
    /// Its last events, oldest first.
    pub history: Vec<Happened>,
}

impl From<view::Explanation> for Explanation {
    fn from(explained: view::Explanation) -> Self {
        let because = |b: view::Because| Because { rule: b.rule, since: b.since, until: b.until, detail: b.detail };
        let happened = |h: view::Happened| Happened { type_: h.type_, time: h.time, actor: h.actor };
        Self {
            alive: explained.alive,
            because: explained.because.into_iter().map(because).collect(),
            next: explained.next.into(),
            history: explained.history.into_iter().map(happened).collect(),
        }
    }
}
