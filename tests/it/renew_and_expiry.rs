//! Time: a renew is the only thing that extends a lease, and either it or the expiry's claim wins, never both.

use std::time::Duration;

use berth::error::Code;
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::Status;
use berth::ops;
use berth::ops::input::Renew;
use berth::provider::faults::Verb;
use sqlx::{Connection, Executor};

use crate::both;
use crate::harness::{Db, World, code, until, want};

both! {
    async fn exactly_one_of_renew_and_expiry_wins(world) {
        let (mut renewed, mut expired) = (0, 0);
        for round in 0..24 {
            let session = format!("s{round}");
            let mut input = want("run", Some(&session));
            input.ttl_seconds = Some(5);
            let lease = world.acquire_with(input).await.unwrap().0;
            // Somebody wrote, so that the expiry has something to end and cannot be settled in one transaction.
            world.exec(&lease, &["true"]).await.unwrap();
            world.advance(Duration::from_secs(6));
            let renew = {
                let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
                tokio::task::spawn(async move { ops::renew::renew(&berth, &caller, id, Renew { ttl_seconds: Some(600), exact: false }).await })
            };
            let reap = {
                let berth = world.berth.clone();
                tokio::task::spawn(async move { ops::reap::pass(&berth).await.unwrap() })
            };
            let rival = {
                let (berth, caller, mut input) = (world.berth.clone(), world.caller.clone(), want("rival", Some(&session)));
                input.waiting.others = Duration::from_millis(20 * (round % 3));
                tokio::task::spawn(async move { ops::acquire::acquire(&berth, &caller, input).await })
            };
            let (renew, rival) = (renew.await.unwrap(), rival.await.unwrap());
            reap.await.unwrap();
            until("nothing is under way", async || world.berth.work.under_way() == 0).await;
            let after = world.lease(&lease).await;
            match renew {
                Ok(view) => {
                    renewed += 1;
                    assert_eq!(after.lease.status, Status::Active, "round {round}: what was renewed is not ended");
                    assert_eq!(after.lease.expires_at, view.lease.expires_at);
                    assert_eq!(after.instance.as_ref().unwrap().status, InstanceStatus::Running);
                    assert_eq!(code(rival), Code::LeaseConflict);
                    assert!(world.exec(&after, &["true"]).await.is_ok());
                    world.delete(&after).await.unwrap();
                }
                Err(refused) => {
                    expired += 1;
                    assert!(matches!(refused.code, Code::LeaseNotActive | Code::TransitionInProgress), "round {round}: {refused}");
                    assert_eq!(after.lease.status, Status::Expired, "round {round}: what was refused a renew is ended");
                    if let Err(busy) = rival {
                        assert_eq!(busy.code, Code::TransitionInProgress, "round {round}");
                    }
                }
            }
        }
        assert_eq!(renewed + expired, 24);
    }

    async fn a_renew_before_any_claim_is_granted_although_the_time_has_passed(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.advance(Duration::from_secs(3601));
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::LeaseExpired);
        let renewed = world.renew(&lease, 60).await.unwrap();
        assert!(renewed.lease.expires_at > lease.lease.expires_at);
        assert!(world.exec(&renewed, &["true"]).await.is_ok());
        world.settle().await;
        assert_eq!(world.lease(&lease).await.lease.status, Status::Active, "the reaper finds nothing due");
    }

    async fn a_renew_after_the_claim_is_not_granted(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.exec(&lease, &["true"]).await.unwrap();
        world.advance(Duration::from_secs(3601));
        let mut stuck = world.faults.hang(Verb::Fence);
        ops::reap::pass(&world.berth).await.unwrap();
        stuck.reached().await;
        assert_eq!(code(world.renew(&lease, 60).await), Code::TransitionInProgress, "claimed: the point of no return");
        stuck.release();
        until("it has expired", async || world.lease(&lease).await.lease.status == Status::Expired).await;
        assert_eq!(code(world.renew(&lease, 60).await), Code::LeaseNotActive);
    }

    async fn a_renew_never_shortens_unless_it_is_exact(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let first = lease.lease.expires_at.unwrap();
        assert_eq!(world.renew(&lease, 1).await.unwrap().lease.expires_at, Some(first), "granted what it has already");
        let exact = Renew { ttl_seconds: Some(10), exact: true };
        let shorter = ops::renew::renew(&world.berth, &world.caller, lease.lease.id, exact).await.unwrap();
        let until = shorter.lease.expires_at.unwrap();
        assert!(until < first && until.since(shorter.server_time) <= Duration::from_secs(10));
        let longer = world.renew(&lease, 7200).await.unwrap().lease.expires_at.unwrap();
        assert!(longer > first);
        for bad in [0, -1, 86_401] {
            let refused = world.renew(&lease, bad).await;
            assert_eq!(code(refused), Code::InvalidRequest, "{bad}");
        }
        assert_eq!(world.lease(&lease).await.lease.expires_at, Some(longer));
    }

    async fn many_renews_at_once_grant_the_longest(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let renews: Vec<_> = (0..16)
            .map(|i| {
                let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
                let input = Renew { ttl_seconds: Some(4000 + i * 100), exact: false };
                tokio::task::spawn(async move { ops::renew::renew(&berth, &caller, id, input).await })
            })
            .collect();
        let mut longest = lease.lease.expires_at;
        for renew in renews {
            longest = longest.max(renew.await.unwrap().unwrap().lease.expires_at);
        }
        assert_eq!(world.lease(&lease).await.lease.expires_at, longest);
    }

    async fn an_expired_lease_runs_nothing_even_before_the_reaper_comes(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "x").await.unwrap();
        let seq = world.sandbox(&lease).await.sandbox.workspace_seq;
        let (execs, writes, reads) = (world.memory.calls(Verb::Exec), world.memory.calls(Verb::WriteFile), world.memory.calls(Verb::ReadTree));
        world.advance(Duration::from_secs(3601));
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::LeaseExpired);
        assert_eq!(code(world.put(&lease, "f", "y").await), Code::LeaseExpired);
        assert_eq!(code(world.capture(&lease).await), Code::LeaseExpired);
        assert_eq!(code(world.get(&lease, "f").await), Code::LeaseExpired);
        let token = ops::caller::identify(&world.berth, &world.berth.token_for(&lease.lease)).await.unwrap();
        let by_token = ops::exec::run(&world.berth, &token, lease.lease.id, crate::harness::command(1, &["true"])).await;
        assert_eq!(code(by_token), Code::LeaseExpired);
        assert_eq!((world.memory.calls(Verb::Exec), world.memory.calls(Verb::WriteFile), world.memory.calls(Verb::ReadTree)), (execs, writes, reads));
        assert_eq!(world.sandbox(&lease).await.sandbox.workspace_seq, seq, "nothing was admitted");
        assert_eq!(world.lease(&lease).await.lease.status, Status::Active, "nobody has claimed the expiry");
    }

    async fn a_pending_lease_has_no_expiry_and_its_time_starts_at_activation(world) {
        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let mut input = want("run", Some("s"));
        input.ttl_seconds = Some(60);
        input.waiting.respond_async = true;
        let pending = world.acquire_with(input).await.unwrap().0;
        stuck.reached().await;
        assert_eq!((pending.lease.status, pending.lease.expires_at), (Status::Pending, None));
        assert_eq!(code(world.renew(&pending, 60).await), Code::LeaseNotActive);
        world.advance(Duration::from_secs(120));
        ops::reap::pass(&world.berth).await.unwrap();
        assert_eq!(world.lease(&pending).await.lease.status, Status::Pending, "it cannot expire before it has begun");
        stuck.release();
        until("it is active", async || world.lease(&pending).await.lease.status == Status::Active).await;
        let active = world.lease(&pending).await;
        let (from, to) = (active.lease.acquired_at.unwrap(), active.lease.expires_at.unwrap());
        assert_eq!(to.since(from), Duration::from_secs(60));
        assert!(to > active.server_time);
    }

    async fn an_exec_extends_nothing(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let exec = world.exec(&lease, &["true"]).await.unwrap();
        assert_eq!(exec.operation.lease_expires_at, lease.lease.expires_at, "the answer says until when");
        assert_eq!(world.lease(&lease).await.lease.expires_at, lease.lease.expires_at);
    }
}

