//! The writes of one acquire and release on bare tables: the same transactions in the same order, without reads, checks, events'
//! content or constraints. Each statement takes an id and a body of a row's usual size.

/// Makes the tables; the same text for both databases.
pub const TABLES: [&str; 5] = [
    "CREATE TABLE raw_sandbox (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE raw_instance (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE raw_lease (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE raw_claim (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE raw_event (id TEXT NOT NULL, body TEXT NOT NULL)",
];

const LOCK: &str = "UPDATE raw_sandbox SET body = $2 WHERE id = $1";
const PROVE: &str = "UPDATE raw_claim SET body = $2 WHERE id = $1";
const CLAIM: &str = "INSERT INTO raw_claim (id, body) VALUES ($1, $2)";
const SETTLE: &str = "DELETE FROM raw_claim WHERE id = $1 AND body >= substr($2, 1, 1)";
const INSTANCE: &str = "UPDATE raw_instance SET body = $2 WHERE id = $1";
const LEASE: &str = "UPDATE raw_lease SET body = $2 WHERE id = $1";
const TELL: &str = "INSERT INTO raw_event (id, body) VALUES ($1, $2)";

/// The eight transactions: intent, create call, ref, activation; release, rest, teardown, its end.
pub const ROUND: [&[&str]; 8] = [
    &[
        "INSERT INTO raw_sandbox (id, body) VALUES ($1, $2)",
        "INSERT INTO raw_instance (id, body) VALUES ($1, $2)",
        LOCK,
        LOCK,
        "INSERT INTO raw_lease (id, body) VALUES ($1, $2)",
        TELL,
        CLAIM,
    ],
    &[LOCK, PROVE, INSTANCE],
    &[LOCK, INSTANCE],
    &[LOCK, PROVE, INSTANCE, LOCK, LEASE, TELL, SETTLE],
    &[LOCK, CLAIM, INSTANCE, LOCK, LEASE],
    &[LOCK, PROVE, INSTANCE, LOCK, TELL, LEASE, SETTLE],
    &[LOCK, CLAIM],
    &[LOCK, SETTLE, INSTANCE, TELL, LEASE, TELL],
];

/// A new row's id.
pub fn id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// A row's usual size.
pub fn body() -> String {
    "b".repeat(400)
}

/// Runs one round on a connection of either database.
macro_rules! round {
    ($conn:expr, $begin:literal) => {{
        use sqlx::Executor;
        let (id, body) = ($crate::ratio::raw::id(), $crate::ratio::raw::body());
        for transaction in $crate::ratio::raw::ROUND {
            $conn.execute($begin).await.unwrap();
            for statement in transaction {
                sqlx::query(*statement).bind(&id).bind(&body).execute(&mut $conn).await.unwrap();
            }
            $conn.execute("COMMIT").await.unwrap();
        }
    }};
}
pub(crate) use round;
