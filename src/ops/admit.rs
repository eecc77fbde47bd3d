//! Admission: a write passes its fence and the gate, gets its number and its row, all in one transaction; then it may be sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Berth, Caller, resume};
use crate::error::{Code, Error, Result};
use crate::model::instance::{Instance, Status as InstanceStatus};
use crate::model::lease::Lease;
use crate::model::operation::{Kind, Operation, Output, Status};
use crate::provider::{ExecSpec, ProviderError};
use crate::store::fence::{check_epoch, check_live, instance_lost, transition};
use crate::store::operation::Settlement;
use crate::store::{Carried, ClaimKind, Claimed};

/// A write that may be sent now.
pub struct Admitted {
    /// Its row.
    pub operation: Operation,
    /// Where it goes.
    pub instance: Instance,
    /// Held while it runs.
    pub claim: Claimed,
}

/// Admits a write; a stopped instance is started first, a closed gate is waited for, bounded.
pub async fn admit(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    id: Uuid,
    kind: Kind,
    hold: Duration,
) -> Result<Admitted> {
    admit_with(berth, caller, lease, carried, id, kind, hold, None).await
}

/// Admits a command, whose provider lays it ready while that is made durable.
pub async fn admit_command(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    hold: Duration,
    command: &mut ExecSpec,
) -> Result<Admitted> {
    admit_with(berth, caller, lease, carried, command.id, Kind::Exec, hold, Some(command)).await
}

async fn admit_with(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    id: Uuid,
    kind: Kind,
    hold: Duration,
    mut command: Option<&mut ExecSpec>,
) -> Result<Admitted> {
    let patience = Instant::now() + berth.settings.gate_wait;
    loop {
        let mut tx = berth.store.begin().await?;
        let mut fenced = tx.fence(caller.organization, lease, caller.carried(carried)).await?;
        let obstacle = match tx.pass_gate(fenced.sandbox.id, fenced.now).await {
            Ok(()) => match fenced.instance.status {
                InstanceStatus::Running if fenced.instance.owed_fence.is_some() => {
                    drop(tx);
                    super::quiet::pay_owed_fence(berth, lease).await?;
                    continue;
                }
                InstanceStatus::Running => {
                    let operation = tx.admit(&mut fenced, id, kind).await?;
                    let claim = tx.claim(id, ClaimKind::Operation, berth.work.owner, kind.as_str(), fenced.now, hold).await?;
                    let ready = prepare(berth, &operation, &fenced.instance, command.as_deref_mut());
                    let (durable, ()) = tokio::join!(tx.commit(), ready);
                    durable?;
                    let claim = claim.ok_or(crate::store::error::StoreError::ClaimLost)?;
                    super::crash_point("after_admit");
                    return Ok(Admitted { operation, instance: fenced.instance, claim });
                }
                InstanceStatus::Stopped => {
                    drop(tx);
                    resume::wake(berth, caller.organization, lease, patience).await?;
                    continue;
                }
                _ => transition("The sandbox is changing state."),
            },
            Err(closed) => closed,
        };
        drop(tx);
        if !berth.work.line(fenced.sandbox.id).until_changed(patience).await {
            return Err(obstacle);
        }
    }
}

/// Gives a command its grant, and lets its provider lay it ready. A plugin is not asked: each call to it is one more that may hang.
async fn prepare(berth: &Berth, operation: &Operation, instance: &Instance, command: Option<&mut ExecSpec>) {
    let Some(command) = command else { return };
    command.grant_seq = operation.grant_seq;
    if let (Some(provider), Some(provider_ref)) = (berth.providers.get(&instance.provider), &instance.provider_ref) {
        command.prepared = provider.prepare(provider_ref, command).await;
    }
}

/// Writes down how an admitted write ended. `lingering`: something it started goes on running.
pub async fn settle(berth: &Berth, admitted: &Admitted, settlement: &Settlement, lingering: bool) -> Result<bool> {
    let mut tx = berth.store.begin().await?;
    let operation = &admitted.operation;
    if lingering && let Some(mut sandbox) = tx.lock_sandbox(operation.sandbox_id).await? {
        let now = tx.now().await?;
        if sandbox.instance_id == Some(operation.instance_id) {
            sandbox.process_open = true;
            tx.save_sandbox(&sandbox, now).await?;
        }
    }
    let now = tx.now().await?;
    // The claim before the operation, as whoever abandons it locks them: the other order is a deadlock.
    tx.drop_claim(&admitted.claim).await?;
    let settled = tx.settle_operation(operation.id, settlement, now).await?;
    tx.commit().await?;
    berth.work.ring(operation.sandbox_id);
    Ok(settled)
}

/// Why a write met a newer fence, in the words of the row's fence.
pub(super) async fn overtaken(berth: &Berth, operation: &Operation, error: &ProviderError) -> Error {
    let carried = Carried { generation: Some(operation.generation), epoch: Some(operation.epoch) };
    let why = match berth.store.begin().await {
        Ok(mut tx) => tx.fence(operation.organization_id, operation.lease_id, carried).await.err(),
        Err(error) => Some(error.into()),
    };
    why.unwrap_or_else(|| super::provider_failed(error))
}

/// A settlement with no output.
pub fn plain(status: Status, exit_code: Option<i64>) -> Settlement {
    Settlement { status, exit_code, signal: None, process_tree_killed: false, stdout: Output::default(), stderr: Output::default() }
}

/// A read under a lease: it is active, and its instance runs, or is started for a writer.
pub async fn readable(berth: &Arc<Berth>, caller: &Caller, id: Uuid) -> Result<(Lease, Instance)> {
    let mut tx = berth.store.read().await?;
    let lease = tx.lease(caller.organization, id).await?.ok_or_else(|| Error::not_found("lease"))?;
    let now = tx.now().await?;
    check_live(&lease, now)?;
    check_epoch(&lease, Carried { generation: None, ..caller.carried(Carried::default()) })?;
    let instance = match lease.instance_id {
        Some(id) => tx.instance_by_id(id).await?,
        None => None,
    };
    drop(tx);
    let instance = instance.filter(|i| i.status.is_live()).ok_or_else(instance_lost)?;
    match instance.status {
        InstanceStatus::Stopped | InstanceStatus::Starting if lease.is_writer() => {
            resume::wake(berth, caller.organization, id, Instant::now() + berth.settings.gate_wait).await?;
            Ok((lease, instance))
        }
        InstanceStatus::Stopped | InstanceStatus::Starting => {
            Err(Error::new(Code::InstanceNotRunning, "The sandbox is stopped, and a reader does not start it."))
        }
        _ => Ok((lease, instance)),
    }
}
