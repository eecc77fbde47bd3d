//! Organizations and API keys.

use uuid::Uuid;

use super::{Berth, Caller, Credential};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::key::{self, ApiKey, Scope};

/// Makes an organization.
pub async fn create_organization(berth: &Berth, caller: &Caller, name: &str) -> Result<(Uuid, String, Time)> {
    caller.require(Scope::Operator)?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let (organization, new) = tx.ensure_organization_as(caller.first_id(), name, now).await?;
    if !new {
        return Err(Error::new(Code::NameTaken, format!("An organization named {name} exists already.")));
    }
    tx.commit().await?;
    Ok((organization.id, organization.name, organization.created_at))
}

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
    let lacks = scopes.iter().find(|scope| **scope == Scope::Operator && !own.grants(Scope::Operator));
    if let Some(scope) = lacks {
        return Err(Error::new(Code::ScopeEscalation, format!("A key grants no scope it lacks; this one lacks {scope}."))
            .fact("missing_scope", scope.as_str()));
    }
    let secret = super::boot::new_secret()?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let organization = organization_id.unwrap_or(caller.organization);
    tx.organization(organization).await?.ok_or_else(|| Error::not_found("organization"))?;
    let key = ApiKey { id: caller.first_id(), organization_id: organization, name: name.to_owned(), scopes, expires_at, created_at: now };
    tx.insert_key(&key, &key::hash(&secret)).await?;
    tx.commit().await?;
    Ok((key, secret))
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
