//! The observer: a run learns early of what it lost, by proof alone, and no provider keeps another waiting.

use std::time::Duration;

use berth::error::Code;
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::Status;
use berth::ops::observe::{self, LOOK_EVERY, ObserveReport};
use berth::ops::view::LeaseView;
use berth::provider::faults::{Fault, Lie, Verb};
use berth::provider::{Kind, Observation, Presence};

use crate::both;
use crate::harness::{Db, World, code, quick, until};

/// A pass when a look is due.
async fn pass(world: &World) -> ObserveReport {
    world.advance(LOOK_EVERY + Duration::from_secs(1));
    observe::pass(&world.berth).await.unwrap()
}

async fn status(world: &World, lease: &LeaseView) -> InstanceStatus {
    world.row(lease.lease.instance_id.unwrap()).await.status
}

both! {
    async fn what_is_as_its_row_says_is_looked_at_once_a_minute(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        assert_eq!(observe::pass(&world.berth).await.unwrap(), ObserveReport::default(), "it was seen when it was made");
        assert_eq!(pass(&world).await, ObserveReport { due: 1, unchanged: 1, ..ObserveReport::default() });
        assert_eq!(observe::pass(&world.berth).await.unwrap().due, 0, "a look is good for a minute");
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert!(row.observed_at > row.running_at, "{row:?}");
        assert!(world.exec(&lease, &["true"]).await.is_ok());
    }

    async fn a_loss_is_found_before_anybody_asks_and_settled_at_once(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "saved").await.unwrap();
        world.capture(&lease).await.unwrap();
        let running = world.started(&lease, &["sleep", "20000"]).await;
        let other = world.acquire("other", "beside").await.unwrap();
        world.memory.vanish(&world.provider_ref(&lease).await);
        let report = pass(&world).await;
        assert_eq!((report.due, report.lost, report.unchanged), (2, 1, 1), "{report:?}");
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, row.retire_reason.as_deref()), (InstanceStatus::Lost, Some("not_found")));
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.status, after.lease.epoch), (Status::Active, 1), "the lease is its holder's until recover");
        assert_eq!(world.sandbox(&lease).await.sandbox.generation, 2);
        let mut tx = world.berth.store.read().await.unwrap();
        assert!(tx.running_operations(lease.lease.sandbox_id).await.unwrap().is_empty(), "what ran is unknown now");
        drop(tx);
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::InstanceLost);
        running.await.unwrap().ok();
        let input = berth::ops::input::Recover {
            carried: crate::harness::carried(&lease),
            restore_checkpoint_id: None,
            on_unavailable: None,
            waiting: berth::ops::input::Waiting::default(),
        };
        let (back, _) = berth::ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!((back.lease.id, back.lease.generation), (lease.lease.id, 2));
        assert_eq!(world.get(&back, "f").await.unwrap(), "saved");
        assert!(world.exec(&other, &["true"]).await.is_ok(), "nobody else noticed");
        world.assert_ledger_is_inventory().await;
    }

    async fn nothing_is_lost_without_proof(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let gone = world.provider_ref(&lease).await;
        for doubt in [Fault::FailBefore(Kind::Transient), Fault::FailBefore(Kind::NotFound), Fault::Lie(Lie::Observed(Observation::Unknown))] {
            world.faults.next(Verb::Observe, doubt);
            assert_eq!(pass(&world).await, ObserveReport { due: 1, unknown: 1, ..ObserveReport::default() });
        }
        // Under another account a not-found proves nothing, and what is unknown is asked again.
        world.memory.rebind();
        assert_eq!(pass(&world).await.unknown, 1);
        assert_eq!(status(&world, &lease).await, InstanceStatus::Running);
        assert_eq!(world.memory.inventory()[0].0, gone);
    }

    async fn what_ended_at_its_provider_is_lost_although_it_is_listed(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.faults.next(Verb::Observe, Fault::Lie(Lie::Observed(Observation::Present(Presence::Ended))));
        assert_eq!(pass(&world).await.lost, 1);
        assert_eq!(status(&world, &lease).await, InstanceStatus::Lost);
    }

    async fn stopped_is_not_lost_and_what_somebody_started_is_drained_when_idle(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "kept").await.unwrap();
        world.memory.stop_behind(&world.provider_ref(&lease).await);
        assert_eq!(pass(&world).await.corrected, 1);
        assert_eq!(status(&world, &lease).await, InstanceStatus::Stopped);
        // The next operation resumes exactly it.
        assert_eq!(world.get(&lease, "f").await.unwrap(), "kept");
        assert_eq!(status(&world, &lease).await, InstanceStatus::Running);
        world.release(&lease).await.unwrap();
        world.settle().await;
        assert_eq!(status(&world, &lease).await, InstanceStatus::Stopped);
        let provider = world.berth.providers.get("memory").unwrap();
        provider.start(&world.provider_ref(&lease).await).await.unwrap();
        assert_eq!(pass(&world).await.corrected, 1);
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((row.status, row.quiet), (InstanceStatus::Running, false));
        world.advance(Duration::from_secs(301));
        world.settle().await;
        assert_eq!(status(&world, &lease).await, InstanceStatus::Stopped, "idle, so stopped again");
        assert_eq!(world.sandbox(&lease).await.sandbox.generation, 1);
    }
}

/// Of a hundred due looks one hangs for ever.
async fn one_that_hangs_delays_nobody(db: Db) {
    let settings = berth::ops::Settings { call_timeout: Duration::from_secs(2), ..quick() };
    let world = World::with(db, settings).await;
    for item in 0..100 {
        world.acquire("run", &format!("s{item}")).await.unwrap();
    }
    world.advance(LOOK_EVERY + Duration::from_secs(1));
    let mut hung = world.faults.hang(Verb::Observe);
    let berth = world.berth.clone();
    let passing = tokio::task::spawn(async move { observe::pass(&berth).await.unwrap() });
    hung.reached().await;
    until("all others were looked at", async || world.faults.count(Verb::Observe) == 100).await;
    let report = passing.await.unwrap();
    assert_eq!(report, ObserveReport { due: 100, unchanged: 99, unknown: 1, ..ObserveReport::default() });
    drop(hung);
    assert_eq!(observe::pass(&world.berth).await.unwrap(), ObserveReport { due: 1, unchanged: 1, ..ObserveReport::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_looks_one_hangs_sqlite() {
    one_that_hangs_delays_nobody(Db::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_looks_one_hangs_postgres() {
    one_that_hangs_delays_nobody(Db::Postgres).await;
}
