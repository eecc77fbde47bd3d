//! One random history: two holders and a reader of one scope, what they do and what they may be told.

use std::time::Duration;

use berth::error::{Code, Result};
use berth::model::instance::Status as InstanceStatus;
use berth::model::lease::{Access, Disposition, OnSameHolder, OnUnavailable, Status};
use berth::model::operation::Status as OperationStatus;
use berth::ops;
use berth::ops::input::{Acquire, Attach, Carried, Exec, Recover, ReleaseRequest, Restore, Rollback, Unsaved, Waiting};
use berth::ops::view::{Answered, LeaseView};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::check::{Grant, Told, check};
use super::model::{Content, Work};
use crate::harness::{World, command, want};

/// The file that holders write.
const FILE: &str = "work";

/// A checkpoint of another scope, and what it may hold.
pub type Foreign = (Uuid, Vec<Content>);

/// One history, and what is known of its scope.
pub struct History {
    session: String,
    /// What each holder was told last, be it true or not.
    leases: [Option<LeaseView>; 2],
    sandbox: Option<Uuid>,
    told: Vec<Told>,
    work: Work,
    /// An instance vanished: what was not saved may be gone, and its holders are told so.
    lost: bool,
    writes: usize,
    /// Whether it says what it does, for whoever tells one batch again.
    aloud: bool,
}

impl History {
    pub fn new(session: String) -> Self {
        let (told, work, aloud) = (Vec::new(), Work::new(), std::env::var_os("BERTH_TEST_SEED").is_some());
        Self { session, leases: [None, None], sandbox: None, told, work, lost: false, writes: 0, aloud }
    }

    /// One of its checkpoints, for others to begin with.
    pub fn a_checkpoint(&self) -> Option<Foreign> {
        let id = self.work.checkpoints().pop()?;
        Some((id, self.work.of(Some(id))))
    }

    /// One random step. It may be dropped at any await, as when its server dies.
    pub async fn step(&mut self, world: &World, random: &mut StdRng, others: &[Foreign]) {
        self.notice(world).await;
        let who = random.random_range(0..2);
        let what = random.random_range(0..24);
        if self.aloud {
            println!("{}: {who} does {what}; {:?}; {:?}", self.session, self.work, self.told.last());
        }
        let Some(lease) = self.leases[who].clone().filter(|_| what > 6) else { return self.acquire(world, random, who, others).await };
        match what {
            7..12 => self.write(world, &lease).await,
            12 => allowed(&world.capture(&lease).await),
            13 => self.release(world, random, who, &lease).await,
            14 => allowed(&world.renew(&lease, 600).await),
            15 => {
                self.leases[who] = None;
                allowed(&world.delete(&lease).await);
            }
            16 => self.attach(world, random, &lease).await,
            17 => self.roll_back(world, &lease).await,
            18 => self.collect(world, &lease).await,
            19 => self.restore(world, random, who, &lease).await,
            20 => self.recover(world, random, who, &lease).await,
            21 => self.read_along(world, random).await,
            _ => self.vanish(world, random, &lease).await,
        }
    }

    /// Takes down which checkpoints there are by now: nothing was written since the last step.
    async fn notice(&mut self, world: &World) {
        let Some(sandbox) = self.sandbox else { return };
        let query = ops::input::ListQuery { limit: 100, ..Default::default() };
        let rows = ops::checkpoint::list(&world.berth, &world.caller, sandbox, query).await.unwrap().items;
        for row in &rows {
            self.work.noticed(row.id);
        }
        self.work.pointer = rows.iter().find(|row| row.current).map(|row| row.id);
        self.work.diverged =
            world.berth.store.read().await.unwrap().sandbox(world.caller.organization, sandbox).await.unwrap().unwrap().diverged;
    }

    async fn acquire(&mut self, world: &World, random: &mut StdRng, who: usize, others: &[Foreign]) {
        let mut input = want(["one", "two"][who], Some(&self.session));
        input.ttl_seconds = Some(random.random_range(60..900));
        if random.random_bool(0.2) {
            input.on_same_holder = OnSameHolder::TakeOver;
        }
        if self.lost && random.random_bool(0.5) {
            input.on_unavailable = Some(OnUnavailable::Empty);
            self.work.widen([None]);
        }
        if let Some((id, holds)) = others.choose(random).filter(|_| random.random_bool(0.1)) {
            input.restore_checkpoint_id = Some(*id);
            self.work.widen(holds.clone());
        }
        let forks = input.restore_checkpoint_id.is_some();
        let got = world.acquire_with(input).await;
        allowed(&got);
        match got {
            Ok((lease, Answered::Pending)) => {
                let ready = ops::lease::get(&world.berth, &world.caller, lease.lease.id, Duration::from_secs(20)).await.unwrap();
                if ready.lease.status == Status::Active {
                    self.granted(world, who, ready).await;
                }
            }
            Ok((lease, _)) => self.granted(world, who, lease).await,
            Err(error) => {
                let told_of_loss = error.code == Code::CheckpointUnavailable;
                assert!(!told_of_loss || self.lost || forks, "{}: work was lost: {error}", self.session);
            }
        }
    }

