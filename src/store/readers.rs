//! SQLite's reading connections: a few, opened when they are first needed and handed round in order of asking.
//!
//! sqlx's own pool asks a connection that comes back whether it still answers, which costs as much as the read itself; a file does not
//! hang up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many there are at most.
const MOST: usize = 4;

/// The connections that nobody uses, and how to open more.
#[derive(Clone)]
pub(super) struct Readers(Arc<Idle>);

struct Idle {
    options: SqliteConnectOptions,
    connections: Mutex<Vec<SqliteConnection>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        Self(Arc::new(Idle { options, connections: Mutex::default(), turns: Arc::new(Semaphore::new(MOST)) }))
    }

    /// A connection, as soon as one is free.
    pub(super) async fn take(&self, patience: Duration) -> sqlx::Result<Reader> {
        let turn = tokio::time::timeout(patience, Arc::clone(&self.0.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => SqliteConnection::connect_with(&self.0.options).await?,
        };
        Ok(Reader { connection: Some(connection), home: Arc::clone(&self.0), _turn: turn })
    }

    /// How many connections are open, and how many of them nobody uses.
    pub(super) fn count(&self) -> (usize, usize) {
        let idle = self.0.connections.lock().unwrap_or_else(PoisonError::into_inner).len();
        (idle + MOST - self.0.turns.available_permits(), idle)
    }

    /// Closes the idle ones and hands out no more.
    pub(super) async fn close(&self) {
        self.0.turns.close();
        let idle = std::mem::take(&mut *self.0.connections.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in idle {
            // Nothing was written through it.
            let _ = connection.close().await;
        }
    }
}

/// A reading connection; dropped, it is free for the next one. Whatever it was doing then ends before that one's turn in it.
pub(super) struct Reader {
    connection: Option<SqliteConnection>,
    home: Arc<Idle>,
    _turn: OwnedSemaphorePermit,
}

impl Reader {
    pub(super) fn conn(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().unwrap_or_else(|| unreachable!("only a drop takes the connection"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Its turn ends after this, with the other fields, and so the next one finds it here.
        if let Some(connection) = self.connection.take().filter(|_| !self.home.turns.is_closed()) {
            self.home.connections.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    #[tokio::test]
    async fn a_few_are_handed_round_and_a_read_that_was_given_up_spoils_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let readers = Readers::new(SqliteConnectOptions::from_str(&format!("sqlite:{}", file.path().display())).unwrap());
        let patience = Duration::from_millis(50);
        let mut taken = Vec::new();
        for _ in 0..MOST {
            taken.push(readers.take(patience).await.unwrap());
        }
        assert_eq!(readers.count(), (MOST, 0));
        assert!(matches!(readers.take(patience).await, Err(sqlx::Error::PoolTimedOut)));
        for mut reader in taken {
            let long = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000) SELECT i FROM n";
            let rows = sqlx::query_scalar::<_, i64>(long).fetch_all(reader.conn());
            assert!(tokio::time::timeout(Duration::from_millis(1), rows).await.is_err());
        }
        assert_eq!(readers.count(), (MOST, MOST));
        for value in 0..8_i64 {
            let mut reader = readers.take(Duration::from_secs(5)).await.unwrap();
            assert_eq!(sqlx::query_scalar::<_, i64>("SELECT $1").bind(value).fetch_one(reader.conn()).await.unwrap(), value);
        }
        readers.close().await;
        assert!(matches!(readers.take(patience).await, Err(sqlx::Error::PoolClosed)));
    }
}
