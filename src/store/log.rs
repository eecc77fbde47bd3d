//! Copies SQLite's log into the database's file beside the writer, so that no commit waits for it.
//!
//! The log begins anew only when all of it is copied and the file is synced, and under a steady load it never is. So once it is long,
//! the file is synced beside the writer, and the rest, which is little by then, is copied while nobody writes.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::fs::File;
use tokio::sync::{Mutex, OnceCell};

/// After how many commits the log is copied.
const EVERY: u64 = 256;
/// How long the log may be before it is to begin anew, in pages of 4 KiB.
const LONG: i64 = 8000;
/// How long it may become before the writer sees to it, whoever waits; only if copying beside it fails.
pub(super) const TOO_LONG: &str = "32000";

/// A connection for nothing else, opened when it is first needed.
pub(super) struct Log {
    options: SqliteConnectOptions,
    conn: Mutex<Option<SqliteConnection>>,
    /// The database's file, opened once and kept: to close it would take SQLite's locks on it from this whole process.
    file: OnceCell<File>,
}

impl Log {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        Self { options, conn: Mutex::default(), file: OnceCell::new() }
    }

    /// After the commit of this number: copies what there is, unless somebody is at it. True when the rest is to be copied while
    /// nobody writes.
    pub(super) async fn copy(&self, commit: u64) -> bool {
        if !commit.is_multiple_of(EVERY) || self.copy_now().await < LONG {
            return false;
        }
        // A copy that the writer has overtaken leaves the file unsynced. What fails here is left to the last copy.
        if let Ok(file) = self.file.get_or_try_init(|| File::open(self.options.get_filename())).await {
            file.sync_data().await.ok();
        }
        true
    }

    /// Copies what there is, and says how long the log is.
    pub(super) async fn copy_now(&self) -> i64 {
        let Ok(mut conn) = self.conn.try_lock() else { return 0 };
        if conn.is_none() {
            *conn = SqliteConnection::connect_with(&self.options).await.ok();
        }
        let Some(conn) = conn.as_mut() else { return 0 };
        // What fails here is left to the writer, who tells it.
        let copied = sqlx::query_as::<_, (i64, i64, i64)>("PRAGMA wal_checkpoint(PASSIVE)").fetch_one(conn).await;
        copied.map_or(0, |(_, length, _)| length)
    }

    pub(super) async fn close(&self) {
        if let Some(conn) = self.conn.lock().await.take() {
            conn.close().await.ok();
        }
    }
}
