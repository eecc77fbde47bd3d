//! A thousand random histories on each database: two holders and a reader of one scope each, under faults, dying and paused servers, a
//! moving clock and vanishing instances. After every step what must always hold does; after quiet time everything is accounted for and
//! the work is there.
//!
//! Histories are told in turns, a batch at a time, and a batch follows from one seed: `BERTH_TEST_SEED=<seed>` tells the same batch again
//! and no other. So that it does, a step has ended with all that it began before the next one is taken, and what goes wrong during a pass
//! goes wrong for everything that the pass touches.

mod check;
mod history;
mod model;

use std::sync::Arc;
use std::time::Duration;

use berth::ops::{self, Berth};
use berth::provider::faults::{Fault, Release, Verb};
use berth::provider::{Kind, OwnerTag, Provider, Spec};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use uuid::Uuid;

use self::history::{Foreign, History};
use crate::harness::{Db, World, quick, settle, until};

/// How many histories there are.
const HISTORIES: usize = 1000;
/// How many tell them.
const TELLERS: usize = 8;
/// How many are told in turns before there is peace.
const AT_ONCE: usize = 25;
/// How many steps each of them has.
const STEPS: usize = 6;

/// What may go wrong with a call.
const FAULTS: &[(Verb, Kind, bool)] = &[
    (Verb::Binding, Kind::Transient, false),
    (Verb::Ensure, Kind::Refused, false),
    (Verb::Ensure, Kind::Transient, false),
    (Verb::Ensure, Kind::Indeterminate, true),
    (Verb::Start, Kind::Indeterminate, true),
    (Verb::Start, Kind::Refused, false),
    (Verb::Stop, Kind::Indeterminate, true),
    (Verb::Stop, Kind::Indeterminate, false),
    (Verb::Destroy, Kind::Indeterminate, true),
    (Verb::Destroy, Kind::Transient, false),
    (Verb::Fence, Kind::Indeterminate, false),
    (Verb::Exec, Kind::Indeterminate, true),
    (Verb::ReadTree, Kind::Transient, false),
    (Verb::WriteTree, Kind::Indeterminate, true),
    (Verb::Observe, Kind::Transient, false),
    (Verb::Realize, Kind::Transient, false),
];

/// Where a server may stop for good, or for a while.
const PAUSES: &[Verb] = &[
    Verb::Ensure,
    Verb::Realize,
    Verb::WriteTree,
    Verb::ReadTree,
    Verb::StatWalk,
    Verb::Fence,
    Verb::Exec,
    Verb::Start,
    Verb::Stop,
    Verb::Destroy,
];

/// A server that stopped inside a call, and what lets it go on.
struct Paused {
    berth: Arc<Berth>,
    held: Release,
}

/// The servers, and the world that outlives them.
struct Stage {
    world: World,
    servers: Vec<Arc<Berth>>,
    paused: Vec<Paused>,
    random: StdRng,
    /// What another deployment keeps in the same account.
    foreign: String,
}

impl Stage {
    async fn new(db: Db) -> Self {
        let world = World::with(db, settings()).await;
        let mut servers = vec![Arc::clone(&world.berth)];
        if db == Db::Postgres {
            servers.push(world.another().await);
        }
        let foreign = object_of(&world, Uuid::from_u128(1)).await;
        Self { world, servers, paused: Vec::new(), random: StdRng::seed_from_u64(0), foreign }
    }

    /// Time passes for every server, whether it works or not.
    fn advance(&self, by: Duration) {
        self.world.memory.advance(by);
        for berth in self.servers.iter().chain(self.paused.iter().map(|paused| &paused.berth)) {
            berth.store.offset().advance(by);
        }
    }

