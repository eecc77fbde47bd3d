//! Reading checkpoints.

use std::time::Duration;

use uuid::Uuid;

use super::input::ListQuery;
use super::view::Page;
use super::{Berth, Caller};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::{Checkpoint, Status};
use crate::model::key::Scope;
use crate::store::{Cursor, Tx};

/// A page of a sandbox's checkpoints.
pub async fn list(berth: &Berth, caller: &Caller, sandbox: Uuid, query: ListQuery) -> Result<Page<Checkpoint>> {
    caller.require_on_sandbox(berth, Scope::Read, sandbox).await?;
    let (filters, bound, cursor) = super::lease::narrow(berth, caller, &format!("checkpoints:{sandbox}"), &query).await?;
    let mut tx = own(berth, caller, sandbox).await?;
    let rows = tx.checkpoints(sandbox, &filters, cursor, query.limit + 1).await?;
    let (items, next_cursor) = super::lease::cut(rows, query.limit, &bound, |c: &Checkpoint| Cursor { created_at: c.created_at, id: c.id });
    Ok(Page { items, next_cursor })
}

/// One checkpoint of a sandbox; with a wait, a long poll for the end of its capture.
pub async fn get(berth: &Berth, caller: &Caller, sandbox: Uuid, id: Uuid, wait: Duration) -> Result<Checkpoint> {
    caller.require_on_sandbox(berth, Scope::Read, sandbox).await?;
    let read = async || {
        let mut tx = own(berth, caller, sandbox).await?;
        tx.checkpoint(caller.organization, id).await?.filter(|c| c.sandbox_id == sandbox).ok_or_else(|| Error::not_found("checkpoint"))
    };
    berth.long_poll(sandbox, wait, read().await?, |row| row.status != Status::Capturing, read).await
}

/// The checkpoint the pointer names, or 404 `no_current_checkpoint`.
pub async fn current(berth: &Berth, caller: &Caller, sandbox: Uuid) -> Result<Checkpoint> {
    caller.require_on_sandbox(berth, Scope::Read, sandbox).await?;
    let mut tx = own(berth, caller, sandbox).await?;
    tx.current_checkpoint(sandbox).await?.ok_or_else(|| Error::new(Code::NoCurrentCheckpoint, "This sandbox has no current checkpoint."))
}

async fn own(berth: &Berth, caller: &Caller, sandbox: Uuid) -> Result<Tx> {
    let mut tx = berth.store.read().await?;
    tx.living_sandbox(caller.organization, sandbox).await?.ok_or_else(|| Error::not_found("sandbox"))?;
    Ok(tx)
}
