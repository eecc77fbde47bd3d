//! A sandbox outlives the hard end that its provider sets: it is saved, moved and re-stamped in time, under the same lease.

use std::sync::Arc;
use std::time::Duration;

use berth::error::{Code, Result};
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::{Access, Disposition, How, Status};
use berth::model::operation::Status as OperationStatus;
use berth::model::token::Claims;
use berth::ops::input::{Recover, ReleaseRequest, Renew, Waiting};
use berth::ops::view::LeaseView;
use berth::ops::{self, Berth, Caller, Credential, Settings};
use berth::provider::faults::{Fault, Verb};
use berth::provider::{Kind, Provider};
use berth::store::ClaimKind;
use serde_json::json;

use crate::both;
use crate::harness::{World, carried, code, quick, settle, until, want};

/// How long the provider lets an instance live.
const LIFE: Duration = Duration::from_secs(7200);
/// Past the lead before its end.
const DUE: Duration = Duration::from_secs(7200 - 900 + 1);
/// Longer than a claim lasts without a renewal.
const LAPSE: Duration = Duration::from_secs(31);

/// A lease in an environment whose instances do not live for ever.
async fn mortal(world: &World, holder: &str, access: Access) -> Result<LeaseView> {
    let mut input = want(holder, Some("s"));
    "mortal".clone_into(&mut input.environment);
    (input.ttl_seconds, input.access) = (Some(20_000), access);
    world.acquire_with(input).await.map(|(view, _)| view)
}

/// A world with such a lease and work in it.
async fn begun(world: &World) -> LeaseView {
    world.environment("mortal", |input| input.config = json!({ "lifetime_seconds": LIFE.as_secs() })).await;
    let lease = mortal(world, "run", Access::ReadWrite).await.unwrap();
    assert!(world.row(lease.lease.instance_id.unwrap()).await.provider_expires_at.is_some(), "the provider attests its end");
    world.put(&lease, "f", "work").await.unwrap();
    lease
}

async fn rotate(world: &World) -> usize {
    rotate_at(&world.berth).await
}

async fn rotate_at(server: &Arc<Berth>) -> usize {
    let due = ops::rotate::pass(server).await.unwrap().due;
    until("the rotation is over", async || server.work.under_way() == 0).await;
    due
}

/// Pauses that no slow machine outlasts.
fn slow() -> Settings {
    Settings { reaper_period: Duration::from_secs(60), ..quick() }
}

/// Whether a rotation keeps writes out.
async fn is_rotating(world: &World, lease: &LeaseView) -> bool {
    let gate = world.berth.store.read().await.unwrap().claim_of(lease.lease.sandbox_id, ClaimKind::Gate).await.unwrap();
    gate.is_some_and(|gate| gate.detail == "rotation")
}

