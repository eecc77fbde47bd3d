//! What a whole Berth makes of what happens to its containers.

use std::time::Duration;

use berth::error::{Code, Error};
use berth::model::instance::Status;
use berth::ops::view::LeaseView;
use berth::ops::{self, Settings};
use berth::provider::Provider;
use berth::provider::memory::Memory;
use serde_json::json;

use super::engine::{IMAGE, Place, said, shared};
use super::wire::{Fault, Proxy};
use crate::harness::{Db, World, carried, quick, settle, until, want};

/// A world whose environment `boxes` has real containers.
async fn world(place: &Place) -> World {
    let world =
        World::over(Db::Sqlite, Settings { resume_retry: Duration::from_secs(1), ..quick() }, Memory::new(), shared(&place.provider)).await;
    world
        .environment("boxes", |input| {
            input.provider = "docker".into();
            input.config = json!({ "image": IMAGE });
        })
        .await;
    world
}

async fn acquire(world: &World, holder: &str, session: &str) -> LeaseView {
    let input = berth::ops::input::Acquire { environment: "boxes".to_owned(), ..want(holder, Some(session)) };
    world.acquire_with(input).await.unwrap().0
}

async fn recover(world: &World, lease: &LeaseView) -> Result<LeaseView, Error> {
    let lease = world.lease(lease).await;
    let input = ops::input::Recover { carried: carried(&lease), ..Default::default() };
    ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await.map(|(view, _)| view)
}

