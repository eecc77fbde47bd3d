//! Reading events: in the order of their commits, from any position that is still kept, each once.

use std::time::Duration;

use uuid::Uuid;

use super::{Berth, Caller, Credential};
use crate::error::{Code, Error, Result};
use crate::model::event::Event;
use crate::model::key::Scope;
use crate::store::event::Which;

/// How long events are kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Which events are read.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The position to go on from; before the oldest kept event when absent.
    pub after: Option<i64>,
    /// Of this type only.
    pub type_: Option<String>,
    /// About this subject only.
    pub subject: Option<Uuid>,
    /// At most this many.
    pub limit: i64,
}

/// Events, and the position to go on from.
#[derive(Clone, Debug)]
pub struct Found {
    /// Ascending.
    pub items: Vec<Event>,
    /// Everything up to here was looked at.
    pub after: i64,
    /// There is more behind it now.
    pub more: bool,
}

/// Events after a position. A lease token sees its own lease's events, and those of its sandbox.
pub async fn page(berth: &Berth, caller: &Caller, asked: &Asked) -> Result<Found> {
    let only = match &caller.credential {
        Credential::Key(_) => caller.require(Scope::Read).map(|()| None)?,
        Credential::Token(claims) => {
            let lease = berth.store.read().await?.lease_by_id(claims.lease).await?.ok_or_else(|| Error::not_found("lease"))?;
            Some((lease.id, lease.sandbox_id))
        }
    };
    number(berth, caller.organization).await?;
    let mut tx = berth.store.read().await?;
    let newest = tx.newest_event(caller.organization).await?;
    let after = match asked.after {
        Some(after) => after,
        None => tx.oldest_event(caller.organization).await? - 1,
    };
    let which = Which { organization: caller.organization, type_: asked.type_.as_deref(), subject: asked.subject, only };
    let items = tx.events(&which, after, newest, asked.limit).await?;
    // Looked at last: what was forgotten while the page was read must not be missing in silence.
    let oldest = tx.oldest_event(caller.organization).await?;
    if after.saturating_add(1) < oldest {
        return Err(Error::new(Code::EventsExpired, "Events after this position are no longer kept.").fact("oldest_seq", oldest));
    }
    let full = i64::try_from(items.len()).unwrap_or(i64::MAX) >= asked.limit;
    let reached = items.last().filter(|_| full).map_or(newest.max(after), |last| last.seq);
    Ok(Found { more: full && reached < newest, after: reached, items })
}

/// Numbers what was committed since it was last read.
async fn number(berth: &Berth, organization: Uuid) -> Result<()> {
    if !berth.store.read().await?.has_unpublished_events(organization).await? {
        return Ok(());
    }
    let mut tx = berth.store.begin().await?;
    tx.publish_events(organization).await?;
    Ok(tx.commit().await?)
}

/// Forgets events from longer ago than they are kept.
pub async fn forget_old(berth: &Berth) -> Result<u64> {
    let mut tx = berth.store.read().await?;
    let before = tx.now().await?.before(KEPT);
    let organizations = tx.organizations_with_events_before(before).await?;
    drop(tx);
    let mut gone = 0;
    for organization in organizations {
        number(berth, organization).await?;
        let mut tx = berth.store.begin().await?;
        gone += tx.forget_events(organization, before).await?;
        tx.commit().await?;
    }
    Ok(gone)
}
