//! Reading leases: one, many, and waiting for one to be ready.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::input::ListQuery;
use super::view::{LeaseView, Next, Page};
use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::event::Actor;
use crate::model::instance::{Glance, Instance};
use crate::model::key::Scope;
use crate::model::lease::{Lease, Status};
use crate::model::sandbox::Sandbox;
use crate::store::event::NewEvent;
use crate::store::lease::JoinedLease;
use crate::store::{Cursor, Filters, Tx};

/// One lease; with a wait, a long poll that answers when its status changes or the wait is over.
pub async fn get(berth: &Berth, caller: &Caller, id: Uuid, wait: Duration) -> Result<LeaseView> {
    caller.require_on_lease(Scope::Read, id)?;
    let first = read(berth, caller.organization, id).await?;
    let (sandbox, status) = (first.lease.sandbox_id, first.lease.status);
    let settled = |view: &LeaseView| view.lease.status.is_end() || view.lease.status != status;
    berth.long_poll(sandbox, wait, first, settled, || read(berth, caller.organization, id)).await
}

/// The lease's present generation and epoch, for whoever may read it.
pub async fn fence(berth: &Berth, caller: &Caller, id: Uuid) -> Result<(i64, i64)> {
    caller.require_on_lease(Scope::Read, id)?;
    let lease = berth.store.read().await?.lease(caller.organization, id).await?.ok_or_else(|| Error::not_found("lease"))?;
    Ok((lease.generation, lease.epoch))
}

/// A page of leases.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<LeaseView>> {
    caller.require(Scope::Read)?;
    let (filters, bound, cursor) = narrow(berth, caller, "leases", &query).await?;
    let mut tx = berth.store.read().await?;
    let rows = tx.leases(caller.organization, &filters, cursor, query.limit + 1).await?;
    let (rows, next_cursor) = cut(rows, query.limit, &bound, |row| Cursor { created_at: row.lease.created_at, id: row.lease.id });
    Ok(Page { items: rows.into_iter().map(view).collect(), next_cursor })
}

/// A lease as its reader sees it, with no token.
pub(super) async fn read(berth: &Berth, organization: Uuid, id: Uuid) -> Result<LeaseView> {
    let row = berth.store.read().await?.joined_lease(organization, id).await?;
    Ok(view(row.ok_or_else(|| Error::not_found("lease"))?))
}

/// A row as its reader sees it, with no token.
pub(super) fn view(row: JoinedLease) -> LeaseView {
    let instance = row.instance.glance();
    LeaseView {
        next: next(&row.lease, instance.as_ref(), row.retain_ms),
        scope: row.scope.map(|s| s.0),
        environment_name: row.environment_name,
        provider: row.provider,
        instance,
        server_time: row.server_time,
        token: None,
        lease: row.lease,
    }
}

/// What will happen to a lease by itself.
fn next(lease: &Lease, instance: Option<&Glance>, retain_ms: i64) -> Next {
    let none = || Next { action: "none".to_owned(), at: None, blocked_by: Vec::new() };
    let at = |action: &str, at: Option<Time>| Next { action: action.to_owned(), at, blocked_by: Vec::new() };
    match lease.status {
        Status::Pending => at("activate", None),
        Status::Active if lease.release.is_some() => at("release", None),
        Status::Active if instance.is_some_and(|i| !i.status.is_live()) => {
            Next { blocked_by: vec!["instance_lost".to_owned()], ..at("expire", lease.expires_at) }
        }
        Status::Active => at("expire", lease.expires_at),
        Status::Retained => at("destroy", lease.retain_until),
        Status::PendingCleanup => Next {
            blocked_by: instance.and_then(|i| i.cleanup_error_kind.clone()).into_iter().collect(),
            ..at("confirm_teardown", instance.and_then(|i| i.cleanup_next_at))
        },
        Status::Released | Status::Expired | Status::Failed => match instance {
            Some(i) if i.status == crate::model::instance::Status::Stopped => {
                at("destroy_instance", Some(Time(i.used_at.0.saturating_add(retain_ms))))
            }
            _ => none(),
        },
    }
}

