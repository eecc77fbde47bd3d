//! Batches under cancelled callers, failing commits, a panic, and readers who look meanwhile.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Connection, Row};

use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// A database with a table of pairs, and one whose rows must name a pair by the time of the commit.
struct Base {
    batches: Batches,
    reader: SqliteConnection,
    dir: tempfile::TempDir,
}

impl Base {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(dir.path().join("base.db")).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).foreign_keys(true).pragma("wal_autocheckpoint", "0");
        let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
        for table in [
            "CREATE TABLE pair (id INTEGER PRIMARY KEY, half INTEGER NOT NULL UNIQUE)",
            "CREATE TABLE names (pair INTEGER REFERENCES pair (id) DEFERRABLE INITIALLY DEFERRED)",
        ] {
            sqlx::query(table).execute(&mut conn).await.unwrap();
        }
        let reader = SqliteConnection::connect_with(&options).await.unwrap();
        Self { batches: Batches::new(conn, Log::new(options.clone())).await.unwrap(), reader, dir }
    }

    /// What is durable.
    async fn stored(&mut self) -> Vec<i64> {
        let rows = sqlx::query("SELECT half FROM pair ORDER BY half").fetch_all(&mut self.reader).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn put(seat: &mut Seat, half: i64) -> std::result::Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO pair (half) VALUES ($1)").bind(half).execute(seat.conn()).await.map(|_| ())
}

/// Two halves, or none.
async fn put_pair(batches: &Batches, half: i64) -> Result<()> {
    let mut seat = batches.begin().await?;
    put(&mut seat, half).await?;
    put(&mut seat, -half).await?;
    seat.commit().await
}

/// A row that names a pair that will never be: the database refuses it when it is committed.
async fn put_unnamed(batches: &Batches) -> Result<()> {
    let mut seat = batches.begin().await?;
    sqlx::query("INSERT INTO names (pair) VALUES (999)").execute(seat.conn()).await?;
    seat.commit().await
}

#[tokio::test]
async fn whoever_is_in_line_is_committed_together() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let batches = base.batches.clone();
    let others = futures_util::future::join_all((2..=40).map(|half| put_pair(&batches, half)));
    let mut others = pin!(others);
    // All of them stand in line behind the first.
    assert!(others.as_mut().now_or_never().is_none());
    let (first, others) = tokio::join!(first.commit(), others);
    first.unwrap();
    assert!(others.into_iter().all(|other| other.is_ok()));
    assert_eq!(base.stored().await.len(), 1 + 2 * 39);
    assert!(base.batches.batches() <= 2, "{} commits for 40 callers", base.batches.batches());
}

#[tokio::test]
async fn a_caller_by_itself_is_a_batch() {
    let mut base = Base::new().await;
    for half in 1..=3 {
        put_pair(&base.batches, half).await.unwrap();
    }
    assert_eq!((base.batches.batches(), base.stored().await.len()), (3, 6));
}

#[tokio::test]
async fn a_dropped_caller_is_undone_and_its_neighbours_are_kept() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let mut first = pin!(first.commit());
    assert!(first.as_mut().now_or_never().is_none());
    let mut dropped = base.batches.begin().await.unwrap();
    put(&mut dropped, 2).await.unwrap();
    drop(dropped);
    let mut last = base.batches.begin().await.unwrap();
    // What the neighbour wrote is seen, what was dropped is not.
    let seen: Vec<i64> = sqlx::query_scalar("SELECT half FROM pair").fetch_all(last.conn()).await.unwrap();
    assert_eq!(seen, [1]);
    put(&mut last, 3).await.unwrap();
    let (first, last) = tokio::join!(first, last.commit());
    first.unwrap();
    last.unwrap();
    assert_eq!(base.stored().await, [1, 3]);
}

#[tokio::test]
async fn a_refused_write_takes_nobody_with_it() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let mut first = pin!(first.commit());
    assert!(first.as_mut().now_or_never().is_none());
    let refused = put_pair(&base.batches, 1).await.unwrap_err();
    assert!(refused.is_unique_violation());
    base.batches.settled(PATIENCE).await.unwrap();
    assert_eq!(base.stored().await, [1], "what the refusal rests on is durable before it is told");
    first.await.unwrap();
}

