//! One writer a scope, however many race for it.

use berth::error::Code;
use berth::ops;

use crate::both;
use crate::harness::{code, want};

both! {
    async fn of_64_racing_holders_one_wins_and_the_rest_conflict(world) {
        let tasks: Vec<_> = (0..64)
            .map(|i| {
                let (berth, caller) = (world.berth.clone(), world.caller.clone());
                tokio::task::spawn(async move { ops::acquire::acquire(&berth, &caller, want(&format!("run-{i}"), Some("race"))).await })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error.code, Code::LeaseConflict, "{error}"),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(world.memory.inventory().len(), 1);
    }

    async fn waiting_for_a_busy_scope_ends_with_the_scope_or_with_patience(world) {
        let first = world.acquire("first", "s").await.unwrap();
        let mut patient = want("second", Some("s"));
        patient.waiting.others = std::time::Duration::from_millis(200);
        assert_eq!(code(world.acquire_with(patient.clone()).await), Code::LeaseConflict);
        patient.waiting.others = std::time::Duration::from_secs(20);
        let waiting = {
            let (berth, caller) = (world.berth.clone(), world.caller.clone());
            tokio::task::spawn(async move { ops::acquire::acquire(&berth, &caller, patient).await })
        };
        world.release(&first).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().0.lease.holder, "second");
    }
}
