//! The two databases and everything in which they differ.
//!
//! SQLite: WAL, one writing connection whose callers are committed together (`batch`), a few that only read, one server by a
//! lock file. PostgreSQL: a pool, `READ COMMITTED`.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, PgConnection, PgPool, Postgres, SqliteConnection, Transaction};

use super::Result;
use super::batch::{Batches, Beginning, Seat};
use super::contact::{Begun, Contact};
use super::log::{self, Log};
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
                let (contact, $c) = t.parts();
                contact.within(async { $body }).await
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
    Sqlite { writers: Batches, readers: Readers },
    Postgres { pool: PgPool, contact: Arc<Contact> },
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

/// A connection to PostgreSQL, and what is known of its server.
pub(super) struct PostgresTx {
    contact: Arc<Contact>,
    on: PostgresOn,
}

pub(super) enum SqliteTx {
    Write(Seat),
    Read(Reader),
}

enum PostgresOn {
    Write(Transaction<'static, Postgres>, Begun),
    Read(PoolConnection<Postgres>),
}

impl SqliteTx {
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Write(seat) => seat.conn(),
            Self::Read(reader) => reader.conn(),
        }
    }
}

impl PostgresTx {
    pub(super) fn parts(&mut self) -> (&Contact, &mut PgConnection) {
        let conn = match &mut self.on {
            PostgresOn::Write(tx, _) => &mut **tx,
            PostgresOn::Read(conn) => &mut **conn,
        };
        (&self.contact, conn)
    }
}

