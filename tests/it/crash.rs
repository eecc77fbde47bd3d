//! kill -9: a real server dies at each named point and at random, is started again, and nothing is lost, half made or made twice.

mod points;
mod random;

/// Makes one test of the same story on each database.
macro_rules! on_both {
    ($($(#[$meta:meta])* async fn $name:ident($site:ident) $body:block)*) => { $(
        mod $name {
            use super::*;
            async fn story($site: $crate::harness::server::Site) $body
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() { story($crate::harness::server::Site::new($crate::harness::Db::Sqlite).await).await }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() { story($crate::harness::server::Site::new($crate::harness::Db::Postgres).await).await }
        }
    )* };
}
use on_both;
