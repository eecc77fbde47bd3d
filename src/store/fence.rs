//! The fence every write by a holder passes in the transaction that admits it: lease active, not expired by database time read
//! under the lock, epoch and generation equal. Zero rows are then explained.

use serde_json::Value;
use uuid::Uuid;

use super::Tx;
use super::claim::ClaimKind;
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::lease::{Lease, Status};
use crate::model::sandbox::Sandbox;

/// What a write carries with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// `Berth-Generation`; a lease token carries its own.
    pub generation: Option<i64>,
    /// `Berth-Lease-Epoch`; a lease token carries its own.
    pub epoch: Option<i64>,
}

/// Proof that a write passed its fence in this transaction; only [`Tx::fence`] makes one.
#[derive(Debug)]
pub struct Fenced {
    /// The locked sandbox.
    pub sandbox: Sandbox,
    /// The active, unexpired lease.
    pub lease: Lease,
    /// Its live instance.
    pub instance: Instance,
    /// The database's time, read under the lock.
    pub now: Time,
    _proof: Proof,
}

/// Made nowhere else.
#[derive(Debug)]
struct Proof;

/// A lease with its sandbox locked: what renew, release and the like decide on.
#[derive(Debug)]
pub struct Locked {
    /// The locked sandbox.
    pub sandbox: Sandbox,
    /// The lease as it is now.
    pub lease: Lease,
    /// The database's time, read under the lock.
    pub now: Time,
}

impl Tx {
    /// Locks a lease's sandbox and reads both as they are now. `not_found` for a foreign lease as for an unknown one.
    pub async fn lock_lease(&mut self, organization: Uuid, lease: Uuid) -> Result<Locked> {
        let locked = if self.is_sqlite() {
            self.lease_and_sandbox(organization, lease).await?
        } else {
            let found = self.lease(organization, lease).await?.ok_or_else(|| Error::not_found("lease"))?;
            let sandbox = self.lock_sandbox(found.sandbox_id).await?;
            self.lease(organization, lease).await?.zip(sandbox)
        };
        let (lease, sandbox) = locked.ok_or_else(|| Error::not_found("lease"))?;
        Ok(Locked { sandbox, lease, now: self.now().await? })
    }

    /// Passes the fence for a write, or explains why not.
    pub async fn fence(&mut self, organization: Uuid, lease: Uuid, carried: Carried) -> Result<Fenced> {
        let Locked { sandbox, lease, now } = self.lock_lease(organization, lease).await?;
        check_live(&lease, now)?;
        check_epoch(&lease, carried)?;
        if !lease.is_writer() {
            return Err(Error::new(Code::ReadOnlyLease, "This lease only reads. Acquire with access read_write to write."));
        }
        let instance = match lease.instance_id {
            Some(id) => self.instance_by_id(id).await?,
            None => None,
        };
        let Some(instance) = instance.filter(|i| i.status.is_live()) else {
            return Err(instance_lost());
        };
        let current = sandbox.generation;
        match carried.generation {
            Some(carried) if carried == current && instance.status != InstanceStatus::Lost => {}
            Some(carried) => return Err(stale_generation(current, carried)),
            None => {
                return Err(Error::new(Code::GenerationRequired, "A write with an API key needs the header Berth-Generation.")
                    .fact("current", current));
            }
        }
        if lease.release.is_some() {
            return Err(transition("This lease is being released."));
        }
        Ok(Fenced { sandbox, lease, instance, now, _proof: Proof })
    }

    /// Refuses while a capture, a drain or a rotation holds the sandbox's gate; a lapsed gate is taken away from its former owner.
    pub async fn pass_gate(&mut self, sandbox: Uuid, now: Time) -> Result<()> {
        let Some(gate) = self.claim_of(sandbox, ClaimKind::Gate).await? else { return Ok(()) };
        if gate.claimed_until <= now {
            self.clear_lapsed(sandbox, ClaimKind::Gate, now).await?;
            return Ok(());
        }
        Err(gate_closed(&gate.detail))
    }
}

/// What a closed gate is called, by what holds it.
pub fn gate_closed(detail: &str) -> Error {
    match detail {
        "capture" => Error::new(Code::CaptureInProgress, "A capture is running; writes go on when it ends."),
        "rotation" => Error::new(Code::RotationInProgress, "The sandbox is moving to a new instance; writes go on when it has moved."),
        _ => transition("The sandbox is changing state; try again when it has."),
    }
    .retry_after(std::time::Duration::from_secs(1))
}

/// 409 `transition_in_progress`.
pub fn transition(detail: &str) -> Error {
    Error::new(Code::TransitionInProgress, detail).retry_after(std::time::Duration::from_secs(1))
}

/// 409 `instance_lost`.
pub fn instance_lost() -> Error {
    Error::new(Code::InstanceLost, "The sandbox's instance is gone. Recover to bring the workspace back, or release.")
        .allow(&["recover", "release"])
}

/// 409 `stale_generation`.
pub fn stale_generation(current: i64, carried: i64) -> Error {
    Error::new(
        Code::StaleGeneration,
        "This write was meant for a sandbox that no longer exists. Read the workspace again before writing; do not just resend.",
    )
    .fact("current", current)
    .fact("carried", carried)
}

/// Refuses a lease that is not active, or whose time has passed.
pub fn check_live(lease: &Lease, now: Time) -> Result<()> {
    if lease.status != Status::Active {
        let hint =
            if lease.status == Status::Pending { "It is still being made ready; read it with ?wait_seconds." } else { "Acquire again." };
        return Err(
            Error::new(Code::LeaseNotActive, format!("This lease is {}. {hint}", lease.status)).fact("lease_status", lease.status.as_str())
        );
    }
    if lease.has_expired(now) {
        let at = lease.expires_at.map_or(Value::Null, |at| Value::from(at.to_string()));
        return Err(Error::new(Code::LeaseExpired, "This lease's time has passed. Renew it, if nobody claimed it yet, or acquire again.")
            .fact("expired_at", at)
            .allow(&["renew", "release"]));
    }
    Ok(())
}

/// Refuses an epoch that another process took over from.
pub fn check_epoch(lease: &Lease, carried: Carried) -> Result<()> {
    match carried.epoch {
        Some(epoch) if epoch != lease.epoch => {
            Err(Error::new(Code::LeaseTakenOver, "Another process of this holder has taken the lease over. Stop; do not retry.")
                .fact("current_epoch", lease.epoch)
                .fact("carried_epoch", epoch))
        }
        _ => Ok(()),
    }
}
