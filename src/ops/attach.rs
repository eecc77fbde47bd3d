//! Attach: the pointer moves to a checkpoint of this very sandbox, fenced by its generation.

use tokio::time::Instant;
use uuid::Uuid;

use super::input::Attach;
use super::{Berth, Caller, Credential};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Consistency, Event, Kind, Status};
use crate::model::key::Scope;
use crate::model::sandbox::Sandbox;
use crate::store::Tx;
use crate::store::fence::stale_generation;

/// Moves the pointer. Already current: nothing happens. Attached but not current needs `move_back`.
pub async fn attach(berth: &Berth, caller: &Caller, sandbox: Uuid, checkpoint: Uuid, input: Attach) -> Result<Checkpoint> {
    caller.require_on_sandbox(berth, Scope::Write, sandbox).await?;
    let patience = Instant::now() + berth.settings.gate_wait;
    let mut resolved = false;
    loop {
        let mut tx = berth.store.begin().await?;
        let (mut row, now) = lock(&mut tx, caller, sandbox).await?;
        let mut chosen = tx
            .checkpoint(caller.organization, checkpoint)
            .await?
            .filter(|c| c.sandbox_id == sandbox)
            .ok_or_else(|| Error::not_found("checkpoint"))?;
        only_the_writer(&mut tx, caller, &row, input.lease_id, now).await?;
        if let Err(closed) = tx.pass_gate(sandbox, now).await {
            drop(tx);
            if !berth.work.line(sandbox).until_changed(patience).await {
                return Err(closed);
            }
            continue;
        }
        if row.generation != input.generation {
            return Err(stale_generation(row.generation, input.generation));
        }
        if chosen.generation != input.generation && !input.move_back {
            return Err(stale_generation(row.generation, chosen.generation));
        }
        if chosen.current {
            return Ok(chosen);
        }
        if matches!(chosen.status, Status::Attached | Status::Superseded) && !input.move_back {
            return Err(Error::new(Code::Superseded, "A later checkpoint is current. Say move_back: true to go back to this one."));
        }
        if chosen.kind == Kind::ProviderNative && !resolved {
            let environment =
                tx.environment(row.organization_id, row.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
            drop(tx);
            super::native::usable(berth, &environment.provider, &chosen).await?;
            resolved = true;
            continue;
        }
        let was = chosen.status;
        chosen.status = was
            .on(Event::Attach)
            .map_err(|_| Error::new(Code::CheckpointUnavailable, format!("This checkpoint is {was}; it cannot be attached.")))?;
        chosen.attached_at = Some(now);
        chosen.detached_at = None;
        tx.save_checkpoint(&chosen, was, now).await?;
        point(&mut tx, &mut row, &chosen, now).await?;
        super::capture::tell(&mut tx, &chosen, "checkpoint.attached", &caller.actor(), now).await?;
        tx.commit().await?;
        berth.work.ring(sandbox);
        let told = berth.store.read().await?.checkpoint(caller.organization, checkpoint).await?;
        return told.ok_or_else(|| Error::not_found("checkpoint"));
    }
}

/// Locks a sandbox of the caller's organization.
pub(super) async fn lock(tx: &mut Tx, caller: &Caller, sandbox: Uuid) -> Result<(Sandbox, Time)> {
    let unknown = || Error::not_found("sandbox");
    tx.living_sandbox(caller.organization, sandbox).await?.ok_or_else(unknown)?;
    let row = tx.lock_sandbox(sandbox).await?.filter(|s| s.deleted_at.is_none()).ok_or_else(unknown)?;
    Ok((row, tx.now().await?))
}

/// While a writer's lease lives, the pointer is its own: by its token, or by naming it. With none, any key that may write.
pub(super) async fn only_the_writer(tx: &mut Tx, caller: &Caller, sandbox: &Sandbox, named: Option<Uuid>, now: Time) -> Result<()> {
    let live = tx.live_leases(sandbox.id).await?;
    let writer = live.iter().find(|l| l.is_writer() && !l.has_expired(now));
    let named = match &caller.credential {
        Credential::Token(claims) => {
            if let Some(lease) = live.iter().find(|l| l.id == claims.lease) {
                crate::store::fence::check_epoch(lease, crate::store::Carried { epoch: Some(claims.epoch), generation: None })?;
            }
            Some(claims.lease)
        }
        Credential::Key(_) => named,
    };
    match (writer, named) {
        (Some(writer), Some(named)) if writer.id == named => Ok(()),
        (Some(writer), _) => Err(super::acquire::conflict(writer)),
        (None, Some(_)) if caller.is_token() => Err(Error::new(Code::LeaseNotActive, "This token's lease is over or only reads.")),
        (None, _) => Ok(()),
    }
}

/// Moves the pointer of a locked sandbox, and says what that means for the live workspace: a capture of this very instance is what
/// it was then; anything else has nothing to do with it, and the workspace has diverged.
async fn point(tx: &mut Tx, sandbox: &mut Sandbox, to: &Checkpoint, now: Time) -> Result<()> {
    let of_this_instance = to.instance_id.is_some() && to.instance_id == sandbox.instance_id;
    let settled = of_this_instance && to.consistency != Some(Consistency::Live);
    sandbox.current_checkpoint_id = Some(to.id);
    sandbox.pointer_seq += 1;
    // With nothing live the pointer is all there is, and nothing is behind it.
    sandbox.synced_seq = if sandbox.instance_id.is_none() { Some(sandbox.workspace_seq) } else { to.workspace_seq.filter(|_| settled) };
    sandbox.diverged = sandbox.instance_id.is_some() && !of_this_instance;
    Ok(tx.save_sandbox(sandbox, now).await?)
}
