//! The spool: an object that the database would not record is never unknown, also after a restart.

use std::path::PathBuf;

use berth::error::Code;
use berth::model::lease::Status;
use berth::ops::spool::{self, SpoolReport};
use berth::provider::Lookup;
use berth::provider::memory::Memory;

use crate::both;
use crate::harness::{Db, World, quick, settle, until};

impl World {
    /// From now on the database takes no ref of any instance.
    async fn refuse_refs(&self) {
        self.execute(match self.db {
            Db::Sqlite => {
                "CREATE TRIGGER no_refs BEFORE UPDATE OF provider_ref ON instance WHEN NEW.provider_ref IS NOT NULL
                 BEGIN SELECT RAISE(ABORT, 'no'); END"
            }
            Db::Postgres => "ALTER TABLE instance ADD CONSTRAINT no_refs CHECK (provider_ref IS NULL) NOT VALID",
        })
        .await;
    }

    async fn take_refs_again(&self) {
        self.execute(match self.db {
            Db::Sqlite => "DROP TRIGGER no_refs",
            Db::Postgres => "ALTER TABLE instance DROP CONSTRAINT no_refs",
        })
        .await;
    }

    fn spooled(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path().join("spool")).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    }
}

/// An acquire whose object is made and not recorded; answers with what is kept of it.
async fn unrecorded(world: &World) -> String {
    world.refuse_refs().await;
    let refused = world.acquire("run", "s").await.unwrap_err();
    assert_eq!(refused.code, Code::OrphanUnrecorded, "{refused}");
    assert_eq!(refused.facts["cause"], "internal", "the original cause is told");
    let spooled = world.spooled();
    assert_eq!((world.memory.inventory().len(), spooled.len(), world.berth.spool.waiting()), (1, 1, 1));
    let kept = std::fs::read_to_string(&spooled[0]).unwrap();
    assert!(kept.contains(&world.memory.inventory()[0].0), "{kept}");
    assert_eq!(spool::waiting_in(&world.path().join("spool"))[0].provider_ref, world.memory.inventory()[0].0);
    kept
}

both! {
    async fn what_could_not_be_recorded_is_recorded_and_ended_later(world) {
        unrecorded(&world).await;
        assert!(spool::flush(&world.berth).await.is_err(), "the database still refuses");
        assert_eq!((world.spooled().len(), world.memory.inventory().len()), (1, 1));
        world.take_refs_again().await;
        assert_eq!(spool::flush(&world.berth).await.unwrap(), SpoolReport { recorded: 1, waiting: 0 });
        assert!(world.spooled().is_empty());
        world.settle().await;
        world.assert_ledger_is_inventory().await;
        assert!(world.memory.inventory().is_empty(), "its lease failed, so it is ended");
        let next = world.acquire("run", "s").await.unwrap();
        assert_eq!(next.lease.status, Status::Active);
    }

    async fn the_next_server_goes_on_with_it(world) {
        unrecorded(&world).await;
        until("nothing is under way", async || world.berth.work.under_way() == 0).await;
        let next = world.another().await;
        assert_eq!(next.spool.waiting(), 1);
        world.take_refs_again().await;
        assert_eq!(spool::flush(&next).await.unwrap().recorded, 1);
        assert!(world.spooled().is_empty());
        settle(&next).await;
        world.assert_ledger_is_inventory().await;
        assert!(world.memory.inventory().is_empty());
    }
}

/// Where nothing can be looked up, the kept name is all that there is.
async fn nothing_else_knows_it(db: Db) {
    let memory = Memory::with_lookup(Lookup::None);
    let world = World::over(db, quick(), memory.clone(), std::sync::Arc::new(memory)).await;
    unrecorded(&world).await;
    world.take_refs_again().await;
    until("it is looked for in vain", async || world.ledger().await[0].quarantine_reason.is_some()).await;
    assert_eq!(spool::flush(&world.berth).await.unwrap().recorded, 1);
    world.settle().await;
    world.assert_ledger_is_inventory().await;
    assert!(world.memory.inventory().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lookup_the_kept_name_ends_it_sqlite() {
    nothing_else_knows_it(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lookup_the_kept_name_ends_it_postgres() {
    nothing_else_knows_it(Db::Postgres).await;
}
