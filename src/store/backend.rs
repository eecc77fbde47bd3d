//! The two databases and everything in which they differ.
//!
//! SQLite: WAL, one writing connection handed round by a fair mutex (`BEGIN IMMEDIATE`), a few that only read, one server
//! by a lock file. PostgreSQL: a pool, `READ COMMITTED`.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, PgConnection, PgPool, Postgres, SqliteConnection, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Result;
use super::readers::{Reader, Readers};
use crate::clock::{Offset, Time};

/// Runs one text on whichever database this is; `$c` is the connection.
macro_rules! on {
    ($tx:expr, $c:ident => $body:expr) => {
        match &mut $tx.inner {
            $crate::store::backend::Inner::Sqlite(t) => {
                let $c = t.conn();
                $body
            }
            $crate::store::backend::Inner::Postgres(t) => {
                let $c = t.conn();
                $body
            }
        }
    };
}

/// The database's time in milliseconds, as each of them says it.
macro_rules! time_of {
    (sqlite) => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
    (postgres) => {
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    offset: Offset,
}

#[derive(Clone)]
enum Backend {
    Sqlite { writer: Arc<Mutex<Writer>>, readers: Readers },
    Postgres(PgPool),
}

/// The one writing connection. `open` is set before `BEGIN` is sent and cleared after the end is confirmed, so that whoever
/// holds the connection next rolls back what a dropped future left behind.
pub struct Writer {
    conn: SqliteConnection,
    open: bool,
    /// Whether commits wait for the disk; none while that is being changed.
    synced: Option<bool>,
}

impl Writer {
    /// Lets commits wait for the disk, or not; between transactions only.
    async fn sync(&mut self, synced: bool) -> Result<()> {
        if self.synced != Some(synced) {
            self.synced = None;
            let text = if synced { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            sqlx::query(text).execute(&mut self.conn).await?;
            self.synced = Some(synced);
        }
        Ok(())
    }
}

/// A transaction, or for reads a connection. Dropping it uncommitted changes nothing.
pub struct Tx {
    pub(super) inner: Inner,
    offset: Offset,
}

pub(super) enum Inner {
    Sqlite(SqliteTx),
    Postgres(PostgresTx),
}

pub(super) enum SqliteTx {
    Write(OwnedMutexGuard<Writer>),
    Read(Reader),
}

pub(super) enum PostgresTx {
    Write(Transaction<'static, Postgres>),
    Read(PoolConnection<Postgres>),
}

impl SqliteTx {
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Write(writer) => &mut writer.conn,
            Self::Read(reader) => reader.conn(),
        }
    }
}

impl PostgresTx {
    pub(super) fn conn(&mut self) -> &mut PgConnection {
        match self {
            Self::Write(tx) => tx,
            Self::Read(conn) => conn,
        }
    }
}

/// How long a request waits for a connection before it is told that storage is unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Connects to `sqlite:<path>` or `postgres://…`; nothing is created but SQLite's file.
    pub async fn connect(url: &str, max_connections: u32) -> Result<Self> {
        let backend = if url.starts_with("sqlite:") {
            let options = SqliteConnectOptions::from_str(url)?
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .foreign_keys(true)
                .busy_timeout(Duration::from_secs(5));
            let conn = SqliteConnection::connect_with(&options).await?;
            let readers = Readers::new(options.create_if_missing(false).pragma("query_only", "ON"));
            Backend::Sqlite { writer: Arc::new(Mutex::new(Writer { conn, open: false, synced: Some(true) })), readers }
        } else {
            let pool = PgPoolOptions::new()
                .max_connections(max_connections)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .connect_with(PgConnectOptions::from_str(url)?)
                .await?;
            Backend::Postgres(pool)
        };
        Ok(Self { backend, offset: Offset::default() })
    }

    /// Brings the schema up to this binary's; safe from several processes at once (an advisory lock on PostgreSQL, the server's
    /// lock file on SQLite).
    pub async fn migrate(&self) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        match &self.backend {
            Backend::Sqlite { writer, .. } => sqlx::migrate!("migrations/sqlite").run(&mut writer.lock().await.conn).await,
            Backend::Postgres(pool) => sqlx::migrate!("migrations/postgres").run(pool).await,
        }
    }

    /// The migrations of this binary that the database lacks, as `NNNN name`.
    pub async fn pending_migrations(&self) -> Result<Vec<String>> {
        let mut tx = self.read().await?;
        let known = if self.is_sqlite() { sqlx::migrate!("migrations/sqlite") } else { sqlx::migrate!("migrations/postgres") };
        let applied: std::result::Result<Vec<i64>, sqlx::Error> =
            on!(tx, c => sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version").fetch_all(c).await);
        // A database that was never migrated has no such table.
        let applied = applied.unwrap_or_default();
        let lacks = known.iter().filter(|m| !applied.contains(&m.version));
        Ok(lacks.map(|m| format!("{:04} {}", m.version, m.description)).collect())
    }

    /// Whether this is the embedded database, with its one server.
    pub fn is_sqlite(&self) -> bool {
        matches!(self.backend, Backend::Sqlite { .. })
    }

    /// The offset tests move this store's time by.
    pub fn offset(&self) -> &Offset {
        &self.offset
    }

    /// Begins a transaction that may write.
    pub async fn begin(&self) -> Result<Tx> {
        self.begin_synced(true).await
    }

    /// Begins a transaction whose commit does not wait for the disk. A server that dies loses nothing of it; a machine that loses
    /// power may lose the whole of it, and nothing that was committed before. Only for what may safely be taken for unknown then.
    pub async fn begin_unsynced(&self) -> Result<Tx> {
        self.begin_synced(false).await
    }

    async fn begin_synced(&self, synced: bool) -> Result<Tx> {
        let inner = match &self.backend {
            Backend::Sqlite { writer, .. } => {
                let mut writer = Arc::clone(writer).lock_owned().await;
                if writer.open {
                    sqlx::query("ROLLBACK").execute(&mut writer.conn).await.ok();
                }
                writer.sync(synced).await?;
                writer.open = true;
                sqlx::query("BEGIN IMMEDIATE").execute(&mut writer.conn).await?;
                Inner::Sqlite(SqliteTx::Write(writer))
            }
            Backend::Postgres(pool) => {
                let mut tx = pool.begin_with("BEGIN").await?;
                if !synced {
                    sqlx::query("SET LOCAL synchronous_commit = off").execute(&mut *tx).await?;
                }
                Inner::Postgres(PostgresTx::Write(tx))
            }
        };
        Ok(Tx { inner, offset: self.offset.clone() })
    }

    /// A connection that only reads; each statement sees what was committed when it began.
    pub async fn read(&self) -> Result<Tx> {
        let inner = match &self.backend {
            Backend::Sqlite { readers, .. } => Inner::Sqlite(SqliteTx::Read(readers.take(ACQUIRE_TIMEOUT).await?)),
            Backend::Postgres(pool) => Inner::Postgres(PostgresTx::Read(pool.acquire().await?)),
        };
        Ok(Tx { inner, offset: self.offset.clone() })
    }

    /// How many connections are open, and how many of them nobody uses.
    pub fn pool(&self) -> (u32, u32) {
        let (open, idle) = match &self.backend {
            Backend::Sqlite { readers, .. } => readers.count(),
            Backend::Postgres(pool) => (usize::try_from(pool.size()).unwrap_or(usize::MAX), pool.num_idle()),
        };
        let told = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (told(open), told(idle))
    }

    /// Closes every connection.
    pub async fn close(&self) {
        match &self.backend {
            Backend::Sqlite { readers, .. } => readers.close().await,
            Backend::Postgres(pool) => pool.close().await,
        }
    }
}

