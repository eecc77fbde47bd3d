//! A GET with `wait_seconds` answers when what is being worked on is done, and not before.

use berth::provider::faults::Verb;
use serde_json::json;

use crate::both;
use crate::harness::World;
use crate::harness::client::Got;

/// Asks for something that is held up, sees that nobody answers yet, lets it go on and returns the answer.
async fn polled(world: &World, path: String, go_on: impl FnOnce()) -> Got {
    let wire = world.serve().await;
    let asked = format!("{path}?wait_seconds=30");
    let mut poll = tokio::task::spawn(async move { wire.get(&asked).await });
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), &mut poll).await.is_err(), "nothing to tell yet");
    go_on();
    let got = poll.await.unwrap();
    assert_eq!(got.status, 200, "{got:?}");
    got
}

both! {
    async fn a_checkpoint_is_awaited(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        world.put(&lease, "a", "1").await.unwrap();
        let mut stuck = world.faults.hang(Verb::ReadTree);
        let headers = [("berth-generation", "1"), ("prefer", "respond-async")];
        let begun = wire.post(&format!("/v1/leases/{}/checkpoints", lease.lease.id), &headers, &json!({})).await;
        assert_eq!((begun.status, &begun.json["status"]), (202, &json!("capturing")), "{begun:?}");
        stuck.reached().await;
        let done = polled(&world, begun.header("location").to_owned(), || stuck.release()).await;
        assert_eq!((done.id(), &done.json["status"]), (begun.id(), &json!("attached")), "{done:?}");
    }

    async fn an_instance_and_its_sandbox_are_awaited(world) {
        let lease = world.acquire("h", "s").await.unwrap();
        let instance = lease.lease.instance_id.unwrap();
        let mut stuck = world.faults.hang(Verb::Destroy);
        let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
        let ended = tokio::task::spawn(async move { berth::ops::release::delete(&berth, &caller, id, true).await });
        stuck.reached().await;
        let gone = polled(&world, format!("/v1/instances/{instance}"), || stuck.release()).await;
        assert_eq!(gone.json["status"], json!("destroyed"), "{gone:?}");
        ended.await.unwrap().unwrap();

        let mut stuck = world.faults.hang_after(Verb::Ensure);
        let (berth, caller) = (world.berth.clone(), world.caller.clone());
        let made = tokio::task::spawn(async move { berth::ops::acquire::acquire(&berth, &caller, crate::harness::want("h", Some("s"))).await });
        stuck.reached().await;
        let ready = polled(&world, format!("/v1/sandboxes/{}", lease.lease.sandbox_id), || stuck.release()).await;
        assert_eq!(ready.json["instance"]["status"], json!("running"), "{ready:?}");
        made.await.unwrap().unwrap();
    }
}
