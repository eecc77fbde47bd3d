//! What a database may say went wrong, told in the contract's words.

use std::time::Duration;

use crate::error::{Code, Error};

/// A failure of a statement.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused or could not be reached.
    #[error("database: {}", kind(.0))]
    Database(sqlx::Error),
    /// A guarded write met another state than the one it was decided on; the story is told again from the start.
    #[error("a row changed under a guarded write")]
    Moved,
    /// A neighbour's failure undid the whole batch of writes that this one was in; nothing of it is there.
    #[error("a batch of writes was undone")]
    Undone,
    /// A claim is no longer ours.
    #[error("the claim was taken over")]
    ClaimLost,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl StoreError {
    /// Whether a unique constraint refused an insert; the caller knows which insert it made.
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(e)) if e.is_unique_violation())
    }

    /// Whether a foreign key refused a write.
    pub fn is_foreign_key_violation(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(e)) if e.is_foreign_key_violation())
    }
}

/// A word for logs: never the statement, its values or the database's own text.
pub fn kind(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Database(e) if e.is_unique_violation() => "unique_violation",
        sqlx::Error::Database(e) if e.is_foreign_key_violation() => "foreign_key_violation",
        sqlx::Error::Database(e) if e.is_check_violation() => "check_violation",
        sqlx::Error::Database(_) => "database",
        sqlx::Error::Io(_) => "io",
        sqlx::Error::PoolTimedOut => "pool_timed_out",
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => "decode",
        sqlx::Error::RowNotFound => "row_not_found",
        _ => "other",
    }
}

/// Whether the connection, or the server behind it, is not what it was: closed, shut down, or turned read-only.
pub(super) fn is_broken(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(e) => e.code().is_some_and(|code| code.starts_with("08") || code.starts_with("57P") || code == "25006"),
        _ => false,
    }
}

pub(super) fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::Tls(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Protocol(_) => true,
        // PostgreSQL: connection trouble (08), shutting down (57P), out of resources (53), a server that
        // turned read-only (25006). SQLite: busy (5), locked (6), full (13), I/O (10).
        sqlx::Error::Database(e) => e.code().is_some_and(|code| {
            ["08", "57P", "53"].iter().any(|class| code.starts_with(class) && code.len() == 5)
                || code == "25006"
                || (code.len() < 5 && code.parse::<u32>().is_ok_and(|c| matches!(c & 0xff, 5 | 6 | 10 | 13)))
        }),
        _ => false,
    }
}

/// Whether the database gave up one transaction for another's sake: deadlock or serialization (PostgreSQL's class 40). It is there.
fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(e) if e.code().is_some_and(|code| code.len() == 5 && code.starts_with("40")))
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Database(e) if is_conflict(&e) => Self::from(StoreError::Moved),
            StoreError::Database(e) if is_outage(&e) => {
                tracing::warn!(kind = kind(&e), "the database did not answer");
                Self::new(Code::StorageUnavailable, "The database did not answer; nothing was changed. Send the same request again.")
                    .retry_after(Duration::from_secs(2))
            }
            StoreError::Database(e) => {
                tracing::error!(kind = kind(&e), "a statement failed");
                Self::new(Code::Internal, "A statement failed; nothing was changed.")
            }
            StoreError::Undone => Self::new(
                Code::StorageUnavailable,
                "The database did not keep what was written; nothing was changed. Send the same request again.",
            )
            .retry_after(Duration::from_secs(1)),
            StoreError::Moved | StoreError::ClaimLost => {
                Self::new(Code::StorageUnavailable, "Somebody else changed this at the same moment. Send the same request again.")
                    .retry_after(Duration::from_secs(1))
            }
        }
    }
}
