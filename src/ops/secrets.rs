//! Secrets: put, listed without their values, deleted; and resolved for one provider call, the only place where a value goes.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde_json::{Value, json};
use uuid::Uuid;

use super::input::ListQuery;
use super::view::Page;
use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, FieldError, Result};
use crate::model::instance::Instance;
use crate::model::key::Scope;
use crate::model::secret::{self, Key, Pin, Place, Reference, Secret};
use crate::provider::{ResolvedConfig, Spec};
use crate::store::event::NewEvent;
use crate::store::{Cursor, Tx};

/// The most secrets of one organization.
const MOST: i64 = 1000;

/// Stores a value as the next version of a secret; the boolean says whether the secret is new.
pub async fn put(berth: &Berth, caller: &Caller, name: &str, value: &str) -> Result<(Secret, bool)> {
    caller.require(Scope::Admin)?;
    if !secret::is_name(name) {
        return Err(Error::invalid("name", "must match ^[a-z0-9][a-z0-9._-]{0,62}$"));
    }
    let key = key(berth)?;
    let mut nonce = [0; 12];
    OsRng.try_fill_bytes(&mut nonce).map_err(|_| Error::new(Code::Internal, "The operating system gave no random bytes."))?;
    let mut tx = berth.store.begin().await?;
    if !tx.settle_secret_check(&key.check_value()).await? {
        return Err(other_key());
    }
    if !tx.lock_organization(caller.organization).await? {
        return Err(Error::not_found("organization"));
    }
    let now = tx.now().await?;
    let (secret, new) = tx.next_secret_version(crate::id::new(), caller.organization, name, now).await?;
    let usage = tx.count_secrets(caller.organization).await?;
    if new && usage > MOST {
        return Err(Error::new(Code::QuotaExceeded, "The organization has as many secrets as it may; delete one that is not needed.")
            .fact("limit", "secrets")
            .fact("value", MOST)
            .fact("usage", MOST)
            .retry_after(Duration::from_secs(60)));
    }
    tx.insert_secret_version(&secret, &key.seal(place(&secret), nonce, value), now).await?;
    tell(&mut tx, caller, &secret, "secret.put", json!({ "name": secret.name, "version": secret.version }), now).await?;
    tx.commit().await?;
    Ok((secret, new))
}

/// A page of secrets, without their values.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<Secret>> {
    caller.require(Scope::Admin)?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, "secrets", &query).await?;
    let rows = berth.store.read().await?.secrets(caller.organization, cursor, query.limit + 1).await?;
    let (items, next_cursor) = super::lease::cut(rows, query.limit, &bound, |s: &Secret| Cursor { created_at: s.created_at, id: s.id });
    Ok(Page { items, next_cursor })
}

/// Deletes a secret with all its versions. 409 `in_use` while something that was made with it is not over.
pub async fn delete(berth: &Berth, caller: &Caller, name: &str) -> Result<()> {
    caller.require(Scope::Admin)?;
    let mut tx = berth.store.begin().await?;
    let secret = tx.lock_secret(caller.organization, name).await?.ok_or_else(|| Error::not_found("secret"))?;
    let now = tx.now().await?;
    let naming = tx.unfinished_naming_secret(caller.organization, name).await?;
    if naming > 0 {
        return Err(Error::new(Code::InUse, "Instances that are not over were made with this secret, and their end may need it.")
            .fact("unfinished_instances", naming));
    }
    tx.delete_secret(secret.id).await?;
    tell(&mut tx, caller, &secret, "secret.deleted", json!({ "name": secret.name }), now).await?;
    Ok(tx.commit().await?)
}

async fn tell(tx: &mut Tx, caller: &Caller, secret: &Secret, type_: &'static str, data: Value, now: Time) -> Result<()> {
    let event = NewEvent {
        organization: secret.organization_id,
        type_,
        subject_kind: "secret",
        subject: secret.id,
        generation: None,
        actor: &caller.actor(),
        data,
    };
    Ok(tx.tell(event, now).await?)
}

/// What each reference of a configuration means now. Nothing of it is deleted before the transaction is over.
pub(super) async fn pins(tx: &mut Tx, organization: Uuid, config: &Value) -> Result<Vec<Pin>> {
    let mut pins = Vec::new();
    // In the order of their names, so that two transactions never wait for each other.
    let by_reference: BTreeMap<Reference, String> = secret::references(config).into_iter().map(|(at, one)| (one, at)).collect();
    for (reference, pointer) in by_reference {
        let means = tx.pinned_secret(organization, &reference).await?;
        pins.push(Pin { reference, pointer, means });
    }
    Ok(pins)
}

