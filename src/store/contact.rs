//! Contact with a PostgreSQL server: how long it may keep a statement waiting, when it last took a write, and what follows from a time
//! in which it took none.
//!
//! Nobody could renew while it was away, so that time is added to every deadline before anything else is written. Several servers come
//! back at once, so each adds no more than the time since any of them last did. Connections from before the trouble
//! are not used again: behind the same address there may be another server by now.

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::time::error::Elapsed;

use super::error::{is_broken, is_outage};
use crate::clock::Time;

/// How long one statement may take before the database counts as away.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is shorter than this is no outage.
const BLINK: Duration = Duration::from_secs(2);

/// Deadlines that somebody has to meet with a write; `$1` is added, and what had passed by `$2` has passed.
const DEADLINES: &[&str] = &[
    "UPDATE lease SET expires_at = expires_at + $1, max_expires_at = max_expires_at + $1 WHERE status = 'active' AND expires_at > $2",
    "UPDATE lease SET retain_until = retain_until + $1 WHERE status = 'retained' AND retain_until > $2",
    "UPDATE claim SET claimed_until = claimed_until + $1, deadline = deadline + $1 WHERE claimed_until > $2",
    "UPDATE instance SET used_at = used_at + $1 WHERE status IN ('running', 'stopped') AND used_at <= $2",
];

/// What is known of the server.
#[derive(Debug)]
pub(super) struct Contact {
    at: Mutex<At>,
}

/// Where a transaction began, between the outages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    at: Instant,
    made_up: u64,
}

#[derive(Clone, Copy, Debug)]
struct At {
    /// When the last transaction that it took began: its answer may have been held up since.
    wrote: Instant,
    /// Since when it is away, once somebody noticed; what ends late does not make that later.
    away: Option<Instant>,
    /// How many outages were made up for.
    made_up: u64,
    /// When a connection last broke.
    broke: Option<Instant>,
}

impl Contact {
    pub(super) fn new() -> Self {
        Self { at: Mutex::new(At { wrote: Instant::now(), away: None, made_up: 0, broke: None }) }
    }

    /// What the database answers, if it does so in time. On the heap: every verb is made of such statements, and its future would be
    /// several times as large.
    pub(super) fn within<'a, T: 'a>(
        &'a self,
        work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'a,
    ) -> Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>> {
        let work = tokio::time::timeout(PATIENCE, work);
        Box::pin(async move { self.seen(work.await) })
    }

    fn seen<T>(&self, done: Result<Result<T, sqlx::Error>, Elapsed>) -> Result<T, sqlx::Error> {
        let done = done.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
        if let Err(error) = &done
            && is_outage(error)
        {
            let mut at = self.at();
            at.away = at.away.or(Some(at.wrote));
            if is_broken(error) {
                at.broke = Some(Instant::now());
            }
        }
        done
    }

    /// A transaction begins.
    pub(super) fn begun(&self) -> Begun {
        Begun { at: Instant::now(), made_up: self.at().made_up }
    }

    /// It took what was written in a transaction.
    pub(super) fn wrote(&self, begun: Begun) {
        let mut at = self.at();
        at.wrote = at.wrote.max(begun.at);
    }

    /// Refuses to tell the time to a transaction that an outage caught: it would decide by the time after it and by deadlines from
    /// before it. Nobody need have noticed: to whoever was held up it looks like a slow answer. `asked`: when the time was asked for,
    /// which takes no lock.
    pub(super) fn same(&self, begun: Option<Begun>, asked: Instant) -> Result<(), sqlx::Error> {
        let At { wrote, made_up, .. } = *self.at();
        let caught = |begun: Begun| made_up != begun.made_up || (begun.at.elapsed() >= BLINK && wrote < begun.at);
        if asked.elapsed() >= BLINK || begun.is_some_and(caught) {
            return self.seen(Ok(Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))));
        }
        Ok(())
    }

    /// An idle connection was asked whether it lives, which takes no lock. A pool puts another in the place of one that does not, and
    /// waits for one that answers late: neither hides that the server was away.
    pub(super) fn asked(&self, lives: bool, since: Instant) {
        if !lives || since.elapsed() >= BLINK {
            let _ = self.seen::<()>(Ok(Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()))));
        }
    }

    /// Whether a connection of this age may still lead to the server that answers now.
    pub(super) fn trusts(&self, age: Duration) -> bool {
        self.at().broke.is_none_or(|broke| broke.elapsed() > age)
    }

    /// After an outage, before anything else is written: adds its length to every deadline. `offset`: what this store's clock differs
    /// by, in milliseconds.
    pub(super) async fn make_up(&self, conn: &mut PgConnection, offset: i64) -> Result<(), sqlx::Error> {
        let Some(since) = self.at().away else { return Ok(()) };
        let away = since.elapsed();
        if away >= BLINK {
            self.within(add_to_deadlines(conn, away, offset)).await?;
        }
        let mut at = self.at();
        // Whoever else saw it has made up for it meanwhile.
        if at.away == Some(since) {
            (at.wrote, at.away, at.made_up) = (Instant::now(), None, at.made_up + u64::from(away >= BLINK));
        }
        Ok(())
    }

    fn at(&self) -> std::sync::MutexGuard<'_, At> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn add_to_deadlines(conn: &mut PgConnection, away: Duration, offset: i64) -> Result<(), sqlx::Error> {
    use sqlx::Connection;
    let mut tx = conn.begin().await?;
    // One server after the other.
    let made_up: &str = "SELECT made_up_until FROM deployment WHERE one = 1 FOR UPDATE";
    let made_up: Option<Time> = sqlx::query_scalar(made_up).fetch_one(&mut *tx).await?;
    let now: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetch_one(&mut *tx).await?;
    let now = Time(now + offset);
    let away = away.min(made_up.map_or(away, |until| now.since(until)));
    sqlx::query("UPDATE deployment SET made_up_until = $1, alive_at = $1 WHERE one = 1").bind(now).execute(&mut *tx).await?;
    if away >= BLINK {
        let (added, since) = (i64::try_from(away.as_millis()).unwrap_or(i64::MAX), now.before(away));
        for deadline in DEADLINES {
            sqlx::query(*deadline).bind(added).bind(since).execute(&mut *tx).await?;
        }
        tracing::warn!(away_ms = added, "the database was away; the time was added to every deadline");
    }
    tx.commit().await
}
