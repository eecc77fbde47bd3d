//! Time as Berth stores and shows it: whole milliseconds since the Unix epoch.
//!
//! Ownership decisions never ask this module what time it is; they ask the database (`store::Tx::now`), and only the store asks for it
//! here, for the database that has no clock of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment, in milliseconds since the Unix epoch; shown as RFC 3339 UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, sqlx::Type)]
#[sqlx(transparent)]
pub struct Time(pub i64);

impl Time {
    /// What this machine's clock says: the time of the embedded database, which has no other.
    #[expect(clippy::disallowed_methods, reason = "the one place that asks, for a database that would ask the same clock")]
    pub(crate) fn of_this_machine() -> Self {
        Self(Utc::now().timestamp_millis())
    }

    /// This moment plus a span; saturates instead of overflowing.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// This moment minus a span; saturates instead of overflowing.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// How long from `earlier` to this moment; zero when it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339.
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text).ok().map(|t| Self(t.timestamp_millis()))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = DateTime::<Utc>::from_timestamp_millis(self.0).unwrap_or(DateTime::<Utc>::MAX_UTC);
        f.write_str(&shown.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("is not an RFC 3339 time"))
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The offset that tests add to the database's time; always zero in production.
#[derive(Clone, Debug, Default)]
pub struct Offset(Arc<AtomicI64>);

impl Offset {
    /// The present offset in milliseconds.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Moves this store's time forward, for tests that must not wait.
    #[cfg(any(test, feature = "testing"))]
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }
}