async fn at_rest(world: &World) {
    settle(&world.berth).await;
    assert!(world.ledger().await.iter().all(|row| matches!(row.status, Status::Destroyed | Status::Lost)), "something lives on");
    let deployment = world.berth.deployment.id;
    assert_eq!(said(&["ps", "-aq", "-f", &format!("label=berth.deployment={deployment}")]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_container_is_lost_and_recovered_once() {
    let place = Place::new();
    let world = world(&place).await;
    let lease = acquire(&world, "one", "a").await;
    world.put(&lease, "precious", "content").await.unwrap();
    world.capture(&lease).await.unwrap();
    said(&["rm", "-f", &world.provider_ref(&lease).await]);
    let lost = world.exec(&lease, &["true"]).await.unwrap_err();
    assert_eq!(lost.code, Code::InstanceLost);
    let (a, b, c, d) = tokio::join!(recover(&world, &lease), recover(&world, &lease), recover(&world, &lease), recover(&world, &lease));
    for recovered in [a, b, c, d] {
        recovered.unwrap();
    }
    until("the lease is active", async || world.lease(&lease).await.lease.generation == 2).await;
    let now = world.lease(&lease).await;
    assert_eq!(world.get(&now, "precious").await.unwrap(), "content");
    let deployment = world.berth.deployment.id;
    let containers = said(&["ps", "-aq", "-f", &format!("label=berth.deployment={deployment}")]);
    assert_eq!(containers.lines().count(), 1, "{containers}");
    world.delete(&now).await.unwrap();
    at_rest(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_was_stopped_or_paused_goes_on() {
    let place = Place::new();
    let world = world(&place).await;
    let lease = acquire(&world, "one", "a").await;
    world.put(&lease, "kept", "content").await.unwrap();
    let container = world.provider_ref(&lease).await;
    for verb in ["stop", "pause", "kill"] {
        said(&[verb, &container]);
        let ran = world.exec(&lease, &["cat", "kept"]).await.unwrap();
        assert_eq!(ran.operation.exit_code, Some(0), "after docker {verb}");
        let now = world.lease(&lease).await;
        assert_eq!((now.lease.generation, world.provider_ref(&now).await), (1, container.clone()), "after docker {verb}");
    }
    world.delete(&lease).await.unwrap();
    at_rest(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_loses_nothing_and_uses_no_attempt() {
    let proxy = Proxy::start();
    let place = Place::at(&proxy.address(), json!({ "image": IMAGE }));
    let world = world(&place).await;
    let (kept, doomed) = (acquire(&world, "one", "a").await, acquire(&world, "two", "b").await);
    proxy.set(Fault::Refuse);
    let begun = std::time::Instant::now();
    let refused = world.exec(&kept, &["true"]).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderUnavailable);
    assert!(refused.retry_after.is_some() && begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let input = berth::ops::input::Acquire { environment: "boxes".to_owned(), ..want("three", None) };
    let refused = world.acquire_with(input).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after.is_some()), (Code::ProviderUnavailable, true));
    let _ = world.delete(&doomed).await;
    ops::drive::pass(&world.berth).await.unwrap();
    let rows = world.ledger().await;
    assert!(rows.iter().all(|row| row.status != Status::Lost && row.cleanup_attempts == 0), "{rows:?}");
    proxy.set(Fault::None);
    assert_eq!(world.exec(&kept, &["true"]).await.unwrap().operation.exit_code, Some(0));
    world.delete(&kept).await.unwrap();
    world.execute("UPDATE instance SET cleanup_next_at = 0 WHERE status = 'pending_cleanup'").await;
    at_rest(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_engine_proves_nothing() {
    let proxy = Proxy::start();
    let place = Place::at(&proxy.address(), json!({ "image": IMAGE }));
    let world = world(&place).await;
    let (kept, doomed) = (acquire(&world, "one", "a").await, acquire(&world, "two", "b").await);
    proxy.set(Fault::Emptied);
    let refused = world.exec(&kept, &["true"]).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderUnavailable, "{refused}");
    let _ = world.delete(&doomed).await;
    ops::drive::pass(&world.berth).await.unwrap();
    let rows = world.ledger().await;
    assert!(rows.iter().all(|row| !matches!(row.status, Status::Lost | Status::Destroyed) && row.cleanup_attempts == 0), "{rows:?}");
    proxy.set(Fault::None);
    assert_eq!(world.exec(&kept, &["true"]).await.unwrap().operation.exit_code, Some(0));
    world.delete(&kept).await.unwrap();
    world.execute("UPDATE instance SET cleanup_next_at = 0 WHERE status = 'pending_cleanup'").await;
    at_rest(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_make_nothing_twice() {
    let proxy = Proxy::start();
    let place = Place::at(&proxy.address(), json!({ "image": IMAGE }));
    let world = world(&place).await;
    for path in ["/containers/create", "/start"] {
        proxy.set(Fault::LoseAnswer(path));
        let lease = acquire(&world, "one", "a").await;
        let deployment = world.berth.deployment.id;
        let containers = said(&["ps", "-aq", "-f", &format!("label=berth.deployment={deployment}")]);
        assert_eq!(containers.lines().count(), 1, "{path}: {containers}");
        assert_eq!(world.exec(&lease, &["true"]).await.unwrap().operation.exit_code, Some(0));
        world.delete(&lease).await.unwrap();
        at_rest(&world).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_proves_nothing_and_its_command_ends() {
    let proxy = Proxy::start();
    let place = Place::at(&proxy.address(), json!({ "image": IMAGE }));
    let sandbox = place.subject().sandbox().await;
    proxy.set(Fault::CutStream(200_000));
    // Connections of before are closed, and whoever kept one finds out by using it.
    for _ in 0..5 {
        let _ = place.subject().provider.binding().await;
    }
    let seen =
        sandbox.start(berth::provider::conformance::command(["sh", "-c", "seq 1 1000000; sleep 300"].map(str::to_owned).to_vec())).await;
    let mut events = seen.events;
    let mut exit = false;
    while let Some(event) = events.recv().await {
        exit |= matches!(event, berth::provider::ExecEvent::Exit(_));
    }
    assert!(!exit, "half an output was told as a whole one");
    proxy.set(Fault::None);
    sandbox.becomes_quiet().await;
    proxy.set(Fault::Hang);
    let hung = std::time::Instant::now();
    assert!(place.subject().provider.binding().await.is_err());
    assert!(hung.elapsed() < Duration::from_secs(8), "{:?}", hung.elapsed());
    proxy.set(Fault::None);
    sandbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_no_row_names_is_swept_and_nothing_else() {
    let place = Place::new();
    let world = world(&place).await;
    let lease = acquire(&world, "one", "a").await;
    let wanted = ops::input::Capture {
        carried: carried(&lease),
        kind: Some(berth::model::checkpoint::Kind::ProviderNative),
        attach: true,
        source_turn_id: None,
        source_tool_call_id: None,
        waiting: ops::input::Waiting::default(),
    };
    let (saved, _) = ops::capture::capture(&world.berth, &world.caller, lease.lease.id, wanted).await.unwrap();
    let kept = saved.provider_ref.unwrap();
    let container = world.provider_ref(&lease).await;
    let orphan = place.provider.snapshot(&container, berth::id::new()).await.unwrap().snapshot_ref;
    // Another name of it, and an image that took the labels of one of ours along.
    let (other, travelled) = (format!("other:{}", lease.lease.id), format!("berth-snapshot:{}", berth::id::new()));
    said(&["tag", &orphan, &other]);
    said(&["tag", &kept, &travelled]);
    world.advance(Duration::from_secs(121));
    let report = ops::sweep::pass(&world.berth, false).await.unwrap();
    let told: Vec<_> = report.items.iter().map(|item| (item.kind, item.provider_ref.as_deref(), item.action)).collect();
    assert_eq!(told, [("snapshot", Some(orphan.as_str()), "destroyed")]);
    let images = said(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
    for (image, there) in [(&kept, true), (&orphan, false), (&other, true), (&travelled, true)] {
        assert_eq!(images.lines().any(|line| line == image), there, "{image}: {images}");
    }
    world.delete(&lease).await.unwrap();
    at_rest(&world).await;
    said(&["rmi", &other, &travelled]);
    place.provider.delete_snapshot(&place.provider.binding().await.unwrap(), &kept).await.unwrap();
}
