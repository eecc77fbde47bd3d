//! Many leases in one call: each is treated as if it had been asked for alone, and one failure stops nothing.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use uuid::Uuid;

use super::input::{ReleaseRequest, Renew};
use super::view::LeaseView;
use super::{Berth, Caller, release, renew};
use crate::error::Result;
use crate::model::key::Scope;
use crate::model::lease::Status;
use crate::store::{Cursor, Filters};

/// How many are worked on at once.
const AT_ONCE: usize = 8;
/// How many rows are read at once.
const PAGE: i64 = 200;

/// What became of one lease.
pub type Item = (Uuid, Result<LeaseView>);

/// Releases every live lease of a holder.
pub async fn release(berth: &Arc<Berth>, caller: &Caller, holder: &str, input: &ReleaseRequest) -> Result<Vec<Item>> {
    caller.require(Scope::Write)?;
    let live = Status::ALL.iter().filter(|s| s.is_live()).map(|s| s.as_str().to_owned()).collect();
    let filters = Filters { holder: Some(holder.to_owned()), status: live, ..Filters::default() };
    let (mut ids, mut cursor) = (Vec::new(), None);
    let mut tx = berth.store.read().await?;
    loop {
        let page = tx.leases(caller.organization, &filters, cursor, PAGE).await?;
        let Some(last) = page.last() else { break };
        cursor = Some(Cursor { created_at: last.lease.created_at, id: last.lease.id });
        ids.extend(page.iter().map(|row| row.lease.id));
    }
    drop(tx);
    let released = stream::iter(ids).map(|id| async move {
        let answer = release::release(berth, caller, id, input.clone()).await;
        (id, answer.map(|(view, _)| view))
    });
    Ok(released.buffered(AT_ONCE).collect().await)
}

/// Renews each of these leases by the time to live it remembers.
pub async fn renew(berth: &Berth, caller: &Caller, ids: Vec<Uuid>) -> Result<Vec<Item>> {
    caller.require(Scope::Write)?;
    let renewed = stream::iter(ids).map(|id| async move { (id, renew::renew(berth, caller, id, Renew::default()).await) });
    Ok(renewed.buffered(AT_ONCE).collect().await)
}
