//! What leaves by itself, and what never does.

use berth::ops::retain::{self, Reason};

use super::*;
use crate::both;

/// A lease of an environment that keeps so many revisions, so long.
async fn keeping(world: &World, keep_last: i64, keep_for: Option<i64>) -> LeaseView {
    world
        .environment("keeping", |e| {
            e.checkpoint_policy.keep_last = Some(keep_last);
            e.checkpoint_policy.keep_for_seconds = keep_for;
        })
        .await;
    let mut input = want("run", Some("s"));
    "keeping".clone_into(&mut input.environment);
    input.ttl_seconds = Some(86_400);
    world.acquire_with(input).await.unwrap().0
}

async fn capture_times(world: &World, lease: &LeaseView, times: usize) {
    for n in 0..times {
        world.put(lease, "f", &format!("revision {n}")).await.unwrap();
        world.capture(lease).await.unwrap();
        world.settle().await;
    }
}

both! {
    async fn beyond_keep_last_the_oldest_leave_with_their_bytes(world) {
        let lease = keeping(&world, 3, None).await;
        capture_times(&world, &lease, 6).await;
        let left = world.checkpoints(&lease).await;
        assert_eq!(left.len(), 3);
        assert!(left[0].current && left.iter().all(|c| c.attached_at.is_some()));
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!(objects(&world).await, 3);
        assert_at_rest(&world, &lease).await;
    }

    async fn what_is_younger_than_keep_for_stays(world) {
        let lease = keeping(&world, 2, Some(3600)).await;
        capture_times(&world, &lease, 4).await;
        let verdicts = retain::dry_run(&world.berth, &world.caller, lease.lease.sandbox_id).await.unwrap();
        let reasons: Vec<Reason> = verdicts.iter().map(|v| v.reason).collect();
        assert_eq!(reasons, [Reason::Current, Reason::KeepLast, Reason::KeepFor, Reason::KeepFor]);
        assert_eq!(retain::apply(&world.berth, lease.lease.sandbox_id).await.unwrap(), 0);
        world.advance(Duration::from_secs(3601));
        let verdicts = retain::dry_run(&world.berth, &world.caller, lease.lease.sandbox_id).await.unwrap();
        assert_eq!(verdicts.iter().filter(|v| v.reason == Reason::Surplus).count(), 2);
        let told = world.ask("GET", &format!("/v1/sandboxes/{}/retention", lease.lease.sandbox_id), serde_json::Value::Null).await.ok(200);
        let told: Vec<_> = told["items"].as_array().unwrap().iter().map(|i| (i["reason"].clone(), i["leaves"].clone())).collect();
        let word = |reason: &str, leaves: bool| (serde_json::json!(reason), serde_json::json!(leaves));
        assert_eq!(told, [word("current", false), word("keep_last", false), word("surplus", true), word("surplus", true)]);
        assert_eq!(world.checkpoints(&lease).await.len(), 4, "a dry run changes nothing");
        assert_eq!(retain::apply(&world.berth, lease.lease.sandbox_id).await.unwrap(), 2);
    }

    async fn the_current_and_the_last_portable_stay_whatever_comes_after(world) {
        let lease = keeping(&world, 2, None).await;
        world.put(&lease, "f", "the pointer's").await.unwrap();
        let first = world.capture(&lease).await.unwrap();
        capture_times(&world, &lease, 3).await;
        attach(&world, &lease, 1, world.checkpoints(&lease).await[1].id, true).await.unwrap();
        let pointed = current(&world, &lease).await.unwrap();
        for _ in 0..4 {
            unattached(&world, &lease).await;
        }
        world.settle().await;
        assert!(row(&world, first.id).await.is_none(), "surplus");
        assert_eq!(current(&world, &lease).await.unwrap().id, pointed.id);
        let loose = world.checkpoints(&lease).await.into_iter().filter(|c| c.attached_at.is_none()).count();
        assert_eq!(loose, 2, "unattached ones are counted apart and push no attached one out");
        assert_at_rest(&world, &lease).await;
    }
}