/// 422 `secret_missing`, naming every place, unless all of them exist.
pub(super) fn require(pins: &[Pin]) -> Result<()> {
    let missing = pins.iter().filter(|pin| pin.means.is_none());
    let errors: Vec<_> = missing.map(|pin| missing_at(&pin.pointer, &pin.reference)).collect();
    if errors.is_empty() { Ok(()) } else { Err(missing_error(errors)) }
}

fn missing_at(pointer: &str, reference: &Reference) -> FieldError {
    let version = reference.version.map_or_else(String::new, |version| format!(" in version {version}"));
    FieldError {
        pointer: format!("/config{pointer}"),
        message: format!("refers to the secret {}{version}, which does not exist", reference.name),
    }
}

fn missing_error(errors: Vec<FieldError>) -> Error {
    let mut error = Error::invalid_fields(errors);
    error.code = Code::SecretMissing;
    error
}

/// What a provider is asked to make: the row's recorded configuration, its secrets' values in it.
pub(super) async fn spec(berth: &Berth, instance: &Instance) -> Result<Spec> {
    let config = resolve(berth, instance.organization_id, &instance.config).await?;
    let refused = |wrong: Vec<(String, String)>| {
        let errors = wrong.into_iter().map(|(at, message)| FieldError { pointer: format!("/config{at}"), message });
        let mut error = Error::invalid_fields(errors.collect());
        error.code = Code::ConfigInvalid;
        error
    };
    if !secret::references(&instance.config).is_empty() && !super::plugins::is_plugin(&instance.provider) {
        berth.providers.check_resolved(&instance.provider, &config).map_err(refused)?;
    }
    Ok(Spec { config, workspace_path: instance.configured_path.clone() })
}

/// A configuration with its secrets' values, for one provider call: the door through which every value goes.
pub(super) async fn resolve(berth: &Berth, organization: Uuid, config: &Value) -> Result<ResolvedConfig> {
    let references = secret::references(config);
    if references.is_empty() {
        return Ok(config.clone().into());
    }
    let key = key(berth)?;
    let mut tx = berth.store.read().await?;
    if tx.secret_check().await?.is_some_and(|check| check != key.check_value()) {
        return Err(other_key());
    }
    let (mut values, mut missing) = (BTreeMap::new(), Vec::new());
    for (pointer, reference) in &references {
        let Some(sealed) = tx.sealed_secret(organization, reference).await? else {
            missing.push(missing_at(pointer, reference));
            continue;
        };
        let place = Place { organization, secret: sealed.secret_id, version: sealed.version };
        values.insert(reference.clone(), key.open(place, &sealed.sealed).ok_or_else(other_key)?);
    }
    if !missing.is_empty() {
        return Err(missing_error(missing));
    }
    let value_of = |reference: &Reference| values.get(reference).cloned();
    let full = secret::filled(config, &value_of);
    let confided = references.iter().filter_map(|(pointer, reference)| Some((pointer.clone(), value_of(reference)?)));
    Ok(ResolvedConfig::new(full, confided.collect()))
}

/// The one value that a reference means, for one provider call; `pointer`: where a missing one is told.
pub(super) async fn value(berth: &Berth, organization: Uuid, reference: &Reference, pointer: &str) -> Result<String> {
    let stands = json!({ "secret_ref": { "name": reference.name, "version": reference.version } });
    let resolved = resolve(berth, organization, &stands).await.map_err(|mut error| {
        error.errors.iter_mut().for_each(|wrong| pointer.clone_into(&mut wrong.pointer));
        error
    })?;
    Ok(resolved.reveal().as_str().unwrap_or_default().to_owned())
}

/// Whether this server can open what is stored: no secrets, or its key is theirs.
pub(super) async fn readable(berth: &Berth) -> Result<bool> {
    let check = berth.store.read().await?.secret_check().await?;
    Ok(check.is_none_or(|check| berth.settings.secret_key.as_ref().is_some_and(|key| key.check_value() == check)))
}

fn place(secret: &Secret) -> Place {
    Place { organization: secret.organization_id, secret: secret.id, version: secret.version }
}

fn key(berth: &Berth) -> Result<&Key> {
    berth.settings.secret_key.as_ref().ok_or_else(|| {
        Error::new(Code::StorageUnavailable, "This server has no BERTH_SECRET_KEY, so it neither stores secrets nor opens them.")
            .retry_after(Duration::from_secs(60))
    })
}

fn other_key() -> Error {
    Error::new(Code::StorageUnavailable, "The stored secrets are sealed with another key than this server's BERTH_SECRET_KEY.")
        .retry_after(Duration::from_secs(60))
}