/// The renew asks for its row's lock while somebody else holds it; that somebody lets the time pass, claims the expiry and commits.
/// The renew, begun in time, is told the truth under the lock: too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renew_that_waited_on_the_lock_past_the_expiry_and_its_claim_is_not_granted_postgres() {
    let world = World::new(Db::Postgres).await;
    let lease = world.acquire("run", "s").await.unwrap();
    world.exec(&lease, &["true"]).await.unwrap();
    let mut lock = sqlx::PgConnection::connect(&world.url).await.unwrap();
    lock.execute("BEGIN").await.unwrap();
    sqlx::query("UPDATE sandbox SET lock_seq = lock_seq + 1 WHERE id = $1").bind(lease.lease.sandbox_id).execute(&mut lock).await.unwrap();
    let renew = {
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        tokio::task::spawn(async move { ops::renew::renew(&berth, &caller, id, Renew { ttl_seconds: Some(600), exact: false }).await })
    };
    waits_for_a_lock(&world, 1).await;
    world.advance(Duration::from_secs(3601));
    // The claim of the expiry, in the transaction that holds the lock: the lease's end is stored and the instance is draining.
    let release = serde_json::json!({
        "ends_as": "expired", "disposition": "stop_and_retain", "save": "auto", "discard": false,
        "cancel_active_work": true, "unattended": true, "evidence": false
    });
    sqlx::query("UPDATE lease SET release = $2 WHERE id = $1")
        .bind(lease.lease.id)
        .bind(sqlx::types::Json(release))
        .execute(&mut lock)
        .await
        .unwrap();
    sqlx::query("UPDATE instance SET status = 'draining' WHERE id = $1").bind(lease.lease.instance_id).execute(&mut lock).await.unwrap();
    lock.execute("COMMIT").await.unwrap();
    assert_eq!(code(renew.await.unwrap()), Code::TransitionInProgress);
    world.settle().await;
    assert_eq!(world.lease(&lease).await.lease.status, Status::Expired, "the claim won, and it alone");
}