/// Waits, bounded, until a lease is no longer pending.
pub(super) async fn await_ready(berth: &Berth, organization: Uuid, id: Uuid, wait: Duration) -> Result<LeaseView> {
    let patience = Instant::now() + wait;
    loop {
        let view = read(berth, organization, id).await?;
        if view.lease.status != Status::Pending || !berth.work.line(view.lease.sandbox_id).until_changed(patience).await {
            return Ok(view);
        }
    }
}

/// Why a lease failed, as it was told when it happened.
pub(super) fn failure(lease: &Lease) -> Error {
    let code = lease.failure_code.as_deref().and_then(Code::parse).unwrap_or(Code::LeaseNotActive);
    let detail = lease.failure_reason.clone().unwrap_or_else(|| format!("This lease is {}.", lease.status));
    let mut error = Error::new(code, detail).fact("lease_id", lease.id.to_string());
    if let Some(Value::Object(facts)) = lease.failure_facts.as_ref().map(|f| f.0.clone()) {
        error.retry_after = facts.get("retry_after_seconds").and_then(Value::as_u64).map(Duration::from_secs);
        error.facts.extend(facts.into_iter().filter(|(name, _)| name != "retry_after_seconds"));
    }
    error
}

/// Writes an event about a lease.
pub(super) async fn tell(tx: &mut Tx, lease: &Lease, type_: &'static str, actor: &Actor, now: Time) -> Result<()> {
    Ok(tx.tell(event(lease, type_, actor), now).await?)
}

/// An event about a lease.
pub(super) fn event<'a>(lease: &Lease, type_: &'static str, actor: &'a Actor) -> NewEvent<'a> {
    NewEvent {
        organization: lease.organization_id,
        type_,
        subject_kind: "lease",
        subject: lease.id,
        generation: Some(lease.generation),
        actor,
        data: json!({ "sandbox_id": lease.sandbox_id, "instance_id": lease.instance_id, "epoch": lease.epoch, "status": lease.status, "failure_code": lease.failure_code }),
    }
}

/// The event of an end.
pub(super) fn end_event(end: Status) -> &'static str {
    match end {
        Status::Expired => "lease.expired",
        Status::Failed => "lease.failed",
        _ => "lease.released",
    }
}

/// Filters resolved under the caller's organization, the text cursors are bound to, and where the page begins.
pub(super) async fn narrow(berth: &Berth, caller: &Caller, list: &str, query: &ListQuery) -> Result<(Filters, String, Option<Cursor>)> {
    let environment = match &query.environment {
        Some(name) => Some(super::environment::find(berth, caller.organization, name).await.map_or(Uuid::nil(), |e| e.id)),
        None => None,
    };
    let filters = Filters {
        status: query.status.clone(),
        environment,
        holder: query.holder.clone(),
        sandbox: query.sandbox_id,
        scope: query.scope.clone(),
        metadata: query.metadata.clone(),
        quarantined: query.quarantined,
        source_turn: query.source_turn_id.clone(),
        source_tool_call: query.source_tool_call_id.clone(),
    };
    let bound = format!("{list}|{}|{filters:?}", caller.organization);
    let cursor = match &query.cursor {
        Some(text) => Some(Cursor::decode(text, &bound).ok_or_else(|| {
            Error::new(Code::InvalidCursor, "This cursor was not given out for this list with these filters. Start again without one.")
        })?),
        None => None,
    };
    Ok((filters, bound, cursor))
}

/// Cuts the one row too many off, and says where the next page begins.
pub(super) fn cut<T>(mut rows: Vec<T>, limit: i64, bound: &str, place: impl Fn(&T) -> Cursor) -> (Vec<T>, Option<String>) {
    let limit = usize::try_from(limit).unwrap_or(0);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = if more { rows.last().map(|row| place(row).encode(bound)) } else { None };
    (rows, next)
}

/// A sandbox's dirty flag needs its live instance; shared by views.
pub(super) async fn live_instance_of(tx: &mut Tx, sandbox: &Sandbox) -> Result<Option<Instance>> {
    Ok(match sandbox.instance_id {
        Some(id) => tx.instance_by_id(id).await?,
        None => None,
    })
}
