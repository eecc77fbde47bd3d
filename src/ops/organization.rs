//! Organizations: made, listed and let go by operators, who see no tenant's content.

use serde_json::json;
use uuid::Uuid;

use super::input::ListQuery;
use super::view::Page;
use super::{Berth, Caller};
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::store::Cursor;
use crate::store::event::NewEvent;
use crate::store::organization::Organization;

/// Makes an organization.
pub async fn create(berth: &Berth, caller: &Caller, name: &str) -> Result<Organization> {
    caller.require(Scope::Operator)?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let (organization, new) = tx.ensure_organization_as(caller.first_id(), name, now).await?;
    if !new {
        return Err(Error::new(Code::NameTaken, format!("An organization named {name} exists already.")));
    }
    tx.commit().await?;
    Ok(organization)
}

/// The name of the caller's own organization.
pub async fn name(berth: &Berth, caller: &Caller) -> Result<String> {
    let found = berth.store.read().await?.organization(caller.organization).await?;
    Ok(found.ok_or_else(|| Error::not_found("organization"))?.name)
}

/// A page of organizations.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<Organization>> {
    caller.require(Scope::Operator)?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, "organizations", &query).await?;
    let rows = berth.store.read().await?.organizations(cursor, query.limit + 1).await?;
    let (items, next_cursor) =
        super::lease::cut(rows, query.limit, &bound, |o: &Organization| Cursor { created_at: o.created_at, id: o.id });
    Ok(Page { items, next_cursor })
}

/// Lets an organization go, with its keys, environments and checkpoints. Refused while it has live leases or instances whose
/// teardown is unconfirmed; `default` and the caller's own stay.
pub async fn delete(berth: &Berth, caller: &Caller, id: Uuid) -> Result<()> {
    caller.require(Scope::Operator)?;
    let mut tx = berth.store.begin().await?;
    let found = tx.organization(id).await?.ok_or_else(|| Error::not_found("organization"))?;
    if id == caller.organization || found.name == super::boot::DEFAULT_ORGANIZATION {
        return Err(Error::new(Code::InUse, "The organization `default`, and the one whose key asks, are not deleted."));
    }
    let now = tx.now().await?;
    // Environments first: whoever makes an instance holds its environment, then the organization its event belongs to.
    tx.archive_environments_of(id, now).await?;
    if !tx.lock_organization(id).await? {
        return Err(Error::not_found("organization"));
    }
    let (leases, instances) = tx.unfinished_of_organization(id).await?;
    if leases + instances > 0 {
        return Err(Error::new(Code::InUse, "It has live leases, or instances whose teardown is not confirmed; nothing was deleted.")
            .fact("live_leases", leases)
            .fact("unfinished_instances", instances));
    }
    let hashes = tx.revoke_keys_of(id, now).await?;
    tx.delete_organization(id, now).await?;
    let event = NewEvent {
        organization: caller.organization,
        type_: "organization.deleted",
        subject_kind: "organization",
        subject: id,
        generation: None,
        actor: &caller.actor(),
        data: json!({ "name": found.name }),
    };
    tx.tell(event, now).await?;
    tx.commit().await?;
    for hash in hashes {
        berth.keys.invalidate(&hash).await;
    }
    Ok(())
}
