//! What an operator's dashboard sees: counts of what lives, claims, lag and pool; never a tenant, never an id.

use crate::both;
use crate::harness::World;

/// A series' value in Prometheus text.
async fn series(world: &World, name: &str) -> Option<f64> {
    let text = crate::harness::client::got(world.serve().await.ask("GET", "/metrics")).await;
    assert_eq!(text.status, 200);
    let text = String::from_utf8(text.bytes).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

both! {
    async fn every_call_of_a_provider_is_counted_by_its_outcome(world) {
        let calls = |verb: &str, outcome: &str| {
            format!("berth_provider_calls_total{{provider=\"memory\",verb=\"{verb}\",outcome=\"{outcome}\"}}")
        };
        // The first look begins the recording.
        assert_eq!(series(&world, &calls("ensure", "ok")).await, None);
        let lease = world.acquire("h", "s").await.unwrap();
        assert_eq!(series(&world, &calls("ensure", "ok")).await, Some(1.0));
        world.get(&lease, "missing").await.unwrap_err();
        assert_eq!(series(&world, &calls("read_file", "file_not_found")).await, Some(1.0));
    }

    async fn counts_follow_the_state(world) {
        let lease = world.acquire("h", "s").await.unwrap();
        world.start_background();
        crate::harness::until("the lease is counted", async || series(&world, "berth_leases{status=\"active\"}").await == Some(1.0)).await;
        assert_eq!(series(&world, "berth_instances{status=\"running\"}").await, Some(1.0));
        assert_eq!(series(&world, "berth_instances_quarantined").await, Some(0.0));
        assert_eq!(series(&world, "berth_database_up").await, Some(1.0));
        assert!(series(&world, "berth_background_lag_seconds{task=\"reaper\"}").await.is_some());
        assert!(series(&world, "berth_database_connections{state=\"idle\"}").await.is_some());
        world.delete(&lease).await.unwrap();
        crate::harness::until("nothing is left", async || series(&world, "berth_leases{status=\"active\"}").await == Some(0.0)).await;
        let text = crate::harness::client::got(world.serve().await.ask("GET", "/metrics")).await;
        let text = String::from_utf8(text.bytes).unwrap();
        for id in [lease.lease.id, lease.lease.organization_id, lease.lease.sandbox_id] {
            assert!(!text.contains(&id.to_string()), "no id is a label");
        }
    }
}
