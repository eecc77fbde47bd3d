//! A portable revision made by one provider is the same workspace at another.

use berth::archive::Blobs;
use berth::provider::LocalSettings;
use berth::provider::local::Local;
use berth::provider::registry::Registry;
use berth::store::Store;

use super::*;
use crate::both;
use crate::harness::{command, quick};

/// A server on the world's database that runs both providers, with an environment `on-disk` of the second.
async fn with_local(world: &World) -> Arc<Berth> {
    let root = world.path().join("local");
    std::fs::create_dir_all(&root).unwrap();
    let local = Local::open(&LocalSettings::new(root, env!("CARGO_BIN_EXE_berth").into())).unwrap();
    let providers = Registry::new(vec![Arc::new(world.faults.clone()), Arc::new(local)]).unwrap();
    let store = Store::connect(&world.url, 4).await.unwrap();
    let blobs = Blobs::open(&format!("file:{}", world.path().join("archives").display())).unwrap();
    let berth = Berth::open(store, providers, blobs, quick()).await.unwrap();
    let mut environment = ops::boot::defaults(world.caller.organization, "on-disk", "local");
    let mut tx = berth.store.begin().await.unwrap();
    environment.created_at = tx.now().await.unwrap();
    tx.insert_environment(&environment).await.unwrap();
    tx.commit().await.unwrap();
    berth
}

async fn acquire_at(server: &Arc<Berth>, world: &World, environment: &str, holder: &str, from: Option<Uuid>) -> LeaseView {
    let mut input = want(holder, Some(holder));
    input.environment = environment.to_owned();
    input.restore_checkpoint_id = from;
    ops::acquire::acquire(server, &world.caller, input).await.unwrap().0
}

async fn read_at(server: &Arc<Berth>, world: &World, lease: &LeaseView, path: &str) -> String {
    let mut file = ops::files::read(server, &world.caller, lease.lease.id, path).await.unwrap();
    let mut text = String::new();
    file.body.read_to_string(&mut text).await.unwrap();
    text
}

both! {
    async fn from_this_machine_to_memory_and_back(world) {
        let server = with_local(&world).await;
        let first = acquire_at(&server, &world, "on-disk", "one", None).await;
        let script = "mkdir -p dir/empty venv && echo work > dir/f && chmod 755 dir/f && ln dir/f hard && ln -s /usr/bin/env venv/python && ln -s ../dir venv/d";
        let made = ops::exec::run(&server, &world.caller, first.lease.id, command(1, &["sh", "-c", script])).await.unwrap().0;
        assert_eq!(made.operation.exit_code, Some(0));
        let saved = capture_at(&server, &world, &first, wish(&first)).await.unwrap();
        let tree = saved.tree.clone().unwrap().0;

        let second = acquire_at(&server, &world, "default", "two", Some(saved.id)).await;
        assert_eq!(read_at(&server, &world, &second, "dir/f").await, "work\n");
        assert_eq!(read_at(&server, &world, &second, "hard").await, "work\n");
        let again = capture_at(&server, &world, &second, wish(&second)).await.unwrap();
        assert_eq!(again.tree.clone().unwrap().0, tree, "the same tree, whoever packed it");

        let third = acquire_at(&server, &world, "on-disk", "three", Some(again.id)).await;
        assert_eq!(read_at(&server, &world, &third, "dir/f").await, "work\n");
        assert_eq!(capture_at(&server, &world, &third, wish(&third)).await.unwrap().tree.unwrap().0, tree);
        for lease in [&first, &second, &third] {
            ops::release::delete(&server, &world.caller, lease.lease.id, false).await.unwrap();
        }
    }
}