/// How long a request waits for a connection before it is told that storage is unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long connections to PostgreSQL may take to close when a server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long PostgreSQL lets a session sit in a transaction before it gives its locks to others: a server that was paused or cut off
/// holds nobody up for longer.
const IDLE_IN_TRANSACTION_MS: &str = "15000";

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
            // What a savepoint may have to put back is kept in memory; it is no more than what one batch changed.
            let writing = options.clone().pragma("temp_store", "MEMORY").pragma("wal_autocheckpoint", log::TOO_LONG);
            let conn = SqliteConnection::connect_with(&writing).await?;
            let log = Log::new(options.clone().create_if_missing(false));
            let readers = Readers::new(options.create_if_missing(false).pragma("query_only", "ON"));
            Backend::Sqlite { writers: Batches::new(conn, log).await?, readers }
        } else {
            let contact = Arc::new(Contact::new());
            let trust = Arc::clone(&contact);
            let pool = PgPoolOptions::new()
                .max_connections(max_connections)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                // Asked below instead, where what it answers is noticed.
                .test_before_acquire(false)
                .before_acquire(move |conn, known| {
                    let trust = Arc::clone(&trust);
                    Box::pin(async move {
                        if !trust.trusts(known.age) {
                            return Ok(false);
                        }
                        let since = Instant::now();
                        let lives = conn.ping().await.is_ok();
                        trust.asked(lives, since);
                        Ok(lives)
                    })
                })
                .connect_with(PgConnectOptions::from_str(url)?.options([("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS)]))
                .await?;
            Backend::Postgres { pool, contact }
        };
        Ok(Self { backend, offset: Offset::default() })
    }

    /// Brings the schema up to this binary's; safe from several processes at once (an advisory lock on PostgreSQL, the server's
    /// lock file on SQLite).
    pub async fn migrate(&self) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        match &self.backend {
            Backend::Sqlite { writers, .. } => sqlx::migrate!("migrations/sqlite").run(&mut writers.at_rest().await.conn).await,
            Backend::Postgres { pool, .. } => sqlx::migrate!("migrations/postgres").run(pool).await,
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

    /// Begins a transaction that may write. On SQLite it may see what its neighbours wrote and nobody has committed yet; it is
    /// answered with them, and whoever drops it goes on from [`Store::settled`] or [`Store::read`].
    pub async fn begin(&self) -> Result<Tx> {
        let inner = match &self.backend {
            Backend::Sqlite { writers, .. } => Inner::Sqlite(SqliteTx::Write(Box::pin(writers.begin()).await?)),
            Backend::Postgres { pool, contact } => {
                let begun = async {
                    let mut conn = pool.acquire().await?;
                    contact.make_up(&mut conn, self.offset.get()).await?;
                    let begun = contact.begun();
                    Ok(PostgresOn::Write(Transaction::begin(conn, None).await?, begun))
                };
                let on = contact.within(begun).await?;
                Inner::Postgres(PostgresTx { contact: Arc::clone(contact), on })
            }
        };
        Ok(Tx { inner, offset: self.offset.clone() })
    }

    /// On SQLite: a place in line whose first question is to begin with what is returned.
    pub(super) async fn stand(&self) -> Result<Option<(Seat, Beginning)>> {
        match &self.backend {
            Backend::Sqlite { writers, .. } => Ok(Some(Box::pin(writers.stand()).await?)),
            Backend::Postgres { .. } => Ok(None),
        }
    }

    /// A transaction in this place.
    pub(super) fn seated(&self, seat: Seat) -> Tx {
        Tx { inner: Inner::Sqlite(SqliteTx::Write(seat)), offset: self.offset.clone() }
    }

    /// A connection that only reads; each statement sees what was committed when it began, and that is at least what any dropped
    /// transaction has seen.
    pub async fn read(&self) -> Result<Tx> {
        Box::pin(self.settled()).await?;
        let inner = match &self.backend {
            Backend::Sqlite { readers, .. } => Inner::Sqlite(SqliteTx::Read(readers.take(ACQUIRE_TIMEOUT).await?)),
            Backend::Postgres { pool, contact } => {
                let mut conn = contact.within(pool.acquire()).await?;
                // Nobody is told that a time has passed which is about to be made up for; a server that takes no writes is still read.
                Box::pin(contact.make_up(&mut conn, self.offset.get())).await.ok();
                let on = PostgresOn::Read(conn);
                Inner::Postgres(PostgresTx { contact: Arc::clone(contact), on })
            }
        };
        Ok(Tx { inner, offset: self.offset.clone() })
    }

    /// Waits until whatever a dropped transaction may have seen is durable; an error if it never became so. Whoever tells a caller
    /// what it decided in such a transaction waits for this first.
    pub async fn settled(&self) -> Result<()> {
        match &self.backend {
            Backend::Sqlite { writers, .. } => writers.settled(ACQUIRE_TIMEOUT).await,
            Backend::Postgres { .. } => Ok(()),
        }
    }

    /// How many connections are open, and how many of them nobody uses.
    pub fn pool(&self) -> (u32, u32) {
        let (open, idle) = match &self.backend {
            Backend::Sqlite { readers, .. } => readers.count(),
            Backend::Postgres { pool, .. } => (usize::try_from(pool.size()).unwrap_or(usize::MAX), pool.num_idle()),
        };
        let told = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (told(open), told(idle))
    }

    /// Closes every connection; of PostgreSQL's those that answer in time.
    pub async fn close(&self) {
        match &self.backend {
            Backend::Sqlite { writers, readers } => {
                writers.close().await;
                readers.close().await;
            }
            // Whoever waits for a server that is silent would never give its connection back; the server forgets it by itself.
            Backend::Postgres { pool, .. } => {
                let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, pool.close()).await;
            }
        }
    }
}

impl Tx {
    /// Makes everything written durable. An error leaves open whether it is.
    pub async fn commit(self) -> Result<()> {
        match self.inner {
            Inner::Sqlite(SqliteTx::Write(seat)) => Box::pin(seat.commit()).await?,
            Inner::Postgres(PostgresTx { contact, on: PostgresOn::Write(tx, begun) }) => {
                contact.within(tx.commit()).await?;
                contact.wrote(begun);
            }
            Inner::Sqlite(SqliteTx::Read(_)) | Inner::Postgres(PostgresTx { on: PostgresOn::Read(_), .. }) => {}
        }
        Ok(())
    }

    /// The database's time now, read when this is called and so later than every lock taken before. The only clock that
    /// decides who owns what. An error if the database was away since the transaction began.
    pub async fn now(&mut self) -> Result<Time> {
        let millis: i64 = match &mut self.inner {
            Inner::Sqlite(_) => Time::of_this_machine().0,
            Inner::Postgres(t) => {
                let asked = Instant::now();
                let (contact, conn) = t.parts();
                let now = contact.within(sqlx::query_scalar(concat!("SELECT ", time_of!(postgres))).fetch_one(conn)).await?;
                let begun = if let PostgresOn::Write(_, begun) = &t.on { Some(*begun) } else { None };
                t.contact.same(begun, asked)?;
                now
            }
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
