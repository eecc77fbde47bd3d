//! What always holds in a healthy database, beyond what its constraints refuse: each as a count of the rows that break it.

use super::claim::TERM;
use super::{Result, Tx};
use crate::clock::Time;

/// Holds between any two transactions.
const ALWAYS: &[(&str, &str)] = &[
    (
        "a current instance is the one that its sandbox names, at the sandbox's generation",
        "SELECT count(*) FROM instance i JOIN sandbox s ON s.id = i.sandbox_id
         WHERE i.role = 'current' AND (s.instance_id IS NULL OR s.instance_id <> i.id OR s.generation <> i.generation)",
    ),
    (
        "a sandbox names no instance that was retired",
        "SELECT count(*) FROM sandbox s JOIN instance i ON i.id = s.instance_id WHERE i.role <> 'current'",
    ),
    (
        "a live lease is of its sandbox's present or of a lost generation, and never of a later one",
        "SELECT count(*) FROM lease l JOIN sandbox s ON s.id = l.sandbox_id WHERE l.status IN ('pending', 'active') AND l.generation > s.generation",
    ),
    (
        "a lease that waits for a teardown waits for one that goes on",
        "SELECT count(*) FROM lease l JOIN instance i ON i.id = l.instance_id
         WHERE l.status = 'pending_cleanup' AND i.status IN ('destroyed', 'lost')",
    ),
    (
        "the current checkpoint is attached and of its sandbox",
        "SELECT count(*) FROM sandbox s JOIN checkpoint c ON c.id = s.current_checkpoint_id
         WHERE c.status <> 'attached' OR c.sandbox_id <> s.id",
    ),
    (
        "what a checkpoint can be put back from is stored",
        "SELECT count(*) FROM checkpoint c JOIN artifact a ON a.id = c.artifact_id
         WHERE c.status IN ('recorded', 'attached', 'detached') AND a.status <> 'stored'",
    ),
    (
        "what is clean was written no later than it was saved",
        "SELECT count(*) FROM sandbox WHERE synced_seq IS NOT NULL AND synced_seq > workspace_seq",
    ),
];

/// Holds while some server works; `$1` is how long ago something must have happened for it to be overdue.
const IN_TIME: &[(&str, &str)] = &[
    ("a pending lease becomes active or fails", "SELECT count(*) FROM lease WHERE status = 'pending' AND created_at < $1"),
    ("an expired lease is ended", "SELECT count(*) FROM lease WHERE status = 'active' AND expires_at < $1 AND release IS NULL"),
    ("a teardown is tried when it is due", "SELECT count(*) FROM instance WHERE status = 'pending_cleanup' AND cleanup_next_at < $1"),
    (
        "an instance does not stay between two states",
        "SELECT count(*) FROM instance WHERE status IN ('creating', 'starting', 'stopping', 'draining') AND updated_at < $1",
    ),
    ("a deletion is tried when it is due", "SELECT count(*) FROM artifact WHERE status = 'deleting' AND next_attempt_at < $1"),
];

impl Tx {
    /// What is broken: what should hold, and how many rows break it.
    pub async fn broken_always(&mut self) -> Result<Vec<(&'static str, i64)>> {
        let mut broken = Vec::new();
        for (holds, sql) in ALWAYS {
            let count: i64 = on!(self, c => sqlx::query_scalar(*sql).fetch_one(c).await)?;
            broken.push((*holds, count));
        }
        let over: i64 = on!(self, c => sqlx::query_scalar("SELECT count(*) FROM claim WHERE claimed_until > deadline + $1")
            .bind(i64::try_from(TERM.as_millis()).unwrap_or(i64::MAX)).fetch_one(c).await)?;
        broken.push(("a claim is not renewed beyond its work's deadline", over));
        broken.retain(|(_, count)| *count > 0);
        Ok(broken)
    }

    /// What should have happened before this moment and has not: what, and to how many rows.
    pub async fn overdue_since(&mut self, since: Time) -> Result<Vec<(&'static str, i64)>> {
        let mut overdue = Vec::new();
        for (happens, sql) in IN_TIME {
            let count: i64 = on!(self, c => sqlx::query_scalar(*sql).bind(since).fetch_one(c).await)?;
            if count > 0 {
                overdue.push((*happens, count));
            }
        }
        Ok(overdue)
    }
}