/// Lets a future come as far as it does with so many polls, and drops it with whatever it asked for still under way.
async fn polled<T>(work: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut work = pin!(work);
    let mut left = polls;
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[tokio::test]
async fn a_caller_may_be_dropped_anywhere() {
    let mut base = Base::new().await;
    let mut kept = Vec::new();
    for with_neighbour in [false, true] {
        for polls in 0.. {
            let half = i64::try_from(polls).unwrap() * 10 + i64::from(with_neighbour) * 1_000_000 + 1;
            let mut neighbour = None;
            if with_neighbour {
                let mut seat = base.batches.begin().await.unwrap();
                put(&mut seat, half + 1).await.unwrap();
                neighbour = Some(Box::pin(seat.commit()));
            }
            if let Some(neighbour) = &mut neighbour {
                assert!(neighbour.as_mut().now_or_never().is_none());
                kept.push(half + 1);
            }
            let finished = polled(put_pair(&base.batches, half), polls).await;
            if let Some(neighbour) = neighbour {
                neighbour.await.unwrap();
            }
            put_pair(&base.batches, half + 2).await.unwrap();
            kept.extend([half + 2, -half - 2]);
            if let Some(finished) = finished {
                finished.unwrap();
                kept.extend([half, -half]);
                break;
            }
            assert!(polls < 1000, "it never comes to its end");
        }
    }
    let stored = base.stored().await;
    for half in &kept {
        assert!(stored.contains(half), "{half} was answered and is not there");
    }
    let dropped: Vec<i64> = stored.iter().copied().filter(|half| !kept.contains(half)).collect();
    for half in &dropped {
        assert!(dropped.contains(&-half), "half of {half} is there");
    }
}

#[tokio::test]
async fn a_reader_sees_nothing_before_it_is_durable() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let mut first = pin!(first.commit());
    assert!(first.as_mut().now_or_never().is_none());
    let mut second = base.batches.begin().await.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM pair").fetch_one(second.conn()).await.unwrap();
    assert_eq!(seen, 1, "a neighbour sees it");
    assert!(base.stored().await.is_empty(), "a reader does not");
    base.batches.settled(PATIENCE).await.unwrap();
    drop(second);
    // Whoever saw it and left waits until it is true.
    let batches = base.batches.clone();
    let mut settled = pin!(batches.settled(PATIENCE));
    assert!(settled.as_mut().now_or_never().is_none());
    settled.await.unwrap();
    assert_eq!(base.stored().await, [1]);
    first.await.unwrap();
}

#[tokio::test]
async fn a_commit_that_fails_undoes_all_and_is_found_out() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let mut first = pin!(first.commit());
    assert!(first.as_mut().now_or_never().is_none());
    let batches = base.batches.clone();
    let mut guilty = pin!(put_unnamed(&batches));
    let mut seen = pin!(async {
        drop(batches.begin().await.unwrap());
        batches.settled(PATIENCE).await
    });
    assert!(guilty.as_mut().now_or_never().is_none());
    assert!(seen.as_mut().now_or_never().is_none());
    let (first, guilty, seen) = tokio::join!(first, guilty, seen);
    // Nobody is told that it is there, and nobody may go on from having seen it.
    for undone in [first, guilty, seen] {
        assert!(matches!(undone, Err(StoreError::Undone)), "{undone:?}");
    }
    // Sent again, each is committed alone and the guilty one is told its own fault.
    let (first, guilty, other) = tokio::join!(put_pair(&base.batches, 1), put_unnamed(&base.batches), put_pair(&base.batches, 2));
    first.unwrap();
    assert!(guilty.unwrap_err().is_foreign_key_violation());
    other.unwrap();
    assert_eq!(base.stored().await, [-2, -1, 1, 2]);
}

#[tokio::test]
async fn a_commit_that_fails_alone_is_told_in_its_own_words() {
    let mut base = Base::new().await;
    assert!(put_unnamed(&base.batches).await.unwrap_err().is_foreign_key_violation());
    put_pair(&base.batches, 1).await.unwrap();
    assert_eq!(base.stored().await, [-1, 1]);
}

