//! Many writers and many captures at once, on one sandbox and on two servers.

use berth::error::Code;
use berth::model::lease::Disposition;
use berth::ops::input::ReleaseRequest;

use super::*;
use crate::both;

both! {
    async fn writers_and_captures_at_once_end_with_a_complete_checkpoint(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let other = world.another().await;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..24 {
            let server = if world.berth.store.is_sqlite() || n % 2 == 0 { world.berth.clone() } else { other.clone() };
            let (caller, id, generation) = (world.caller.clone(), lease.lease.id, lease.lease.generation);
            let input = wish(&lease);
            tasks.spawn(async move {
                if n % 3 == 0 {
                    return ops::capture::capture(&server, &caller, id, input).await.map(|_| 0);
                }
                let carried = ops::input::Carried { generation: Some(generation), epoch: None };
                let body = Box::pin(Cursor::new(format!("of {n}").into_bytes()));
                ops::files::write(&server, &caller, id, carried, &format!("dir/{n}"), body, None, true).await.map(|_| 1)
            });
        }
        let mut written = 0;
        while let Some(done) = tasks.join_next().await {
            match done.unwrap() {
                Ok(files) => written += files,
                Err(told) => assert!(
                    matches!(told.code, Code::CaptureInProgress | Code::OperationsInProgress | Code::TransitionInProgress),
                    "{told}"
                ),
            }
        }
        assert!(written > 0);
        let last = world.capture(&lease).await.unwrap();
        assert!(last.current && !world.sandbox(&lease).await.is_dirty());
        assert_eq!(last.tree.as_ref().unwrap().files, written, "all that was written is in it");
        let destroy = ReleaseRequest { disposition: Some(Disposition::Destroy), ..Default::default() };
        world.release_with(&lease, destroy).await.unwrap();
        let next = world.acquire("next", "s").await.unwrap();
        assert_eq!(next.lease.acquisition.as_ref().unwrap().restored_from.clone().unwrap().checkpoint_id, last.id);
        world.settle().await;
        assert_at_rest(&world, &next).await;
    }

    async fn captures_do_not_starve_writes(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let (berth, caller, id, input, stopped) = (world.berth.clone(), world.caller.clone(), lease.lease.id, wish(&lease), stop.clone());
        let capturing = tokio::spawn(async move {
            let mut taken = 0;
            while !stopped.is_cancelled() {
                taken += u32::from(ops::capture::capture(&berth, &caller, id, input.clone()).await.is_ok());
            }
            taken
        });
        for n in 0..10 {
            world.put(&lease, "f", &format!("write {n}")).await.unwrap();
        }
        stop.cancel();
        assert!(capturing.await.unwrap() > 0, "and writes do not starve captures");
        assert!(world.capture(&lease).await.unwrap().current);
        assert!(!world.sandbox(&lease).await.is_dirty());
    }
}
