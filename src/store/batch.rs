//! Group commit: one writing connection is passed round by a fair mutex, each caller works in a savepoint of its own, and one
//! commit answers everybody who was in line meanwhile.
//!
//! Whoever ends well leaves its savepoint as it is and waits; the next in line nests its own in it, and a task that stands behind
//! everybody commits. Whoever is dropped leaves a savepoint that the next in line rolls back. What becomes of a savepoint is written
//! down before its holder lets go, with no await between, and that one is being opened before it is asked for: a future may be
//! dropped anywhere.
//!
//! A caller may have seen what a neighbour wrote and nobody has committed yet. If it ends well it is answered with that neighbour;
//! if it leaves without writing, [`Batches::settled`] is what everything that it says or does next waits for.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};
use tokio_util::task::TaskTracker;

use super::Result;
use super::error::StoreError;
use super::log::Log;

/// What a batch came to, for one of its members; nothing is sent to those whom a neighbour's failure undid.
type Answer = std::result::Result<(), sqlx::Error>;

/// The line before the one writing connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct Batches(Arc<Shared>);

struct Shared {
    writer: Arc<Mutex<Writer>>,
    commits: TaskTracker,
    log: Log,
    /// The last batch that somebody left without writing, having seen what others wrote.
    seen: AtomicU64,
    ended: watch::Sender<Ended>,
}

/// How far the batches have come.
#[derive(Clone, Copy, Default)]
struct Ended {
    last: u64,
    last_undone: u64,
}

/// What the connection is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No transaction is open.
    Rest,
    /// A savepoint was asked for; nothing was written since the last one that is to stay.
    Opening,
    /// The innermost savepoint is somebody's who has not said yet that it is to stay.
    Open,
    /// Every savepoint is to stay.
    Kept,
}

/// What a member's first question begins with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beginning {
    /// It is a batch's first.
    Batch,
    /// It is the first beside the one that has no savepoint.
    Second,
    /// The former savepoint is given up in the same breath: what a write costs grows with how many are open.
    Next,
}

/// A first question behind what begins it.
macro_rules! begun {
    ($beginning:expr, $question:expr) => {
        match $beginning {
            $crate::store::batch::Beginning::Batch => concat!("BEGIN IMMEDIATE; ", $question),
            $crate::store::batch::Beginning::Second => concat!("SAVEPOINT member; ", $question),
            $crate::store::batch::Beginning::Next => concat!("RELEASE member; SAVEPOINT member; ", $question),
        }
    };
}
pub(super) use begun;

/// The connection, and what it is in the middle of.
pub(super) struct Writer {
    pub(super) conn: SqliteConnection,
    phase: Phase,
    batch: u64,
    /// Whether a savepoint is open; the first member of a batch has none and is the transaction itself.
    nested: bool,
    /// Members that ended well.
    waiting: Vec<oneshot::Sender<Answer>>,
    /// How many members are committed alone, because a batch failed and nobody knows whose fault it was.
    alone: usize,
    /// Set by the database when it ended the transaction by itself, as it may when the disk is full.
    lost: Arc<AtomicBool>,
}

/// A place in a batch, with the connection. Dropping it undoes what was written from it.
pub(super) struct Seat {
    writer: OwnedMutexGuard<Writer>,
    shared: Arc<Shared>,
}

impl Batches {
    /// Takes the connection over.
    pub(super) async fn new(mut conn: SqliteConnection, log: Log) -> Result<Self> {
        let lost = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&lost);
        conn.lock_handle().await?.set_rollback_hook(move || flag.store(true, Ordering::SeqCst));
        let writer = Writer { conn, phase: Phase::Rest, batch: 0, nested: false, waiting: Vec::new(), alone: 0, lost };
        Ok(Self(Arc::new(Shared {
            writer: Arc::new(Mutex::new(writer)),
            commits: TaskTracker::new(),
            log,
            seen: AtomicU64::new(0),
            ended: watch::Sender::new(Ended::default()),
        })))
    }

    /// Stands in line, and begins.
    pub(super) async fn begin(&self) -> Result<Seat> {
        let (mut seat, beginning) = self.stand().await?;
        seat.writer.execute(begun!(beginning, "")).await?;
        seat.begun();
        Ok(seat)
    }

    /// Stands in line, and leaves it to the caller's first question to begin: each question costs a turn of SQLite's thread.
    pub(super) async fn stand(&self) -> Result<(Seat, Beginning)> {
        let mut writer = Arc::clone(&self.0.writer).lock_owned().await;
        let beginning = writer.stand(&self.0.ended).await;
        Ok((Seat { writer, shared: Arc::clone(&self.0) }, beginning))
    }

    /// The connection between two batches, for what brings its own transactions.
    pub(super) async fn at_rest(&self) -> OwnedMutexGuard<Writer> {
        let mut writer = Arc::clone(&self.0.writer).lock_owned().await;
        writer.close(&self.0.ended).await;
        writer
    }

    /// Waits, at most `patience`, until what anybody may have seen and left is durable; an error if it never became so.
    pub(super) async fn settled(&self, patience: Duration) -> Result<()> {
        let seen = self.0.seen.load(Ordering::SeqCst);
        if self.0.ended.borrow().last >= seen {
            return Ok(());
        }
        let mut ended = self.0.ended.subscribe();
        let waited = tokio::time::timeout(patience, ended.wait_for(|ended| ended.last >= seen)).await;
        let settled = waited.is_ok_and(|ended| ended.is_ok_and(|ended| ended.last_undone < seen));
        if settled { Ok(()) } else { Err(StoreError::Undone) }
    }

    /// Waits until every member that ended well is answered.
    pub(super) async fn close(&self) {
        self.0.commits.close();
        self.0.commits.wait().await;
        self.0.log.close().await;
    }

    #[cfg(test)]
    fn batches(&self) -> u64 {
        self.0.ended.borrow().last
    }
}