#[tokio::test]
async fn a_panic_undoes_its_own_writes_alone() {
    let mut base = Base::new().await;
    let mut first = base.batches.begin().await.unwrap();
    put(&mut first, 1).await.unwrap();
    let mut first = pin!(first.commit());
    assert!(first.as_mut().now_or_never().is_none());
    let mut panicking = base.batches.begin().await.unwrap();
    let tracker = TaskTracker::new();
    let ended = tracker.spawn(async move {
        put(&mut panicking, 2).await.unwrap();
        panic!("in the middle");
    });
    assert!(ended.await.unwrap_err().is_panic());
    put_pair(&base.batches, 3).await.unwrap();
    first.await.unwrap();
    assert_eq!(base.stored().await, [-3, 1, 3]);
}

/// A full disk may end the whole transaction under everybody; ROLLBACK behind the batch's back is the same to the database.
#[tokio::test]
async fn a_transaction_that_the_database_ended_is_nobodys_success() {
    for leaves in [true, false] {
        let mut base = Base::new().await;
        let mut first = base.batches.begin().await.unwrap();
        put(&mut first, 1).await.unwrap();
        let mut first = pin!(first.commit());
        assert!(first.as_mut().now_or_never().is_none());
        let mut hit = base.batches.begin().await.unwrap();
        put(&mut hit, 2).await.unwrap();
        sqlx::query("ROLLBACK").execute(hit.conn()).await.unwrap();
        if leaves {
            drop(hit);
        } else {
            assert!(matches!(hit.commit().await, Err(StoreError::Undone)));
        }
        put_pair(&base.batches, 3).await.unwrap();
        assert!(matches!(first.await, Err(StoreError::Undone)));
        assert_eq!(base.stored().await, [-3, 3]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_come_and_go_keep_their_pairs() {
    let mut base = Base::new().await;
    let tasks: Vec<_> = (0..16)
        .map(|task: i64| {
            let batches = base.batches.clone();
            let tracker = TaskTracker::new();
            tracker.spawn(async move {
                let mut kept = Vec::new();
                for round in 1..=40 {
                    let half = task * 1000 + round;
                    // Every third is given up at a moment that differs.
                    if round % 3 == 0 {
                        let span = Duration::from_micros(u64::try_from(half * 37 % 900).unwrap());
                        tokio::time::timeout(span, put_pair(&batches, half)).await.ok();
                    } else {
                        put_pair(&batches, half).await.unwrap();
                        kept.push(half);
                    }
                }
                kept
            })
        })
        .collect();
    let mut kept = Vec::new();
    for task in tasks {
        kept.extend(task.await.unwrap());
    }
    base.batches.close().await;
    drop(base.batches.at_rest().await);
    let stored = base.stored().await;
    for half in kept {
        assert!(stored.contains(&half), "{half} was answered and is not there");
    }
    for half in &stored {
        assert!(stored.contains(&-half), "half of {half} is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_begins_anew_although_somebody_always_writes() {
    const PIECE: usize = 100 << 10;
    let base = Base::new().await;
    let write = async |name: i64| {
        for _ in 0..600 {
            let mut seat = base.batches.begin().await.unwrap();
            let insert = sqlx::query("INSERT OR REPLACE INTO piece (id, bytes) VALUES ($1, zeroblob($2))");
            insert.bind(name).bind(i64::try_from(PIECE).unwrap()).execute(seat.conn()).await.unwrap();
            seat.commit().await.unwrap();
        }
    };
    let mut seat = base.batches.begin().await.unwrap();
    sqlx::query("CREATE TABLE piece (id INTEGER PRIMARY KEY, bytes BLOB)").execute(seat.conn()).await.unwrap();
    seat.commit().await.unwrap();
    let log = base.dir.path().join("base.db-wal");
    tokio::join!(write(1), write(2));
    let length = std::fs::metadata(log).unwrap().len();
    let written = u64::try_from(2 * 600 * PIECE).unwrap();
    assert!(length < written * 2 / 3, "{length} bytes of log after {written} bytes were written");
    // Without it another process would take the database for one that nobody uses, and remove its log.
    let asked = "import fcntl, sys\ntry: fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)\nexcept OSError: sys.exit(3)";
    let another = std::process::Command::new("python3").args(["-c", asked]).arg(base.dir.path().join("base.db")).status().unwrap();
    assert_eq!(another.code(), Some(3), "another process got the lock that says that nobody uses the database");
}