impl Tx {
    /// Makes everything written durable. An error leaves open whether it is.
    pub async fn commit(self) -> Result<()> {
        match self.inner {
            Inner::Sqlite(SqliteTx::Write(mut writer)) => {
                sqlx::query("COMMIT").execute(&mut writer.conn).await?;
                writer.open = false;
            }
            Inner::Postgres(PostgresTx::Write(tx)) => tx.commit().await?,
            Inner::Sqlite(SqliteTx::Read(_)) | Inner::Postgres(PostgresTx::Read(_)) => {}
        }
        Ok(())
    }

    /// The database's time now, read when this is called and so later than every lock taken before. The only clock that
    /// decides who owns what.
    pub async fn now(&mut self) -> Result<Time> {
        let millis: i64 = match &mut self.inner {
            Inner::Sqlite(t) => sqlx::query_scalar(concat!("SELECT ", time_of!(sqlite))).fetch_one(t.conn()).await?,
            Inner::Postgres(t) => sqlx::query_scalar(concat!("SELECT ", time_of!(postgres))).fetch_one(t.conn()).await?,
        };
        Ok(self.moved(Time(millis)))
    }
}

impl Tx {
    /// A time of the database, as this store's clock says it.
    pub(super) fn moved(&self, time: Time) -> Time {
        Time(time.0 + self.offset.get())
    }

    /// Whether this is SQLite; only for the few texts that cannot be one.
    pub(super) fn is_sqlite(&self) -> bool {
        matches!(self.inner, Inner::Sqlite(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn level(tx: &mut Tx) -> i64 {
        match &mut tx.inner {
            Inner::Sqlite(t) => sqlx::query_scalar("PRAGMA synchronous").fetch_one(t.conn()).await.unwrap(),
            Inner::Postgres(_) => unreachable!("this test has a file"),
        }
    }

    #[tokio::test]
    async fn only_what_may_be_lost_does_not_wait_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::connect(&format!("sqlite:{}", dir.path().join("db").display()), 2).await.unwrap();
        let (normal, full) = (1, 2);
        assert_eq!(level(&mut store.begin().await.unwrap()).await, full);
        // Given up and committed alike, it is the next one's own word that counts.
        assert_eq!(level(&mut store.begin_unsynced().await.unwrap()).await, normal);
        let mut tx = store.begin().await.unwrap();
        assert_eq!(level(&mut tx).await, full);
        tx.commit().await.unwrap();
        let mut tx = store.begin_unsynced().await.unwrap();
        assert_eq!(level(&mut tx).await, normal);
        tx.commit().await.unwrap();
        assert_eq!(level(&mut store.begin().await.unwrap()).await, full);
    }
}
