//! The Docker provider on a real engine, whose address is in `BERTH_TEST_DOCKER` as tests/run.sh sets it.

mod crash;
mod engine;
mod flow;
mod podman;
mod provider;
mod secured;
mod wire;

use berth::provider::conformance::all;
use engine::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_keeps_the_contract() {
    let place = Place::new();
    all(place.subject()).await;
    assert_eq!(place.left_over(), 0);
}
