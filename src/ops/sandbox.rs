//! Sandboxes: ensured by scope, read, listed.

use std::time::Duration;

use uuid::Uuid;

use super::input::ListQuery;
use super::view::{Next, Page, SandboxView};
use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::instance::Status as InstanceStatus;
use crate::model::key::Scope as KeyScope;
use crate::model::sandbox::Sandbox;
use crate::model::scope::Scope;
use crate::store::{Cursor, Tx};

/// Finds or makes the sandbox of a scope; nothing physical is made.
pub async fn ensure(berth: &Berth, caller: &Caller, environment: &str, scope: Scope) -> Result<(SandboxView, bool)> {
    caller.require(KeyScope::Write)?;
    berth.refuse_while_draining().await?;
    let environment = super::environment::find(berth, caller.organization, environment).await?;
    if environment.archived_at.is_some() {
        return Err(Error::new(Code::EnvironmentArchived, "This environment is archived; nothing new is made in it."));
    }
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let (sandbox, new) = tx.ensure_sandbox(caller.organization, environment.id, Some(&scope), now).await?;
    tx.commit().await?;
    let view = join(&mut berth.store.read().await?, sandbox).await?;
    Ok((view, new))
}

/// One sandbox; with a wait, a long poll for the end of what is being done with its instance.
pub async fn get(berth: &Berth, caller: &Caller, id: Uuid, wait: Duration) -> Result<SandboxView> {
    caller.require_on_sandbox(berth, KeyScope::Read, id).await?;
    let read = async || {
        let mut tx = berth.store.read().await?;
        let sandbox = tx.living_sandbox(caller.organization, id).await?.ok_or_else(|| Error::not_found("sandbox"))?;
        join(&mut tx, sandbox).await
    };
    let settled = |view: &SandboxView| view.instance.as_ref().is_none_or(|row| !row.status.is_in_transition());
    berth.long_poll(id, wait, read().await?, settled, read).await
}

/// A page of sandboxes.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<SandboxView>> {
    caller.require(KeyScope::Read)?;
    let (filters, bound, cursor) = super::lease::narrow(berth, caller, "sandboxes", &query).await?;
    let mut tx = berth.store.read().await?;
    let rows = tx.sandboxes(caller.organization, &filters, cursor, query.limit + 1).await?;
    let (rows, next_cursor) = super::lease::cut(rows, query.limit, &bound, |s: &Sandbox| Cursor { created_at: s.created_at, id: s.id });
    let mut items = Vec::with_capacity(rows.len());
    for sandbox in rows {
        items.push(join(&mut tx, sandbox).await?);
    }
    Ok(Page { items, next_cursor })
}

pub(super) async fn join(tx: &mut Tx, sandbox: Sandbox) -> Result<SandboxView> {
    let environment =
        tx.environment(sandbox.organization_id, sandbox.environment_id).await?.ok_or_else(|| Error::not_found("environment"))?;
    let instance = super::lease::live_instance_of(tx, &sandbox).await?;
    let current_checkpoint = tx.current_checkpoint(sandbox.id).await?;
    let live = tx.live_leases(sandbox.id).await?;
    let at = |base: Time, millis: i64| Some(Time(base.0.saturating_add(millis)));
    let next = match &instance {
        Some(i) if !live.is_empty() => Next {
            action: "none".to_owned(),
            at: None,
            blocked_by: vec![format!("{}_live_leases", live.len())].into_iter().filter(|_| i.status.is_live()).collect(),
        },
        Some(i) if i.hold_reason.is_some() => {
            Next { action: "none".to_owned(), at: None, blocked_by: i.hold_reason.iter().map(|h| h.as_str().to_owned()).collect() }
        }
        Some(i) if i.status == InstanceStatus::Running => {
            Next { action: "idle_drain".to_owned(), at: at(i.used_at, environment.idle_timeout_ms), blocked_by: Vec::new() }
        }
        Some(i) if i.status == InstanceStatus::Stopped => {
            Next { action: "destroy_instance".to_owned(), at: at(i.used_at, environment.retain_ms), blocked_by: Vec::new() }
        }
        Some(i) => Next { action: format!("finish_{}", i.status), at: None, blocked_by: Vec::new() },
        None => Next { action: "none".to_owned(), at: None, blocked_by: Vec::new() },
    };
    let lease_ids = live.iter().map(|l| l.id).collect();
    Ok(SandboxView {
        environment_name: environment.name,
        provider: environment.provider,
        instance,
        current_checkpoint,
        lease_ids,
        next,
        sandbox,
    })
}
