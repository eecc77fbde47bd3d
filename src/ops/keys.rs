//! API keys: made, listed, rotated, revoked. A secret is answered once and stored nowhere.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::input::ListQuery;
use super::view::Page;
use super::{Berth, Caller, Credential};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::key::{self, ApiKey, Scope};
use crate::store::event::NewEvent;
use crate::store::key::StoredKey;
use crate::store::{Cursor, Tx};

/// How long a rotated key goes on working when the rotation does not say.
const OVERLAP: Duration = Duration::from_secs(3600);

/// Makes a key and returns its secret, this once. A key grants no scope it lacks; an operator may make keys of any organization.
pub async fn create(
    berth: &Berth,
    caller: &Caller,
    name: &str,
    scopes: Vec<Scope>,
    expires_at: Option<Time>,
    organization_id: Option<Uuid>,
) -> Result<(ApiKey, String)> {
    let Credential::Key(own) = &caller.credential else {
        return Err(caller.require(Scope::Admin).err().unwrap_or_else(|| Error::not_found("key")));
    };
    let foreign = organization_id.filter(|id| *id != caller.organization);
    caller.require(if foreign.is_some() { Scope::Operator } else { Scope::Admin })?;
    refuse_escalation(own, &scopes)?;
    let secret = super::boot::new_secret()?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let organization = organization_id.unwrap_or(caller.organization);
    if !tx.lock_organization(organization).await? {
        return Err(Error::not_found("organization"));
    }
    let key = ApiKey { id: caller.first_id(), organization_id: organization, name: name.to_owned(), scopes, expires_at, created_at: now };
    tx.insert_key(&key, &key::hash(&secret)).await?;
    tell(&mut tx, caller, &key, "api_key.created", json!({}), now).await?;
    tx.commit().await?;
    Ok((key, secret))
}

/// No key hands out what it lacks. An operator administers keys of every organization without being one of its administrators.
fn refuse_escalation(own: &ApiKey, scopes: &[Scope]) -> Result<()> {
    let lacks = scopes.iter().find(|scope| **scope == Scope::Operator && !own.grants(Scope::Operator));
    lacks.map_or(Ok(()), |scope| {
        Err(Error::new(Code::ScopeEscalation, format!("A key grants no scope it lacks; this one lacks {scope}."))
            .fact("missing_scope", scope.as_str()))
    })
}

/// A page of working keys; another organization's for an operator.
pub async fn list(berth: &Berth, caller: &Caller, organization_id: Option<Uuid>, query: ListQuery) -> Result<Page<ApiKey>> {
    let organization = organization_id.unwrap_or(caller.organization);
    caller.require(if organization == caller.organization { Scope::Admin } else { Scope::Operator })?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, &format!("api-keys {organization}"), &query).await?;
    let rows = berth.store.read().await?.keys(organization, cursor, query.limit + 1).await?;
    let (items, next_cursor) = super::lease::cut(rows, query.limit, &bound, |k: &ApiKey| Cursor { created_at: k.created_at, id: k.id });
    Ok(Page { items, next_cursor })
}

/// Makes a new key with the same name, scopes and end, and lets the old one end after the overlap (an hour when it is not said).
pub async fn rotate(berth: &Berth, caller: &Caller, id: Uuid, overlap_seconds: Option<u64>) -> Result<(ApiKey, String)> {
    let secret = super::boot::new_secret()?;
    let mut tx = berth.store.begin().await?;
    let (old, now) = find(&mut tx, caller, id).await?;
    if !old.works(now) {
        return Err(Error::not_found("key"));
    }
    if let Credential::Key(own) = &caller.credential {
        refuse_escalation(own, &old.key.scopes)?;
    }
    let key = ApiKey { id: caller.first_id(), created_at: now, ..old.key.clone() };
    tx.insert_key(&key, &key::hash(&secret)).await?;
    let ends = now.after(overlap_seconds.map_or(OVERLAP, Duration::from_secs));
    tx.expire_key(id, ends).await?;
    tell(&mut tx, caller, &old.key, "api_key.rotated", json!({ "successor_id": key.id, "expires_at": ends }), now).await?;
    tx.commit().await?;
    berth.keys.invalidate(&old.secret_hash).await;
    Ok((key, secret))
}