    /// Everything that was begun has ended, or hangs where it was told to: then the server it hangs in is as good as dead.
    async fn ended(&self, held: Option<&mut Release>) -> bool {
        let mut held = held;
        for _ in 0..20_000 {
            if let Some(held) = &mut held
                && tokio::time::timeout(Duration::ZERO, held.reached()).await.is_ok()
            {
                return false;
            }
            if self.servers.iter().all(|berth| berth.work.under_way() == 0) {
                return true;
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        panic!("a step does not end");
    }

    /// One history's next step at one of the servers, which may fail in it, die in it, or stop in it for a while.
    async fn step(&mut self, history: &mut History, others: &[Foreign]) {
        let at = self.random.random_range(0..self.servers.len());
        self.world.berth = Arc::clone(&self.servers[at]);
        let mut held = None;
        match self.random.random_range(0..10) {
            0..3 => {
                let (verb, kind, after) = FAULTS.choose(&mut self.random).unwrap();
                self.world.faults.next(*verb, if *after { Fault::FailAfter(*kind) } else { Fault::FailBefore(*kind) });
            }
            3 => {
                let verb = *PAUSES.choose(&mut self.random).unwrap();
                let after = self.random.random_bool(0.5);
                held = Some(if after { self.world.faults.hang_after(verb) } else { self.world.faults.hang(verb) });
            }
            _ => {}
        }
        let mut own = StdRng::seed_from_u64(self.random.random());
        let told = history.step(&self.world, &mut own, others);
        let Some(mut release) = held else {
            told.await;
            self.ended(None).await;
            return self.world.faults.clear();
        };
        let finished = tokio::select! {
            biased;
            () = told => self.ended(Some(&mut release)).await,
            () = release.reached() => false,
        };
        if finished {
            return self.world.faults.clear();
        }
        let berth = self.servers.remove(at);
        // What else it had begun ends before anybody else goes on, so that the story is the same every time.
        until("a paused server does nothing more", async || berth.work.under_way() <= 1).await;
        self.servers.push(self.world.another().await);
        self.paused.push(Paused { berth, held: release });
    }

    /// What happens between the steps: time, and the background of a server, perhaps with a provider that is not well.
    async fn between(&mut self) {
        let berth = Arc::clone(self.servers.choose(&mut self.random).unwrap());
        if self.random.random_bool(0.2) {
            let (verb, kind, _) = FAULTS.choose(&mut self.random).unwrap();
            self.world.faults.always(*verb, Fault::FailBefore(*kind));
        }
        berth.keep_claims().await.unwrap();
        match self.random.random_range(0..6) {
            0 => {
                let by = Duration::from_secs(self.random.random_range(1..400));
                self.advance(by);
            }
            1 => drop(ops::reap::pass(&berth).await.unwrap()),
            2 => drop(ops::drive::pass(&berth).await.unwrap()),
            3 => drop(ops::sweep::pass(&berth, false).await.unwrap()),
            4 => drop(ops::observe::pass(&berth).await.unwrap()),
            _ => self.wake_one().await,
        }
        self.ended(None).await;
        self.world.faults.clear();
    }

    /// A server that was only paused goes on with what it was doing, not knowing how long it was away. With the embedded database there
    /// is one server at a time, so there a paused one is a dead one.
    async fn wake_one(&mut self) {
        if self.world.db == Db::Sqlite || self.paused.is_empty() {
            return;
        }
        let which = self.random.random_range(0..self.paused.len());
        let Paused { berth, held } = self.paused.swap_remove(which);
        held.release();
        until("a server that goes on comes to an end", async || berth.work.under_way() == 0).await;
        berth.give_up_claims().await;
    }

    /// Nothing is wrong any more, and there is time enough for everything.
    async fn peace(&mut self) {
        self.world.faults.clear();
        while self.world.db == Db::Postgres && !self.paused.is_empty() {
            self.wake_one().await;
        }
        self.world.berth = Arc::clone(&self.servers[0]);
        // Twice: what was tried in vain before is tried again once its back-off is over.
        for _ in 0..2 {
            self.advance(Duration::from_secs(3600));
            for berth in &self.servers {
                berth.keep_claims().await.unwrap();
                settle(berth).await;
            }
        }
        ops::sweep::pass(&self.world.berth, false).await.unwrap();
        self.ended(None).await;
        self.nothing_is_broken().await;
    }

    async fn nothing_is_broken(&self) {
        let found = ops::examine::examine(&self.servers[0]).await.unwrap();
        assert!(found.broken.is_empty(), "{found:?}");
    }

    /// One batch: histories in turns, then peace, then each scope once more.
    async fn batch(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        let mut histories: Vec<_> = (0..AT_ONCE).map(|n| History::new(format!("{seed}-{n}"))).collect();
        object_of(&self.world, self.world.berth.deployment.id).await;
        for _ in 0..STEPS {
            let saved: Vec<Foreign> = histories.iter().filter_map(History::a_checkpoint).collect();
            for history in &mut histories {
                self.step(history, &saved).await;
            }
            self.nothing_is_broken().await;
            self.between().await;
        }
        self.peace().await;
        for history in &mut histories {
            history.epilogue(&self.world).await;
        }
        self.peace().await;
        let left: Vec<_> = self.world.memory.inventory().into_iter().map(|(name, _, _)| name).collect();
        assert_eq!(left, std::slice::from_ref(&self.foreign), "what is another's stays, and nothing else is left");
        let mut tx = self.world.berth.store.read().await.unwrap();
        let (instances, claims) = (tx.instance_counts().await.unwrap(), tx.claim_counts().await.unwrap());
        assert!(instances.is_empty() && claims.is_empty(), "{instances:?} {claims:?}");
    }
}

/// An object of a deployment that no row names.
async fn object_of(world: &World, deployment: Uuid) -> String {
    let tag = OwnerTag { deployment, organization: world.caller.organization, sandbox: Uuid::nil(), instance: Uuid::nil(), generation: 1 };
    world.memory.ensure(&Spec { config: json!({}).into(), workspace_path: None }, &tag).await.unwrap().provider_ref
}

/// Short patience: a holder that has to wait for another comes again later in its history.
fn settings() -> ops::Settings {
    let short = Duration::from_millis(30);
    ops::Settings { provision_wait: short * 10, resume_retry: short, drain_wait: short, gate_wait: short, ..quick() }
}

/// A thousand histories by eight who tell beside each other, each in a world of its own; or the one batch that was asked for.
async fn simulate(db: Db) {
    if let Some(seed) = std::env::var("BERTH_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return Stage::new(db).await.batch(seed).await;
    }
    let tell = |_| async move {
        let mut stage = Stage::new(db).await;
        for _ in 0..HISTORIES / AT_ONCE / TELLERS {
            let seed: u64 = rand::random();
            println!("BERTH_TEST_SEED={seed}");
            stage.batch(seed).await;
        }
    };
    futures_util::future::join_all((0..TELLERS).map(tell)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_histories_keep_every_promise_sqlite() {
    simulate(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_histories_keep_every_promise_postgres() {
    simulate(Db::Postgres).await;
}
