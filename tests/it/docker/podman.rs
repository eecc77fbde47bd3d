//! The same provider on Podman's service; tests/run.sh starts it beside the Docker engines.

use std::process::Command;

use berth::provider::conformance::{commands, files, lifecycle};
use berth::provider::{Observation, Presence, Provider};
use serde_json::json;

use super::engine::{IMAGE, Place};

fn host() -> String {
    std::env::var("BERTH_TEST_PODMAN").expect("BERTH_TEST_PODMAN names Podman's service, as tests/run.sh sets it")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn podman_keeps_the_contract_of_lifecycle_commands_and_files() {
    let place = Place::at(&host(), json!({ "image": IMAGE }));
    lifecycle::all(place.subject()).await;
    commands::all(place.subject()).await;
    files::all(place.subject()).await;
    assert_eq!(place.left_over(), 0);
}

/// Its service says another id each time; what it has is ours as long as its data root is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn podman_is_known_by_its_data_root() {
    let (one, other) = (Place::at(&host(), json!({ "image": IMAGE })), Place::at(&host(), json!({ "image": IMAGE })));
    let binding = one.provider.binding().await.unwrap();
    assert!(binding.starts_with("podman:"), "{binding}");
    assert_eq!(other.provider.binding().await.unwrap(), binding);
    let sandbox = one.subject().sandbox().await;
    for (verb, presence) in [("stop", Presence::Stopped), ("start", Presence::Running), ("pause", Presence::Paused)] {
        let done = Command::new("docker").args(["-H", &host(), verb, &sandbox.name]).output().unwrap();
        assert!(done.status.success(), "{verb}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(one.provider.observe(&binding, &sandbox.name).await, Observation::Present(presence), "after {verb}");
    }
    one.provider.start(&sandbox.name).await.unwrap();
    sandbox.end().await;
}