/// Revokes a key: at once here, within the cache's term elsewhere. The last admin key of an organization stays; a repeated call
/// answers the same.
pub async fn revoke(berth: &Berth, caller: &Caller, id: Uuid) -> Result<()> {
    let mut tx = berth.store.begin().await?;
    let (found, now) = find(&mut tx, caller, id).await?;
    let administers = found.works(now) && found.key.scopes.contains(&Scope::Admin);
    if administers && !tx.has_other_admin_key(&found.key, now).await? {
        return Err(Error::new(Code::LastAdminKey, "No other admin key of this organization lasts as long; make one first."));
    }
    if tx.revoke_key(id, now).await? {
        tell(&mut tx, caller, &found.key, "api_key.revoked", json!({}), now).await?;
    }
    tx.commit().await?;
    berth.keys.invalidate(&found.secret_hash).await;
    Ok(())
}

/// A key that this caller administers, under its organization's lock: two revocations count each other's keys.
async fn find(tx: &mut Tx, caller: &Caller, id: Uuid) -> Result<(StoredKey, Time)> {
    let unknown = || Error::not_found("key");
    let operates = caller.require(Scope::Operator).is_ok();
    if !operates {
        caller.require(Scope::Admin)?;
    }
    let seen = tx.stored_key(id).await?.ok_or_else(unknown)?;
    let own = seen.key.organization_id == caller.organization;
    if !own && !operates {
        return Err(unknown());
    }
    if own {
        caller.require(Scope::Admin)?;
    }
    if !tx.lock_organization(seen.key.organization_id).await? {
        return Err(unknown());
    }
    let now = tx.now().await?;
    Ok((tx.stored_key(id).await?.ok_or_else(unknown)?, now))
}

async fn tell(tx: &mut Tx, caller: &Caller, key: &ApiKey, type_: &'static str, data: Value, now: Time) -> Result<()> {
    let event = NewEvent {
        organization: key.organization_id,
        type_,
        subject_kind: "api_key",
        subject: key.id,
        generation: None,
        actor: &caller.actor(),
        data,
    };
    Ok(tx.tell(event, now).await?)
}

/// An organization's name and when it was made.
pub async fn organization(berth: &Berth, caller: &Caller, id: Uuid) -> Result<(String, Time)> {
    caller.require(Scope::Operator)?;
    let found = berth.store.read().await?.organization(id).await?.ok_or_else(|| Error::not_found("organization"))?;
    Ok((found.name, found.created_at))
}

/// A working key, without its secret; an operator finds those of any organization.
pub async fn get(berth: &Berth, caller: &Caller, id: Uuid) -> Result<ApiKey> {
    caller.require(Scope::Admin)?;
    let key = berth.store.read().await?.key(id).await?.ok_or_else(|| Error::not_found("key"))?;
    if key.organization_id != caller.organization && caller.require(Scope::Operator).is_err() {
        return Err(Error::not_found("key"));
    }
    Ok(key)
}

/// Makes a key for whoever holds the database itself; the organization by name or id.
pub async fn issue(berth: &Berth, organization: &str, name: &str, scopes: Vec<Scope>) -> Result<(ApiKey, String)> {
    let secret = super::boot::new_secret()?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let found = match Uuid::parse_str(organization) {
        Ok(id) => tx.organization(id).await?,
        Err(_) => tx.organization_named(organization).await?,
    };
    let organization = found.ok_or_else(|| Error::not_found("organization"))?;
    let key =
        ApiKey { id: crate::id::new(), organization_id: organization.id, name: name.to_owned(), scopes, expires_at: None, created_at: now };
    tx.insert_key(&key, &key::hash(&secret)).await?;
    tx.commit().await?;
    Ok((key, secret))
}