both! {
    async fn before_its_provider_ends_it_a_sandbox_moves_under_the_same_lease(world) {
        let lease = begun(&world).await;
        let reader = mortal(&world, "reader", Access::ReadOnly).await.unwrap();
        world.exec(&lease, &["linger", "60000000"]).await.unwrap();
        let former = world.row(lease.lease.instance_id.unwrap()).await;
        world.advance(DUE.saturating_sub(Duration::from_secs(2)));
        assert_eq!(rotate(&world).await, 0, "not before its time");
        world.advance(Duration::from_secs(2));
        assert_eq!(rotate(&world).await, 1);

        let after = world.lease(&lease).await;
        assert_eq!((after.lease.status, after.lease.generation, after.lease.epoch), (Status::Active, 2, lease.lease.epoch));
        assert_eq!((&after.lease.holder, after.lease.expires_at), (&lease.lease.holder, lease.lease.expires_at));
        let how = after.lease.acquisition.clone().unwrap();
        assert_eq!((how.outcome, how.reason.as_deref(), how.previous_instance_id), (How::Restored, Some("rotated"), Some(former.id)));
        let next = world.row(after.lease.instance_id.unwrap()).await;
        assert!(next.provider_expires_at > former.provider_expires_at, "it has a life of its own");
        assert_eq!(world.row(former.id).await.status, InstanceStatus::Destroyed);
        world.assert_ledger_is_inventory().await;
        assert_eq!(world.get(&after, "f").await.unwrap(), "work");
        assert_eq!(world.memory.processes(next.provider_ref.as_deref().unwrap()).await.unwrap(), 0, "processes ended");
        assert!(!world.sandbox(&after).await.is_dirty(), "everything is saved");
        assert_eq!((world.lease(&reader).await.lease.generation, world.get(&reader, "f").await.unwrap().as_str()), (2, "work"));

        // The former token reads and renews; its writes are told that their sandbox is gone, and a renewal hands out the present one.
        let claims = Claims { lease: lease.lease.id, epoch: 1, generation: 1 };
        let former_token = Caller { credential: Credential::Token(claims), ..world.caller.clone() };
        let read = ops::files::read(&world.berth, &former_token, lease.lease.id, "f").await;
        assert!(read.is_ok());
        assert_eq!(code(world.put(&lease, "f", "late").await), Code::StaleGeneration);
        let input = Renew { ttl_seconds: Some(20_000), exact: false };
        let renewed = ops::renew::renew(&world.berth, &former_token, lease.lease.id, input).await.unwrap();
        assert_eq!(renewed.token, Some(world.berth.token_for(&after.lease)));
        world.put(&after, "f", "more").await.unwrap();
        assert_eq!(rotate(&world).await, 0, "once is enough");
    }

    async fn what_was_decided_for_the_former_instance_happens_to_its_successor(world) {
        let lease = begun(&world).await;
        let reader = mortal(&world, "reader", Access::ReadOnly).await.unwrap();
        let wish = ReleaseRequest { disposition: Some(Disposition::Destroy), ..ReleaseRequest::default() };
        world.release_with(&lease, wish).await.unwrap();
        world.advance(DUE);
        assert_eq!(rotate(&world).await, 1);
        let after = world.lease(&reader).await;
        assert_eq!(after.lease.generation, 2);
        assert_eq!(world.row(after.lease.instance_id.unwrap()).await.disposition, Some(Disposition::Destroy));
        world.delete(&after).await.unwrap();
        world.settle().await;
        assert_eq!(world.row(after.lease.instance_id.unwrap()).await.status, InstanceStatus::Destroyed);
        assert!(world.memory.inventory().is_empty());
    }

    async fn a_running_command_may_finish_and_what_is_written_meanwhile_waits(world) {
        let lease = begun(&world).await;
        let running = world.started(&lease, &["sh", "-c", "sleep 700; write g done"]).await;
        world.advance(DUE);
        assert_eq!(ops::rotate::pass(&world.berth).await.unwrap().due, 1);
        until("the gate is closed", async || is_rotating(&world, &lease).await).await;
        let ended = running.await.unwrap().unwrap();
        assert_eq!((ended.operation.status, ended.operation.exit_code), (OperationStatus::Exited, Some(0)));
        until("the rotation is over", async || world.berth.work.under_way() == 0).await;
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.generation, world.get(&after, "g").await.unwrap().as_str()), (2, "done"));
    }

    async fn a_command_that_had_its_time_is_cut_off_and_nobody_knows_how_it_ended(world) {
        let lease = begun(&world).await;
        let running = world.started(&lease, &["sh", "-c", "sleep 60000; write g late"]).await;
        world.advance(DUE);
        assert_eq!(ops::rotate::pass(&world.berth).await.unwrap().due, 1);
        until("the gate is closed", async || is_rotating(&world, &lease).await).await;
        // The capture's own time and a minute before the end.
        world.advance(LIFE.saturating_sub(DUE).saturating_sub(Duration::from_secs(600 + 60)));
        assert_eq!(running.await.unwrap().unwrap().operation.status, OperationStatus::Unknown);
        until("the rotation is over", async || world.berth.work.under_way() == 0).await;
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.generation, world.get(&after, "f").await.unwrap().as_str()), (2, "work"));
        assert_eq!(code(world.get(&after, "g").await), Code::FileNotFound);
    }

    async fn a_box_that_cannot_be_saved_is_left_as_it_is_and_tried_again(world) {
        let lease = begun(&world).await;
        world.advance(DUE);
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        assert_eq!(rotate(&world).await, 1);
        assert_eq!(rotate(&world).await, 0, "not at once");
        assert_eq!(world.lease(&lease).await.lease.generation, 1);
        world.put(&lease, "f", "goes on").await.unwrap();
        assert!(world.exec(&lease, &["true"]).await.is_ok());
        world.faults.clear();
        until("it is tried again", async || rotate(&world).await == 1).await;
        let after = world.lease(&lease).await;
        assert_eq!((after.lease.generation, world.get(&after, "f").await.unwrap().as_str()), (2, "goes on"));
        world.assert_ledger_is_inventory().await;
    }

    async fn where_nothing_can_follow_the_holder_is_left_in_peace(world) {
        let lease = begun(&world).await;
        world.exec(&lease, &["linger", "60000000"]).await.unwrap();
        let provider_ref = world.provider_ref(&lease).await;
        let mut tx = world.berth.store.begin().await.unwrap();
        let now = tx.now().await.unwrap();
        tx.archive_environments_of(world.caller.organization, now).await.unwrap();
        tx.commit().await.unwrap();
        let (one, other) = (world.another_with(slow()).await, world.another_with(slow()).await);
        for server in [&one, &other] {
            server.store.offset().advance(DUE);
        }
        let touched = || world.memory.calls(Verb::Fence) + world.memory.calls(Verb::ReadTree);
        let before = touched();
        assert_eq!(rotate_at(&one).await, 1);
        assert_eq!(touched(), before, "nothing was asked of the provider");
        assert_eq!(world.memory.processes(&provider_ref).await.unwrap(), 1, "what runs goes on");
        assert!(!is_rotating(&world, &lease).await);
        assert_eq!(rotate_at(&other).await, 0, "the pause is the row's");
        other.store.offset().advance(slow().reaper_period * 7);
        assert_eq!(rotate_at(&other).await, 1, "and it ends");
        assert_eq!(world.lease(&lease).await.lease.generation, 1);
    }

    async fn what_nobody_leases_and_cannot_be_saved_is_not_tried_at_every_pass(world) {
        let lease = begun(&world).await;
        world.release(&lease).await.unwrap();
        assert_eq!(world.text("UPDATE sandbox SET synced_seq = NULL RETURNING 'dirty'").await, "dirty");
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        let server = world.another_with(slow()).await;
        server.store.offset().advance(DUE);
        assert_eq!(rotate_at(&server).await, 1);
        let former = lease.lease.instance_id.unwrap();
        assert!(world.row(former).await.hold_reason.is_some(), "held");
        assert_eq!(rotate_at(&server).await, 0, "not at once");
        server.store.offset().advance(slow().reaper_period * 7);
        assert_eq!(rotate_at(&server).await, 1);
        assert!(world.row(former).await.status.is_live(), "nothing is given up");
    }

    async fn without_a_successor_all_stays_until_the_provider_ends_it_and_then_it_is_a_loss(world) {
        let lease = begun(&world).await;
        world.advance(DUE);
        world.faults.always(Verb::Ensure, Fault::FailBefore(Kind::Refused));
        assert_eq!(rotate(&world).await, 1);
        assert_eq!(world.lease(&lease).await.lease.generation, 1);
        assert!(world.exec(&lease, &["true"]).await.is_ok(), "the holder goes on where it was");
        world.faults.clear();
        world.advance(LIFE.saturating_sub(DUE));
        world.memory.end_lives();
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::InstanceLost);
        let input = Recover { carried: carried(&lease), restore_checkpoint_id: None, on_unavailable: None, waiting: Waiting::default() };
        let (after, _) = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap();
        assert_eq!(world.get(&after, "f").await.unwrap(), "work", "what the rotation had saved");
        settle(&world.berth).await;
        world.assert_ledger_is_inventory().await;
    }

    async fn a_rotator_that_is_lost_on_the_way_is_followed_by_another(world) {
        let lease = begun(&world).await;
        world.advance(DUE);
        let mut stuck = world.faults.hang_after(Verb::WriteTree);
        assert_eq!(ops::rotate::pass(&world.berth).await.unwrap().due, 1);
        stuck.reached().await;
        assert!(is_rotating(&world, &lease).await);
        world.advance(LAPSE);
        let other = world.another().await;
        settle(&other).await;
        assert_eq!(ops::rotate::pass(&other).await.unwrap().due, 1);
        until("the other rotator is done", async || other.work.under_way() == 0).await;
        let after = world.lease(&lease).await;
        assert!(after.lease.generation > 1);
        world.put(&after, "f", "more").await.unwrap();
        stuck.release();
        until("the former rotator is done", async || world.berth.work.under_way() == 0).await;
        settle(&other).await;
        assert_eq!(world.lease(&lease).await.lease.instance_id, after.lease.instance_id, "it changes nothing any more");
        assert_eq!(world.get(&after, "f").await.unwrap(), "more");
        world.assert_ledger_is_inventory().await;
    }

    async fn what_nobody_leases_is_saved_and_ended_in_time(world) {
        let lease = begun(&world).await;
        world.release(&lease).await.unwrap();
        let former = lease.lease.instance_id.unwrap();
        assert_eq!(world.row(former).await.status, InstanceStatus::Stopped);
        world.advance(DUE);
        assert_eq!(rotate(&world).await, 1);
        settle(&world.berth).await;
        assert_eq!(world.row(former).await.status, InstanceStatus::Destroyed);
        assert!(world.memory.inventory().is_empty());
        let next = mortal(&world, "next", Access::ReadWrite).await.unwrap();
        assert_eq!((next.lease.generation, world.get(&next, "f").await.unwrap().as_str()), (2, "work"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waited_in_vain_for_a_rotation_is_told_so() {
    let world = World::with(crate::harness::Db::Sqlite, Settings { gate_wait: Duration::from_millis(50), ..quick() }).await;
    let lease = begun(&world).await;
    let _running = world.started(&lease, &["sh", "-c", "sleep 60000"]).await;
    world.advance(DUE);
    assert_eq!(ops::rotate::pass(&world.berth).await.unwrap().due, 1);
    until("writes wait in vain", async || world.put(&lease, "f", "late").await.is_err_and(|e| e.code == Code::RotationInProgress)).await;
    world.advance(LIFE);
    until("the rotation is over", async || world.berth.work.under_way() == 0).await;
}