    /// The scope is this holder's: nobody else's, and the work is there.
    async fn granted(&mut self, world: &World, who: usize, lease: LeaseView) {
        let grant = grant_of(&lease);
        let again = self.told.iter().rev().find_map(|told| if let Told::Granted(last) = told { Some(*last) } else { None });
        self.sandbox = Some(lease.lease.sandbox_id);
        self.told.push(Told::Granted(grant));
        self.leases[who] = Some(lease.clone());
        if again.is_none_or(|last| (last.lease, last.epoch) != (grant.lease, grant.epoch)) {
            self.work.granted();
        }
        let mut tx = world.berth.store.read().await.unwrap();
        let live = tx.live_leases(lease.lease.sandbox_id).await.unwrap();
        drop(tx);
        let writers: Vec<Uuid> = live.iter().filter(|l| l.is_writer()).map(|l| l.id).collect();
        assert_eq!(writers, [lease.lease.id], "{}: the writers", self.session);
        self.look(world, &lease).await;
    }

    /// What is there is what may be there.
    async fn look(&mut self, world: &World, lease: &LeaseView) {
        let found = match world.get(lease, FILE).await {
            Ok(text) => Some(text),
            Err(error) if error.code == Code::FileNotFound => None,
            Err(error) => return allowed(&Err::<(), _>(error)),
        };
        assert!(self.work.may_be(&found), "{}: {found:?} is there, and not {:?}", self.session, self.work);
        self.work.diverged = world.sandbox(lease).await.sandbox.diverged;
        self.work.holds(found);
    }

    async fn write(&mut self, world: &World, lease: &LeaseView) {
        self.writes += 1;
        let text = format!("{}#{}", self.session, self.writes);
        let carried = Carried { generation: Some(lease.lease.generation), epoch: Some(lease.lease.epoch) };
        let input = Exec { carried, ..command(lease.lease.generation, &["write", FILE, &text]) };
        self.work.sent(&text);
        let done = ops::exec::run(&world.berth, &world.caller, lease.lease.id, input).await;
        allowed(&done);
        match done {
            Ok((view, _)) if view.operation.status == OperationStatus::Exited && view.operation.exit_code == Some(0) => {
                self.work.landed(&text);
                self.told.push(Told::Accepted(grant_of(lease)));
            }
            Err(error) if surely_not(error.code) => self.work.refused(&text),
            // It may have been written although nobody was told.
            _ => {}
        }
    }

    async fn release(&mut self, world: &World, random: &mut StdRng, who: usize, lease: &LeaseView) {
        let wanted = [None, Some(Disposition::KeepRunning), Some(Disposition::StopAndRetain), Some(Disposition::Destroy)];
        let disposition = *wanted.choose(random).unwrap();
        let input = ReleaseRequest { cancel_active_work: true, disposition, ..ReleaseRequest::default() };
        self.leases[who] = None;
        allowed(&world.release_with(lease, input).await);
    }

    /// Moves the pointer to any checkpoint there was; a former generation moves nothing.
    async fn attach(&mut self, world: &World, random: &mut StdRng, lease: &LeaseView) {
        let Some(id) = self.work.checkpoints().choose(random).copied() else { return };
        let former = random.random_bool(0.3);
        let generation = lease.lease.generation - i64::from(former);
        let input = Attach { generation, move_back: random.random_bool(0.7), lease_id: Some(lease.lease.id) };
        let done = ops::attach::attach(&world.berth, &world.caller, lease.lease.sandbox_id, id, input).await;
        allowed(&done);
        assert!(!(former && done.is_ok()), "{}: a former generation moved the pointer", self.session);
        if done.is_ok() {
            self.work.widen(self.work.of(Some(id)));
        }
    }

    async fn roll_back(&mut self, world: &World, lease: &LeaseView) {
        let Some(checkpoint_id) = self.work.pointer else { return };
        let input = Rollback { generation: lease.lease.generation, checkpoint_id, lease_id: Some(lease.lease.id) };
        let done = ops::rollback::rollback(&world.berth, &world.caller, lease.lease.sandbox_id, input).await;
        allowed(&done);
        if let Ok((current, _)) = done {
            self.work.widen(self.work.of(current.map(|row| row.id)));
        }
    }

    async fn collect(&mut self, world: &World, lease: &LeaseView) {
        let later = world.berth.store.read().await.unwrap().now().await.unwrap().after(Duration::from_secs(60));
        allowed(&ops::collect::collect(&world.berth, &world.caller, lease.lease.sandbox_id, later, 10).await);
    }