/// An exec that waited on the lock past the expiry is not admitted: the time is read under the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_that_waited_on_the_lock_past_the_expiry_is_not_admitted_postgres() {
    let world = World::new(Db::Postgres).await;
    let lease = world.acquire("run", "s").await.unwrap();
    let mut lock = sqlx::PgConnection::connect(&world.url).await.unwrap();
    lock.execute("BEGIN").await.unwrap();
    sqlx::query("UPDATE sandbox SET lock_seq = lock_seq + 1 WHERE id = $1").bind(lease.lease.sandbox_id).execute(&mut lock).await.unwrap();
    let exec = world.running(&lease, &["true"]);
    waits_for_a_lock(&world, 1).await;
    world.advance(Duration::from_secs(3601));
    lock.execute("COMMIT").await.unwrap();
    assert_eq!(code(exec.await.unwrap()), Code::LeaseExpired);
    assert_eq!(world.memory.calls(Verb::Exec), 0);
}

async fn waits_for_a_lock(world: &World, waiters: i64) {
    let mut look = sqlx::PgConnection::connect(&world.url).await.unwrap();
    until("somebody waits for the lock", async || {
        let waiting: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
                .fetch_one(&mut look)
                .await
                .unwrap();
        waiting >= waiters
    })
    .await;
}
