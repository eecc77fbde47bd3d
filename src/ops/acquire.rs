//! Acquire: one transaction decides and writes the lease, the ledger's intent and the claim; providers are asked afterwards.

use std::sync::Arc;
use std::time::Duration;

use sqlx::types::Json;
use tokio::time::Instant;
use uuid::Uuid;

use super::input::Acquire;
use super::succeed::Making;
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, end, provision, quiet};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::capability::REUSABLE_LEASES;
use crate::model::environment::Environment;
use crate::model::instance::{Event as InstanceEvent, Instance, Role, Status as InstanceStatus};
use crate::model::key::Scope;
use crate::model::lease::{Access, Acquisition, Disposition, Event, How, Lease, OnSameHolder, OnUnavailable, Plan, Policy, Status};
use crate::model::sandbox::Sandbox;
use crate::store::fence::transition;
use crate::store::{ClaimKind, Claimed, Tx};

/// What one attempt came to.
pub(super) enum Attempt {
    /// A lease, as it stands; the boolean says whether it is new.
    Granted(Uuid, bool),
    /// A lease whose instance is to be made ready by whoever holds this claim.
    Provision(Uuid, Claimed),
    /// A take-over whose former process's commands are to be killed first; the kill is owed by the instance's row.
    TakeOver(Uuid),
    /// Somebody else is in the way.
    Wait(Uuid, Error),
    /// A lease that has expired is being ended by us.
    End(Uuid, Uuid, Claimed),
}

/// Grants a lease, or says who is in the way.
pub async fn acquire(berth: &Arc<Berth>, caller: &Caller, input: Acquire) -> Result<(LeaseView, Answered)> {
    caller.require(Scope::Write)?;
    berth.refuse_while_draining().await?;
    let environment = super::environment::find(berth, caller.organization, &input.environment).await?;
    check(&environment, &input)?;
    let reuses = if super::plugins::is_plugin(&environment.provider) {
        super::plugins::reuses(berth, &environment).await?
    } else {
        berth.providers.get(&environment.provider).is_some_and(|p| p.traits().capabilities.contains(&REUSABLE_LEASES))
    };
    let patience = Instant::now() + input.waiting.others;
    let mut turn = None;
    loop {
        let (sandbox, obstacle) = match attempt(berth, caller, &environment, &input, reuses).await? {
            Attempt::Granted(lease, new) => return answer(berth, caller, lease, new, &input).await,
            Attempt::Provision(lease, claim) => {
                provision::spawn(berth, lease, claim);
                return answer(berth, caller, lease, true, &input).await;
            }
            Attempt::TakeOver(lease) => {
                quiet::pay_owed_fence(berth, lease).await?;
                return answer(berth, caller, lease, false, &input).await;
            }
            Attempt::End(sandbox, lease, gate) => {
                end::spawn(berth, lease, gate);
                (sandbox, transition("The former lease has expired and is being ended."))
            }
            Attempt::Wait(sandbox, obstacle) => (sandbox, obstacle),
        };
        let line = berth.work.line(sandbox);
        if turn.is_none() {
            // In order of arrival within this process: whoever has the turn tries again, the others wait for the turn.
            match tokio::time::timeout_at(patience, Arc::clone(&line.turn).lock_owned()).await {
                Ok(taken) => turn = Some(taken),
                Err(_) => return Err(obstacle),
            }
        } else if !line.until_changed(patience).await {
            return Err(obstacle);
        }
    }
}

async fn answer(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, new: bool, input: &Acquire) -> Result<(LeaseView, Answered)> {
    let wait = if input.waiting.respond_async { Duration::ZERO } else { berth.settings.provision_wait };
    let mut view = super::lease::await_ready(berth, caller.organization, lease, wait).await?;
    view.token = Some(berth.token_for(&view.lease));
    let answered = match view.lease.status {
        Status::Pending => Answered::Pending,
        Status::Active if new => Answered::Created,
        Status::Active => Answered::Existing,
        _ => return Err(super::lease::failure(&view.lease)),
    };
    Ok((view, answered))
}

