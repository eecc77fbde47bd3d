//! Copies SQLite's log into the database's file beside the writer, so that no commit waits for it.
//!
//! The writer does it too once the log is long, and finds little left to copy. Only then does the log begin anew, so under a steady
//! load it grows to that length and no further.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::Mutex;

/// After how many commits the log is copied.
const EVERY: u64 = 64;
/// How long the log is when the writer sees to it, in pages of 4 KiB.
pub(super) const LONG: &str = "8000";

/// A connection for nothing else, opened when it is first needed.
pub(super) struct Log {
    options: SqliteConnectOptions,
    conn: Mutex<Option<SqliteConnection>>,
}

impl Log {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        Self { options, conn: Mutex::default() }
    }

    /// After the commit of this number: copies what there is, unless somebody is at it.
    pub(super) async fn copy(&self, commit: u64) {
        if !commit.is_multiple_of(EVERY) {
            return;
        }
        let Ok(mut conn) = self.conn.try_lock() else { return };
        if conn.is_none() {
            *conn = SqliteConnection::connect_with(&self.options).await.ok();
        }
        if let Some(conn) = conn.as_mut() {
            // What fails here is left to the writer, who tells it.
            sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(conn).await.ok();
        }
    }

    pub(super) async fn close(&self) {
        if let Some(conn) = self.conn.lock().await.take() {
            conn.close().await.ok();
        }
    }
}
