//! `checkpoint_policy.required`: nothing is replaced or destroyed that no verified portable checkpoint holds.

use berth::error::Code;
use berth::model::instance::{HoldReason, Status as InstanceStatus};
use berth::model::lease::{Disposition, OnUnavailable, Save, Status};
use berth::ops::input::{Acquire, Recover, ReleaseRequest, Unsaved};
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};

use super::*;
use crate::both;
use crate::harness::code;

fn wanting(holder: &str) -> Acquire {
    let mut input = want(holder, Some("s"));
    "careful".clone_into(&mut input.environment);
    input
}

async fn careful(world: &World) -> LeaseView {
    world.environment("careful", |e| e.checkpoint_policy.required = Some(true)).await;
    let lease = world.acquire_with(wanting("run")).await.unwrap().0;
    world.put(&lease, "f", "work").await.unwrap();
    lease
}

fn destroy() -> ReleaseRequest {
    ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() }
}

both! {
    async fn a_destroy_that_cannot_save_destroys_nothing(world) {
        let lease = careful(&world).await;
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        assert_eq!(code(world.release_with(&lease, destroy()).await), Code::CheckpointRequired);
        let still = world.lease(&lease).await;
        assert_eq!((still.lease.status, still.instance.unwrap().status), (Status::Active, InstanceStatus::Running));
        assert_eq!(world.faults.count(Verb::Destroy), 0);
        world.faults.clear();
        world.release_with(&lease, destroy()).await.unwrap();
        assert!(current(&world, &lease).await.is_some(), "saved first");
        let next = world.acquire_with(wanting("next")).await.unwrap().0;
        assert_eq!(world.get(&next, "f").await.unwrap(), "work");
    }

    async fn an_expiry_that_would_destroy_holds_the_box_instead(world) {
        world
            .environment("careful", |e| {
                e.checkpoint_policy.required = Some(true);
                e.checkpoint_policy.on_expiry = Some(Save::None);
                e.policy = Some(berth::model::lease::Policy::Ephemeral);
            })
            .await;
        let lease = world.acquire_with(wanting("run")).await.unwrap().0;
        world.put(&lease, "f", "work").await.unwrap();
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.advance(TTL);
        world.settle().await;
        let held = world.row(lease.lease.instance_id.unwrap()).await;
        assert_eq!((held.status, held.hold_reason), (InstanceStatus::Stopped, Some(HoldReason::CaptureFailed)));
        assert_eq!(world.faults.count(Verb::Destroy), 0);
    }

    async fn a_replacement_needs_a_checkpoint(world) {
        let lease = careful(&world).await;
        world.faults.always(Verb::ReadTree, Fault::FailBefore(Kind::Transient));
        world.release_with(&lease, ReleaseRequest { disposition: Some(Disposition::KeepRunning), checkpoint: Some(Save::None), ..Default::default() }).await.unwrap();
        let mut other = wanting("next");
        other.harness = Some("another".to_owned());
        let made = world.memory.calls(Verb::Ensure);
        assert_eq!(code(world.acquire_with(other.clone()).await), Code::CheckpointRequired);
        let mut discarding = wanting("next");
        discarding.discard_workspace = true;
        assert_eq!(code(world.acquire_with(discarding).await), Code::CheckpointRequired);
        assert_eq!((world.memory.calls(Verb::Ensure), world.faults.count(Verb::Destroy)), (made, 0), "nothing created, nothing destroyed");
        world.faults.clear();
        let next = world.acquire_with(other).await.unwrap().0;
        assert_eq!(world.get(&next, "f").await.unwrap(), "work");
    }

    async fn a_restore_may_not_discard(world) {
        let lease = careful(&world).await;
        let saved = world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "unsaved").await.unwrap();
        assert_eq!(code(restore(&world, &lease, saved.id, Unsaved::Discard).await), Code::CheckpointRequired);
        assert_eq!(world.get(&lease, "f").await.unwrap(), "unsaved");
        let back = restore(&world, &lease, saved.id, Unsaved::Capture).await.unwrap();
        assert_eq!(world.get(&back, "f").await.unwrap(), "work");
    }

    async fn lost_work_is_not_replaced_by_older_work_unasked(world) {
        let lease = careful(&world).await;
        world.capture(&lease).await.unwrap();
        world.put(&lease, "f", "lost").await.unwrap();
        world.memory.vanish(&world.provider_ref(&lease).await);
        world.get(&lease, "f").await.expect_err("it is gone");
        let made = world.memory.calls(Verb::Ensure);
        let mut input = Recover { carried: carried(&lease), ..Default::default() };
        assert_eq!(code(ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input.clone()).await), Code::CheckpointRequired);
        assert_eq!(world.memory.calls(Verb::Ensure), made, "nothing created");
        input.on_unavailable = Some(OnUnavailable::OlderRevision);
        let back = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.unwrap().0;
        assert_eq!(world.get(&back, "f").await.unwrap(), "work", "asked for, and told");
    }
}
