//! A lease's whole life: acquired, used, saved, released, resumed, taken over, destroyed.

use std::time::Duration;

use berth::error::Code;
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::{How, OnSameHolder, Policy, Status};
use berth::model::operation::Status as OperationStatus;
use berth::ops::view::Answered;
use berth::ops::{self};
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};

use crate::both;
use crate::harness::{carried, code, command, want};

both! {
    async fn a_run_works_and_the_next_finds_its_files(world) {
        let first = world.acquire("run-1", "s").await.unwrap();
        assert_eq!(first.lease.status, Status::Active);
        assert_eq!(first.lease.acquisition.as_ref().unwrap().outcome, How::Created);
        assert_eq!(first.lease.generation, 1);
        let exec = world.exec(&first, &["echo", "hi"]).await.unwrap();
        assert_eq!((exec.operation.exit_code, exec.stdout.kept.as_slice()), (Some(0), b"hi\n".as_slice()));
        world.put(&first, "dir/a.txt", "kept").await.unwrap();
        let released = world.release(&first).await.unwrap();
        assert_eq!(released.lease.status, Status::Released);
        let second = world.acquire("run-2", "s").await.unwrap();
        assert_eq!(second.lease.acquisition.as_ref().unwrap().outcome, How::Resumed);
        assert_eq!(second.lease.instance_id, first.lease.instance_id);
        assert_eq!(second.lease.generation, 1);
        assert_eq!(world.get(&second, "dir/a.txt").await.unwrap(), "kept");
        assert_eq!(world.delete(&second).await.unwrap(), Answered::Existing);
        let sandbox = world.sandbox(&second).await;
        assert!(sandbox.instance.is_none());
        assert_eq!(sandbox.sandbox.generation, 2);
        world.assert_ledger_is_inventory().await;
    }

    async fn dirty_and_clean_are_told_truly(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        assert!(!world.sandbox(&lease).await.is_dirty(), "an empty sandbox has nothing to save");
        let failed = world.exec(&lease, &["false"]).await.unwrap();
        assert_eq!(failed.operation.exit_code, Some(1));
        assert!(world.sandbox(&lease).await.is_dirty(), "a failed command may have written");
        let checkpoint = world.capture(&lease).await.unwrap();
        assert!(checkpoint.current);
        assert!(!world.sandbox(&lease).await.is_dirty(), "clean after a capture");
        world.put(&lease, "f", "x").await.unwrap();
        assert!(world.sandbox(&lease).await.is_dirty());
    }

    async fn a_process_that_lives_on_keeps_the_sandbox_dirty(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.exec(&lease, &["linger", "60000"]).await.unwrap();
        let live = world.capture(&lease).await.unwrap();
        assert_eq!(live.consistency, Some(berth::model::checkpoint::Consistency::Live));
        assert!(world.sandbox(&lease).await.is_dirty(), "a live capture does not make it clean");
    }

    async fn restored_after_the_instance_is_destroyed(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "precious").await.unwrap();
        let checkpoint = world.capture(&lease).await.unwrap();
        world.delete(&lease).await.unwrap();
        let next = world.acquire("run-2", "s").await.unwrap();
        let acquisition = next.lease.acquisition.clone().unwrap().0;
        assert_eq!(acquisition.outcome, How::Restored);
        assert_eq!(acquisition.restored_from.unwrap().checkpoint_id, checkpoint.id);
        assert_eq!(next.lease.generation, 2);
        assert_eq!(world.get(&next, "f").await.unwrap(), "precious");
        assert!(!world.sandbox(&next).await.is_dirty(), "equal to the pointer after a restore");
    }

    async fn the_same_holder_gets_its_lease_and_a_take_over_fences_the_former(world) {
        let first = world.acquire("run", "s").await.unwrap();
        let (again, answered) = world.acquire_with(want("run", Some("s"))).await.unwrap();
        assert_eq!((again.lease.id, answered), (first.lease.id, Answered::Existing));
        let mut refuse = want("run", Some("s"));
        refuse.on_same_holder = OnSameHolder::Refuse;
        assert_eq!(code(world.acquire_with(refuse).await), Code::LeaseConflict);
        let old = ops::caller::identify(&world.berth, &world.berth.token_for(&first.lease)).await.unwrap();
        let running = {
            let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), first.lease.id);
            tokio::task::spawn(async move { ops::exec::run(&berth, &caller, id, command(1, &["sleep", "20000"])).await })
        };
        while world.memory.calls(Verb::Exec) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut take = want("run", Some("s"));
        take.on_same_holder = OnSameHolder::TakeOver;
        let (taken, _) = world.acquire_with(take).await.unwrap();
        assert_eq!((taken.lease.id, taken.lease.epoch), (first.lease.id, 2));
        let former = running.await.unwrap().unwrap().0;
        assert_eq!(former.operation.status, OperationStatus::Cancelled, "the former process's command is dead before the answer");
        let stale = ops::exec::run(&world.berth, &old, first.lease.id, command(1, &["true"])).await;
        let error = stale.unwrap_err();
        assert_eq!(error.code, Code::LeaseTakenOver);
        assert_eq!((error.facts["current_epoch"].as_i64(), error.facts["carried_epoch"].as_i64()), (Some(2), Some(1)));
        let new = ops::caller::identify(&world.berth, taken.token.as_deref().unwrap()).await.unwrap();
        assert!(ops::exec::run(&world.berth, &new, first.lease.id, command(0, &["true"])).await.is_ok(), "a token carries its own generation");
    }

    async fn a_take_over_whose_kill_failed_still_owes_it(world) {
        let first = world.acquire("run", "s").await.unwrap();
        let running = {
            let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), first.lease.id);
            tokio::task::spawn(async move { ops::exec::run(&berth, &caller, id, command(1, &["sleep", "20000"])).await })
        };
        while world.memory.calls(Verb::Exec) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.faults.next(Verb::Fence, Fault::FailBefore(Kind::Transient));
        let mut take = want("run", Some("s"));
        take.on_same_holder = OnSameHolder::TakeOver;
        assert_eq!(code(world.acquire_with(take).await), Code::ProviderUnavailable, "unconfirmed is not answered as done");
        let (again, _) = world.acquire_with(want("run", Some("s"))).await.unwrap();
        assert_eq!(again.lease.epoch, 2);
        world.exec(&again, &["true"]).await.unwrap();
        let former = running.await.unwrap().unwrap().0;
        assert_eq!(former.operation.status, OperationStatus::Cancelled, "dead before the first command of the new grant ran");
        assert!(former.operation.ended_at.is_some());
    }

    async fn an_old_generation_changes_nothing_and_says_what_is_current(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let before = world.sandbox(&lease).await.sandbox.workspace_seq;
        let error = ops::exec::run(&world.berth, &world.caller, lease.lease.id, command(7, &["write", "f", "x"])).await.unwrap_err();
        assert_eq!(error.code, Code::StaleGeneration);
        assert_eq!((error.facts["current"].as_i64(), error.facts["carried"].as_i64()), (Some(1), Some(7)));
        assert_eq!(world.sandbox(&lease).await.sandbox.workspace_seq, before);
        assert_eq!(code(world.get(&lease, "f").await), Code::FileNotFound);
        let mut none = command(1, &["true"]);
        none.carried = ops::input::Carried::default();
        assert_eq!(ops::exec::run(&world.berth, &world.caller, lease.lease.id, none).await.unwrap_err().code, Code::GenerationRequired);
    }

    async fn a_reader_reads_and_runs_nothing(world) {
        let writer = world.acquire("writer", "s").await.unwrap();
        world.put(&writer, "f", "seen").await.unwrap();
        let mut join = want("reader", Some("s"));
        join.access = berth::model::lease::Access::ReadOnly;
        let reader = world.acquire_with(join).await.unwrap().0;
        assert_eq!(world.get(&reader, "f").await.unwrap(), "seen");
        assert_eq!(code(world.exec(&reader, &["true"]).await), Code::ReadOnlyLease);
        assert_eq!(code(world.put(&reader, "f", "x").await), Code::ReadOnlyLease);
        assert_eq!(code(world.capture(&reader).await), Code::ReadOnlyLease);
        world.release(&writer).await.unwrap();
        assert_eq!(world.lease(&reader).await.instance.unwrap().status, InstanceStatus::Running, "readers keep the box");
        world.release(&reader).await.unwrap();
        world.settle().await;
        assert_eq!(world.lease(&reader).await.instance.unwrap().status, InstanceStatus::Stopped, "the stored stop happens when they leave");
    }

    async fn policies_decide_what_becomes_of_the_instance(world) {
        let mut input = want("run", None);
        input.policy = Some(Policy::Ephemeral);
        let ephemeral = world.acquire_with(input).await.unwrap().0;
        assert_eq!(world.release(&ephemeral).await.unwrap().lease.status, Status::Released);
        assert_eq!(world.lease(&ephemeral).await.instance.unwrap().status, InstanceStatus::Destroyed);
        let mut input = want("run", Some("evidence"));
        input.policy = Some(Policy::RetainOnFailure);
        let kept = world.acquire_with(input).await.unwrap().0;
        let failed = ops::input::ReleaseRequest { outcome: Some(berth::model::lease::Outcome::Failed), ..Default::default() };
        let view = ops::release::release(&world.berth, &world.caller, kept.lease.id, failed).await.unwrap().0;
        assert_eq!(view.lease.status, Status::Retained);
        assert_eq!(code(world.exec(&kept, &["true"]).await), Code::LeaseNotActive);
        assert_eq!(code(world.acquire("other", "evidence").await), Code::LeaseConflict, "a failed run's box is evidence");
        assert_eq!(world.delete(&kept).await.unwrap(), Answered::Existing);
        assert!(world.acquire("other", "evidence").await.is_ok());
    }

    async fn a_lost_instance_is_recovered_once_with_its_checkpoint(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "precious").await.unwrap();
        world.capture(&lease).await.unwrap();
        world.memory.vanish(&world.provider_ref(&lease).await);
        let lost = world.exec(&lease, &["true"]).await.unwrap_err();
        assert_eq!(lost.code, Code::InstanceLost);
        assert!(lost.allowed_actions.contains(&"recover"));
        assert_eq!(world.lease(&lease).await.lease.status, Status::Active);
        let recover = || {
            let (berth, caller, id) = (world.berth.clone(), world.caller.clone(), lease.lease.id);
            let input = ops::input::Recover { carried: carried(&lease), ..Default::default() };
            tokio::task::spawn(async move { ops::recover::recover(&berth, &caller, id, input).await })
        };
        let flights = [recover(), recover(), recover(), recover()];
        for flight in flights {
            flight.await.unwrap().unwrap();
        }
        let now = world.lease(&lease).await;
        assert_eq!(now.lease.generation, 2);
        assert_eq!(world.memory.inventory().len(), 1, "four recoveries made one instance");
        assert_eq!(world.get(&now, "f").await.unwrap(), "precious");
        assert_eq!(code(world.exec(&lease, &["true"]).await), Code::StaleGeneration, "the old generation writes no more");
        assert!(world.exec(&now, &["true"]).await.is_ok());
    }

    async fn a_stopped_instance_is_resumed_by_the_next_command(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "f", "kept").await.unwrap();
        world.memory.stop_behind(&world.provider_ref(&lease).await);
        assert_eq!(world.exec(&lease, &["cat", "f"]).await.unwrap().stdout.kept, b"kept");
        assert_eq!(world.lease(&lease).await.lease.generation, 1, "stopped is not lost");
    }
}
