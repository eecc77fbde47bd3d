//! Where checkpoints are required, nobody's consent destroys what none of them holds.

use berth::error::Code;
use berth::model::environment::CheckpointPolicy;
use berth::model::lease::{Disposition, Save, Status};
use berth::ops;
use berth::ops::input::ReleaseRequest;
use berth::ops::view::{Answered, LeaseView};

use crate::both;
use crate::harness::{World, code, want};

async fn dirty(world: &World) -> LeaseView {
    world
        .environment("e", |e| {
            e.checkpoint_policy = CheckpointPolicy { required: Some(true), on_release: Some(Save::None), ..CheckpointPolicy::default() };
        })
        .await;
    let mut acquire = want("run", Some("s"));
    acquire.environment = "e".to_owned();
    let (lease, _) = world.acquire_with(acquire).await.unwrap();
    world.put(&lease, "f", "precious").await.unwrap();
    lease
}

both! {
    async fn a_required_checkpoint_stands_before_destroy_and_replacement(world) {
        let lease = dirty(&world).await;
        let destroy = |checkpoint, discard_workspace| ReleaseRequest {
            disposition: Some(Disposition::Destroy),
            checkpoint,
            discard_workspace,
            ..ReleaseRequest::default()
        };
        assert_eq!(code(world.release_with(&lease, destroy(Some(Save::None), false)).await), Code::CheckpointRequired);
        assert_eq!(code(world.release_with(&lease, destroy(None, true)).await), Code::CheckpointRequired);
        let deleted = ops::release::delete(&world.berth, &world.caller, lease.lease.id, true).await;
        assert_eq!(code(deleted), Code::CheckpointRequired);
        assert_eq!(world.lease(&lease).await.lease.status, Status::Active);
        // Stopped, not saved: the next acquire may not throw it away either.
        let stop = ReleaseRequest { checkpoint: Some(Save::None), ..ReleaseRequest::default() };
        world.release_with(&lease, stop).await.unwrap();
        let mut discard = want("next", Some("s"));
        (discard.environment, discard.discard_workspace) = ("e".to_owned(), true);
        assert_eq!(code(world.acquire_with(discard.clone()).await), Code::CheckpointRequired);
        assert_eq!(world.memory.inventory().len(), 1);
        discard.discard_workspace = false;
        let (next, _) = world.acquire_with(discard).await.unwrap();
        assert_eq!(world.get(&next, "f").await.unwrap(), "precious");
        world.capture(&next).await.unwrap();
        assert_eq!(ops::release::delete(&world.berth, &world.caller, next.lease.id, true).await.unwrap().1, Answered::Existing);
    }

    async fn a_policy_of_no_checkpoint_is_no_consent_where_one_is_required(world) {
        let lease = dirty(&world).await;
        let destroy = ReleaseRequest { disposition: Some(Disposition::Destroy), ..ReleaseRequest::default() };
        world.release_with(&lease, destroy).await.unwrap();
        assert_eq!(world.checkpoints(&lease).await.len(), 1);
    }
}