async fn attempt(berth: &Berth, caller: &Caller, environment: &Environment, input: &Acquire, reuses: bool) -> Result<Attempt> {
    let mut tx = berth.store.begin().await?;
    let before = tx.now().await?;
    let (sandbox, _) = tx.ensure_sandbox(caller.organization, environment.id, input.scope.as_ref(), before).await?;
    let now = tx.now().await?;
    let making = berth.making(&mut tx, environment, input.scope.as_ref(), input.harness.as_deref()).await?;
    let mut story = Story { berth, caller, environment, input, making, reuses, sandbox, now };
    let attempt = story.run(&mut tx).await?;
    tx.commit().await?;
    if !matches!(attempt, Attempt::Wait(..)) {
        berth.work.ring(story.sandbox.id);
    }
    Ok(attempt)
}

struct Story<'a> {
    berth: &'a Berth,
    caller: &'a Caller,
    environment: &'a Environment,
    input: &'a Acquire,
    making: Making<'a>,
    /// Whether the provider's sandboxes may be given to the next holder.
    reuses: bool,
    sandbox: Sandbox,
    now: Time,
}

impl Story<'_> {
    async fn run(&mut self, tx: &mut Tx) -> Result<Attempt> {
        let live = tx.live_leases(self.sandbox.id).await?;
        let mine = live.iter().find(|l| l.holder == self.input.holder && !l.has_expired(self.now));
        if let Some(mine) = mine.filter(|_| self.input.scope.is_some()) {
            return self.same_holder(tx, mine.clone()).await;
        }
        for reader in live.iter().filter(|l| !l.is_writer() && l.has_expired(self.now)) {
            end::end_reader(self.berth, tx, &mut self.sandbox, reader.clone(), Status::Expired, self.now).await?;
        }
        let instance = match self.sandbox.instance_id {
            Some(id) => tx.instance_by_id(id).await?,
            None => None,
        };
        if self.input.access == Access::ReadOnly {
            return self.join_as_reader(tx, instance).await;
        }
        if let Some(writer) = live.iter().find(|l| l.is_writer())
            && let Some(obstacle) = self.pass_writer(tx, writer, instance.as_ref()).await?
        {
            return Ok(obstacle);
        }
        let readers = live.iter().any(|l| !l.is_writer() && !l.has_expired(self.now));
        if let Err(closed) = tx.pass_gate(self.sandbox.id, self.now).await {
            return Ok(self.wait(closed));
        }
        match instance {
            None => self.create(tx).await,
            Some(instance) => self.take(tx, instance, readers).await,
        }
    }

    fn wait(&self, obstacle: Error) -> Attempt {
        Attempt::Wait(self.sandbox.id, obstacle)
    }

    /// The same holder's live lease: given, taken over, or refused.
    async fn same_holder(&mut self, tx: &mut Tx, mut lease: Lease) -> Result<Attempt> {
        match self.input.on_same_holder {
            OnSameHolder::Refuse => Err(conflict(&lease)),
            _ if lease.release.is_some() => Ok(self.wait(transition("This holder's lease is being released."))),
            OnSameHolder::Attach => Ok(Attempt::Granted(lease.id, false)),
            OnSameHolder::TakeOver => {
                let (was, was_epoch) = (lease.status, lease.epoch);
                let instance = match lease.instance_id {
                    Some(id) => tx.instance_by_id(id).await?,
                    None => None,
                };
                if was == Status::Active {
                    lease.status = super::step(was.on(Event::Extend))?;
                }
                lease.epoch += 1;
                if lease.is_writer() {
                    self.sandbox.grant_seq += 1;
                    lease.grant_seq = self.sandbox.grant_seq;
                    tx.save_sandbox(&self.sandbox, self.now).await?;
                }
                tx.save_lease(&lease, was, was_epoch, self.now).await?;
                super::lease::tell(tx, &lease, "lease.taken_over", &self.caller.actor(), self.now).await?;
                let Some(mut instance) = instance.filter(|i| i.status.is_live() && !i.quiet && lease.is_writer()) else {
                    return Ok(Attempt::Granted(lease.id, false));
                };
                instance.owed_fence = Some(lease.grant_seq);
                let status = instance.status;
                tx.save_instance(&instance, status, self.now).await?;
                Ok(Attempt::TakeOver(lease.id))
            }
        }
    }

    /// Another writer: in the way, or over, or to be ended first.
    async fn pass_writer(&mut self, tx: &mut Tx, writer: &Lease, instance: Option<&Instance>) -> Result<Option<Attempt>> {
        if writer.release.is_some() {
            return Ok(Some(self.wait(transition("The former lease is being released."))));
        }
        if !writer.has_expired(self.now) {
            return Ok(Some(self.wait(conflict(writer))));
        }
        let idle =
            instance.is_none_or(|i| i.quiet && matches!(i.status, InstanceStatus::Running | InstanceStatus::Stopped) && self.may_reuse(i));
        if idle {
            let mut over = writer.clone();
            over.status = super::step(over.status.on(Event::End(Status::Expired)))?;
            over.released_at = Some(self.now);
            tx.save_lease(&over, writer.status, writer.epoch, self.now).await?;
            super::lease::tell(tx, &over, "lease.expired", &self.caller.actor(), self.now).await?;
            return Ok(None);
        }
        let gate = end::begin_expiry(self.berth, tx, &mut self.sandbox, writer.clone(), self.now).await?;
        Ok(Some(match gate {
            Some(gate) => Attempt::End(self.sandbox.id, writer.id, gate),
            None => self.wait(transition("The former lease has expired and is being ended.")),
        }))
    }

    fn policy(&self) -> Policy {
        let scoped = self.input.scope.is_some();
        let wanted = self.input.policy.or(self.environment.policy);
        let wanted = wanted.unwrap_or(if scoped { Policy::ReuseByEnvironment } else { Policy::Ephemeral });
        if wanted == Policy::ReuseByEnvironment && !(scoped && self.reuses) { Policy::Ephemeral } else { wanted }
    }

    fn may_reuse(&self, instance: &Instance) -> bool {
        self.policy() == Policy::ReuseByEnvironment && self.mismatch(instance).is_none()
    }

    /// Why the instance that is there cannot be used, if it cannot.
    fn mismatch(&self, instance: &Instance) -> Option<&'static str> {
        if self.input.discard_workspace {
            Some("discarded")
        } else if instance.fingerprint != self.making.fingerprint {
            Some("fingerprint_mismatch")
        } else if self.sandbox.diverged {
            Some("diverged")
        } else if self.input.restore_checkpoint_id.is_some_and(|id| Some(id) != self.sandbox.current_checkpoint_id) {
            Some("restore_requested")
        } else if self.policy() != Policy::ReuseByEnvironment {
            Some("policy")
        } else {
            None
        }
    }

    /// The instance that is there: attached, resumed, or captured and replaced.
    async fn take(&mut self, tx: &mut Tx, mut instance: Instance, readers: bool) -> Result<Attempt> {
        let was = instance.status;
        let retained: Vec<_> =
            tx.unended_leases_of_instance(instance.id).await?.into_iter().filter(|l| l.status == Status::Retained).collect();
        let evidence = retained.iter().find(|l| l.evidence && l.retain_until.is_some_and(|at| at > self.now));
        if let Some(evidence) = evidence.filter(|_| !self.input.discard_workspace) {
            return Ok(self.wait(conflict(evidence)));
        }
        if !matches!(was, InstanceStatus::Running | InstanceStatus::Stopped) {
            return Ok(self.wait(transition("The sandbox is changing state.")));
        }
        if instance.disposition == Some(Disposition::Destroy) {
            return Ok(self.wait(transition("The sandbox will be destroyed when its readers leave.")));
        }
        let reason = self.mismatch(&instance);
        if let Some(reason) = reason {
            // Nothing is given up for a successor that surely cannot be made.
            self.making.require()?;
            if readers {
                return Err(Error::new(
                    Code::ConfigurationConflict,
                    "Other leases use the sandbox as it is; it cannot be replaced under them.",
                )
                .fact("cause", reason));
            }
            if self.input.discard_workspace {
                super::release::require_checkpoint(self.environment, &self.sandbox, Some(&instance))?;
            }
            let gate = tx
                .claim(self.sandbox.id, ClaimKind::Gate, self.berth.work.owner, "drain", self.now, self.berth.settings.provision_deadline)
                .await?;
            if gate.is_none() {
                return Ok(self.wait(transition("A capture or another transition is running.")));
            }
            self.end_retained(tx, &retained).await?;
            instance.status = super::step(was.on(InstanceEvent::Drain))?;
            tx.save_instance(&instance, was, self.now).await?;
            let plan = Plan {
                reason: Some(reason.to_owned()),
                previous_instance_id: Some(instance.id),
                discard: self.input.discard_workspace,
                ..self.plan(None)
            };
            return self.pending(tx, &instance, plan).await;
        }
        self.end_retained(tx, &retained).await?;
        // A stop that was stored for the readers' end is cancelled by a new writer. A hold ends when somebody has the box: at activation.
        instance.disposition = None;
        match was {
            InstanceStatus::Running if instance.quiet => {
                instance.hold_reason = None;
                instance.used_at = self.now;
                tx.save_instance(&instance, was, self.now).await?;
                self.sandbox.grant_seq += 1;
                tx.save_sandbox(&self.sandbox, self.now).await?;
                let mut lease = self.lease(&instance, self.plan(None));
                lease.status = Status::Active;
                lease.expires_at = Some(self.until(lease.ttl_ms));
                lease.acquired_at = Some(self.now);
                lease.acquisition =
                    Some(Json(Acquisition { outcome: How::Attached, reason: None, previous_instance_id: None, restored_from: None }));
                tx.insert_lease(&lease).await?;
                super::lease::tell(tx, &lease, "lease.acquired", &self.caller.actor(), self.now).await?;
                Ok(Attempt::Granted(lease.id, true))
            }
            InstanceStatus::Stopped => {
                instance.status = super::step(was.on(InstanceEvent::Start))?;
                tx.save_instance(&instance, was, self.now).await?;
                self.pending(tx, &instance, self.plan(None)).await
            }
            _ => {
                tx.save_instance(&instance, was, self.now).await?;
                self.pending(tx, &instance, self.plan(None)).await
            }
        }
    }

    /// A successor takes the instance: the leases it was retained for are over.
    async fn end_retained(&self, tx: &mut Tx, retained: &[Lease]) -> Result<()> {
        for over in retained {
            let mut ended = over.clone();
            ended.status = super::step(over.status.on(Event::End(Status::Released)))?;
            (ended.retain_until, ended.released_at) = (None, ended.released_at.or(Some(self.now)));
            tx.save_lease(&ended, over.status, over.epoch, self.now).await?;
            super::lease::tell(tx, &ended, "lease.released", &self.caller.actor(), self.now).await?;
        }
        Ok(())
    }

    /// Nothing is there: the ledger's row first, then the provider.
    async fn create(&mut self, tx: &mut Tx) -> Result<Attempt> {
        let consent = self.input.discard_workspace || self.input.on_unavailable == Some(OnUnavailable::Empty);
        if self.sandbox.unsaved_loss
            && self.sandbox.current_checkpoint_id.is_none()
            && self.input.restore_checkpoint_id.is_none()
            && !consent
        {
            return Err(Error::new(
                Code::CheckpointUnavailable,
                "Unsaved work of this scope was lost and there is no checkpoint to return to. Say restore.on_unavailable: empty to start over.",
            ));
        }
        let chosen = consent || self.input.on_unavailable.is_some() || self.input.restore_checkpoint_id.is_some();
        if self.environment.requires_checkpoint_of(&self.sandbox) && self.sandbox.is_behind() && !chosen {
            return Err(super::provision::behind());
        }
        if let Some(limit) = self.environment.max_live_instances {
            let usage = tx.live_instances_locked(self.environment.id).await?;
            if usage >= limit {
                return Err(Error::new(Code::QuotaExceeded, "This environment has as many live instances as it may.")
                    .fact("limit", "max_live_instances")
                    .fact("value", limit)
                    .fact("usage", usage)
                    .retry_after(Duration::from_secs(5)));
            }
        }
        let instance = super::succeed::write_next(tx, &mut self.sandbox, Role::Current, &self.making, self.now).await?;
        let plan = self.plan(self.sandbox.current_checkpoint_id);
        self.pending(tx, &instance, plan).await
    }

    fn plan(&self, pointer: Option<Uuid>) -> Plan {
        let named = self.input.restore_checkpoint_id;
        Plan { restore: named.or(pointer), fork: named.is_some(), on_unavailable: self.input.on_unavailable, ..Plan::default() }
    }

    /// A pending lease and the claim to make its instance ready.
    async fn pending(&mut self, tx: &mut Tx, instance: &Instance, plan: Plan) -> Result<Attempt> {
        self.sandbox.grant_seq += 1;
        tx.save_sandbox(&self.sandbox, self.now).await?;
        let lease = self.lease(instance, plan);
        tx.insert_lease(&lease).await?;
        super::lease::tell(tx, &lease, "lease.requested", &self.caller.actor(), self.now).await?;
        let claim = tx
            .claim(lease.id, ClaimKind::Provision, self.berth.work.owner, "provision", self.now, self.berth.settings.provision_deadline)
            .await?;
        let claim = claim.ok_or(crate::store::error::StoreError::ClaimLost)?;
        Ok(Attempt::Provision(lease.id, claim))
    }

    async fn join_as_reader(&mut self, tx: &mut Tx, instance: Option<Instance>) -> Result<Attempt> {
        let running = instance.filter(|i| i.status == InstanceStatus::Running && i.disposition != Some(Disposition::Destroy));
        let Some(instance) = running else {
            return Err(Error::new(Code::InstanceNotRunning, "A reader joins a running sandbox only, and none is running for this scope."));
        };
        let mut lease = self.lease(&instance, Plan::default());
        lease.status = Status::Active;
        lease.grant_seq = 0;
        lease.expires_at = Some(self.until(lease.ttl_ms));
        lease.acquired_at = Some(self.now);
        lease.acquisition =
            Some(Json(Acquisition { outcome: How::Attached, reason: None, previous_instance_id: None, restored_from: None }));
        tx.insert_lease(&lease).await?;
        super::lease::tell(tx, &lease, "lease.acquired", &self.caller.actor(), self.now).await?;
        Ok(Attempt::Granted(lease.id, true))
    }

    fn until(&self, ttl_ms: i64) -> Time {
        Time(self.now.0.saturating_add(ttl_ms))
    }

    fn lease(&self, instance: &Instance, plan: Plan) -> Lease {
        Lease {
            id: self.caller.first_id(),
            organization_id: self.sandbox.organization_id,
            sandbox_id: self.sandbox.id,
            environment_id: self.environment.id,
            instance_id: Some(instance.id),
            generation: instance.generation,
            epoch: 1,
            grant_seq: self.sandbox.grant_seq,
            status: Status::Pending,
            ends_as: None,
            policy: self.policy(),
            access: self.input.access,
            holder: self.input.holder.clone(),
            harness: self.input.harness.clone(),
            ttl_ms: self.input.ttl_seconds.map_or(self.environment.ttl_ms, |s| s.saturating_mul(1000)),
            expires_at: None,
            max_expires_at: None,
            requested_expires_at: self.input.requested_expires_at,
            require_provider_expiry: self.input.require_provider_expiry,
            retain_until: None,
            evidence: false,
            plan: Json(plan),
            acquisition: None,
            release: None,
            failure_code: None,
            failure_reason: None,
            failure_facts: None,
            metadata: Json(self.input.metadata.clone()),
            acquired_at: None,
            renewed_at: None,
            released_at: None,
            created_at: self.now,
            updated_at: self.now,
        }
    }
}

fn check(environment: &Environment, input: &Acquire) -> Result<()> {
    if environment.archived_at.is_some() {
        return Err(Error::new(Code::EnvironmentArchived, "This environment is archived; nothing new is leased from it."));
    }
    super::renew::check_ttl(environment, input.ttl_seconds)
}

/// 409 `lease_conflict`, naming who holds it and until when.
pub fn conflict(lease: &Lease) -> Error {
    let until = lease.expires_at.or(lease.retain_until).map(|at| at.to_string());
    let detail = match &until {
        Some(until) => format!("{} holds this scope until {until}, unless it renews or releases.", lease.holder),
        None => format!("{} is about to hold this scope.", lease.holder),
    };
    Error::new(Code::LeaseConflict, detail)
        .fact("holder", lease.holder.clone())
        .fact("lease_id", lease.id.to_string())
        .fact("expires_at", until)
        .retry_after(Duration::from_secs(1))
}