impl Seat {
    /// The connection, inside this seat's savepoint.
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.writer.conn
    }

    /// Notes that the first question was answered, and the savepoint is open.
    pub(super) fn begun(&mut self) {
        if self.writer.phase == Phase::Opening {
            (self.writer.phase, self.writer.nested) = (Phase::Open, true);
        }
    }

    /// Ends well, and waits until it is durable with its neighbours.
    pub(super) async fn commit(mut self) -> Result<()> {
        if self.writer.is_lost() {
            return Err(StoreError::Undone);
        }
        let (told, answer) = oneshot::channel();
        let first = self.writer.waiting.is_empty();
        self.writer.waiting.push(told);
        self.writer.phase = Phase::Kept;
        let shared = Arc::clone(&self.shared);
        if self.writer.alone > 0 {
            self.writer.alone -= 1;
            shared.clone().commits.spawn(async move { self.writer.close(&shared.ended).await });
        } else {
            drop(self);
            if first {
                let line = Arc::clone(&shared.writer);
                shared.clone().commits.spawn(async move {
                    let mut writer = line.lock_owned().await;
                    writer.close(&shared.ended).await;
                    let batch = writer.batch;
                    drop(writer);
                    if shared.log.copy(batch).await {
                        let mut nobody_writes = Arc::clone(&shared.writer).lock_owned().await;
                        nobody_writes.close(&shared.ended).await;
                        shared.log.copy_now().await;
                    }
                });
            }
        }
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(StoreError::Undone),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.writer.phase != Phase::Open {
            return;
        }
        if self.writer.waiting.is_empty() {
            // Nobody else stands for this batch, and a transaction that stays open keeps other processes out.
            if let Ok(runtime) = Handle::try_current() {
                let shared = Arc::clone(&self.shared);
                let closing = async move { Arc::clone(&shared.writer).lock_owned().await.close(&shared.ended).await };
                self.shared.commits.spawn_on(closing, &runtime);
            }
        } else {
            self.shared.seen.fetch_max(self.writer.batch, Ordering::SeqCst);
        }
    }
}

impl Writer {
    /// Makes room for a batch, or for a savepoint in the one that is open, and says what opens it.
    async fn stand(&mut self, ended: &watch::Sender<Ended>) -> Beginning {
        self.undo_unfinished(ended).await;
        if self.phase == Phase::Rest {
            (self.phase, self.nested, self.batch) = (Phase::Open, false, self.batch + 1);
            self.lost.store(false, Ordering::SeqCst);
            return Beginning::Batch;
        }
        self.phase = Phase::Opening;
        if self.nested { Beginning::Next } else { Beginning::Second }
    }

    /// Rolls back what a dropped holder left, and nothing that is to stay.
    async fn undo_unfinished(&mut self, ended: &watch::Sender<Ended>) {
        let broken = match self.phase {
            Phase::Rest => false,
            Phase::Opening | Phase::Kept => self.is_lost(),
            Phase::Open if self.nested => self.execute("ROLLBACK TO member").await.is_err() || self.is_lost(),
            Phase::Open => true,
        };
        if broken {
            self.break_off(ended).await;
        } else if self.phase == Phase::Opening {
            // Nobody knows how far it came; one that is opened inside it hides it.
            (self.phase, self.nested) = (Phase::Kept, false);
        } else if self.phase == Phase::Open {
            self.phase = Phase::Kept;
        }
    }

    /// Makes the batch durable and answers its members.
    async fn close(&mut self, ended: &watch::Sender<Ended>) {
        self.undo_unfinished(ended).await;
        if self.phase == Phase::Rest {
            return;
        }
        match self.execute("COMMIT").await {
            Ok(()) => {
                self.phase = Phase::Rest;
                ended.send_modify(|ended| ended.last = self.batch);
                for member in self.waiting.drain(..) {
                    member.send(Ok(())).ok();
                }
            }
            Err(error) if self.waiting.len() == 1 => {
                // Told in its own words; nobody else can have been hit.
                let member = self.waiting.pop();
                self.break_off(ended).await;
                if let Some(member) = member {
                    member.send(Err(error)).ok();
                }
            }
            Err(error) => {
                tracing::warn!(kind = super::error::kind(&error), members = self.waiting.len(), "a batch of writes was undone");
                self.alone = self.waiting.len();
                self.break_off(ended).await;
            }
        }
    }

    /// Ends the transaction, or what the database has left of it; members that waited for it hear that it was undone.
    async fn break_off(&mut self, ended: &watch::Sender<Ended>) {
        // It fails where the database has rolled back by itself.
        self.execute("ROLLBACK").await.ok();
        self.phase = Phase::Rest;
        ended.send_modify(|ended| {
            ended.last = self.batch;
            if !self.waiting.is_empty() {
                ended.last_undone = self.batch;
            }
        });
        self.waiting.clear();
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    async fn execute(&mut self, sql: &'static str) -> std::result::Result<(), sqlx::Error> {
        sqlx::query(sql).persistent(false).execute(&mut self.conn).await.map(|_| ())
    }
}