    async fn restore(&mut self, world: &World, random: &mut StdRng, who: usize, lease: &LeaseView) {
        let Some(checkpoint_id) = self.work.checkpoints().choose(random).copied() else { return };
        let carried = Carried { generation: Some(lease.lease.generation), epoch: Some(lease.lease.epoch) };
        let unsaved_changes = *[Unsaved::Fail, Unsaved::Capture, Unsaved::Discard].choose(random).unwrap();
        self.work.widen(self.work.of(Some(checkpoint_id)));
        let input = Restore { carried, checkpoint_id, unsaved_changes, waiting: Waiting::default() };
        let done = ops::restore::restore(&world.berth, &world.caller, lease.lease.id, input).await;
        allowed(&done);
        if let Ok((lease, Answered::Existing)) = done {
            self.work.restored(checkpoint_id);
            self.granted(world, who, lease).await;
        }
    }

    async fn recover(&mut self, world: &World, random: &mut StdRng, who: usize, lease: &LeaseView) {
        let carried = Carried { generation: Some(lease.lease.generation), epoch: Some(lease.lease.epoch) };
        let on_unavailable = random.random_bool(0.3).then_some(OnUnavailable::Empty).filter(|_| self.lost);
        if on_unavailable.is_some() {
            self.work.widen([None]);
        }
        let input = Recover { carried, restore_checkpoint_id: None, on_unavailable, waiting: Waiting::default() };
        let done = ops::recover::recover(&world.berth, &world.caller, lease.lease.id, input).await;
        allowed(&done);
        match done {
            Ok((lease, Answered::Existing)) => self.granted(world, who, lease).await,
            Err(error) => assert!(error.code != Code::CheckpointUnavailable || self.lost, "{}: work was lost: {error}", self.session),
            Ok(_) => {}
        }
    }

    /// A reader sees the work and changes nothing.
    async fn read_along(&mut self, world: &World, random: &mut StdRng) {
        let mut input = want("reader", Some(&self.session));
        (input.access, input.ttl_seconds) = (Access::ReadOnly, Some(random.random_range(60..300)));
        let got = world.acquire_with(input).await;
        allowed(&got);
        let Ok((lease, _)) = got else { return };
        if let Ok(text) = world.get(&lease, FILE).await {
            assert!(self.work.may_be(&Some(text)), "{}: a reader sees what nobody wrote", self.session);
        }
        assert!(world.exec(&lease, &["write", FILE, "a reader's"]).await.is_err(), "{}: a reader wrote", self.session);
        if random.random_bool(0.7) {
            allowed(&world.release(&lease).await);
        }
    }

    /// Its instance stops, or is gone, behind everybody's back.
    async fn vanish(&mut self, world: &World, random: &mut StdRng, lease: &LeaseView) {
        let Some(id) = world.lease(lease).await.lease.instance_id else { return };
        let row = world.row(id).await;
        let Some(provider_ref) = row.provider_ref.filter(|_| row.status == InstanceStatus::Running) else { return };
        if random.random_bool(0.5) {
            world.memory.stop_behind(&provider_ref);
        } else {
            world.memory.vanish(&provider_ref);
            self.lost = true;
            self.work.widen(self.work.of(self.work.pointer));
        }
    }

    /// After quiet time: nobody holds the scope, the work is there, and all that was ever told fits together.
    pub async fn epilogue(&mut self, world: &World) {
        self.notice(world).await;
        let lease = match last(world, &self.session, None).await {
            Ok(lease) => lease,
            Err(error) if self.lost && error.code == Code::CheckpointUnavailable => {
                self.work.widen([None]);
                last(world, &self.session, Some(OnUnavailable::Empty)).await.unwrap()
            }
            Err(error) => panic!("{}: the scope is stuck: {error}", self.session),
        };
        self.granted(world, 0, lease.clone()).await;
        check(&self.told).unwrap_or_else(|broken| panic!("{}: {broken}", self.session));
        ops::release::delete(&world.berth, &world.caller, lease.lease.id, true).await.unwrap();
    }
}

/// The scope for somebody new, who waits until it is ready.
async fn last(world: &World, session: &str, on_unavailable: Option<OnUnavailable>) -> Result<LeaseView> {
    loop {
        let got = world.acquire_with(Acquire { on_unavailable, ..want("last", Some(session)) }).await?;
        if got.0.lease.status == Status::Active {
            return Ok(got.0);
        }
    }
}

fn grant_of(lease: &LeaseView) -> Grant {
    Grant { lease: lease.lease.id, epoch: lease.lease.epoch, generation: lease.lease.generation }
}

/// Refusals are part of the story; a fault of Berth's own is not.
fn allowed<T>(done: &Result<T>) {
    if let Err(error) = done {
        assert!(!matches!(error.code, Code::Internal | Code::OrphanUnrecorded), "{error}: {:?}", error.facts);
    }
}

/// Refused before anything was sent.
fn surely_not(code: Code) -> bool {
    matches!(
        code,
        Code::LeaseNotActive
            | Code::LeaseExpired
            | Code::LeaseTakenOver
            | Code::StaleGeneration
            | Code::TransitionInProgress
            | Code::CaptureInProgress
            | Code::RotationInProgress
            | Code::NotFound
    )
}
