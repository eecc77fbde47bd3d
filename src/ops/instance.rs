//! Reading the ledger of instances.

use std::time::Duration;

use uuid::Uuid;

use super::input::ListQuery;
use super::view::Page;
use super::{Berth, Caller};
use crate::error::{Error, Result};
use crate::model::instance::Instance;
use crate::model::key::Scope;
use crate::store::Cursor;

/// One row; with a wait, a long poll for the end of what is being done with it.
pub async fn get(berth: &Berth, caller: &Caller, id: Uuid, wait: Duration) -> Result<Instance> {
    caller.require(Scope::Read)?;
    let read = async || berth.store.read().await?.instance(caller.organization, id).await?.ok_or_else(|| Error::not_found("instance"));
    let first = read().await?;
    berth.long_poll(first.sandbox_id, wait, first, |row| !row.status.is_in_transition(), read).await
}

/// A page of rows.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<Instance>> {
    caller.require(Scope::Read)?;
    let (filters, bound, cursor) = super::lease::narrow(berth, caller, "instances", &query).await?;
    let rows = berth.store.read().await?.instances(caller.organization, &filters, cursor, query.limit + 1).await?;
    let (items, next_cursor) = super::lease::cut(rows, query.limit, &bound, |i: &Instance| Cursor { created_at: i.created_at, id: i.id });
    Ok(Page { items, next_cursor })
}
