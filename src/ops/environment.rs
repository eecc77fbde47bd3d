//! Environments: made and changed by administrators, read by everybody of the organization.

use serde_json::json;
use sqlx::types::Json;
use uuid::Uuid;

use super::input::{ListQuery, NewEnvironment};
use super::view::Page;
use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, FieldError, Result};
use crate::model::environment::Environment;
use crate::model::key::Scope;
use crate::store::event::NewEvent;
use crate::store::{Cursor, Tx};

/// Makes an environment; its configuration is checked against the provider's schema first.
pub async fn create(berth: &Berth, caller: &Caller, input: NewEnvironment) -> Result<Environment> {
    caller.require(Scope::Admin)?;
    check(berth, &input)?;
    if super::plugins::is_plugin(&input.provider) {
        super::plugins::check(berth, caller.organization, &input.config).await?;
    }
    let base = super::boot::defaults(caller.organization, &input.name, &input.provider);
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    super::secrets::require(&super::secrets::pins(&mut tx, caller.organization, &input.config).await?)?;
    let environment = Environment { id: caller.first_id(), created_at: now, updated_at: now, ..filled(base, input) };
    match tx.insert_environment(&environment).await {
        Ok(()) => {}
        Err(error) if error.is_unique_violation() => return Err(taken(&environment.name)),
        Err(error) => return Err(error.into()),
    }
    tell(&mut tx, caller, &environment, "environment.created", now).await?;
    tx.commit().await?;
    Ok(environment)
}

/// Changes an environment: `change` makes the whole new wish from the present row, which is checked as a new one would be. With
/// versions to match, 412 unless the present one is among them.
pub async fn update(
    berth: &Berth,
    caller: &Caller,
    id_or_name: &str,
    if_match: Option<&[i64]>,
    change: impl FnOnce(&Environment) -> Result<NewEnvironment>,
) -> Result<Environment> {
    caller.require(Scope::Admin)?;
    let found = find(berth, caller.organization, id_or_name).await?;
    let mut tx = berth.store.begin().await?;
    let present = tx.lock_environment(caller.organization, found.id).await?.ok_or_else(|| Error::not_found("environment"))?;
    if present.archived_at.is_some() {
        return Err(Error::new(Code::EnvironmentArchived, "This environment is archived; it is not changed any more."));
    }
    if if_match.is_some_and(|versions| !versions.contains(&present.version)) {
        return Err(Error::new(Code::PreconditionFailed, "The environment was changed since it was read; read it again.")
            .fact("current", present.version));
    }
    let input = change(&present)?;
    check(berth, &input)?;
    if super::plugins::is_plugin(&input.provider) {
        // The driver itself is not asked while the environment is locked.
        super::plugins::fits(&mut tx, caller.organization, &input.config).await?;
    }
    super::secrets::require(&super::secrets::pins(&mut tx, caller.organization, &input.config).await?)?;
    let now = tx.now().await?;
    let defaults = super::boot::defaults(caller.organization, &input.name, &input.provider);
    let changed = Environment {
        id: present.id,
        version: present.version + 1,
        created_at: present.created_at,
        updated_at: now,
        ..filled(defaults, input)
    };
    match tx.save_environment(&changed, present.version, now).await {
        Ok(true) => {}
        Ok(false) => return Err(crate::store::error::StoreError::Moved.into()),
        Err(error) if error.is_unique_violation() => return Err(taken(&changed.name)),
        Err(error) => return Err(error.into()),
    }
    tell(&mut tx, caller, &changed, "environment.updated", now).await?;
    tx.commit().await?;
    Ok(changed)
}

/// What was asked for, with defaults for the rest.
fn filled(base: Environment, input: NewEnvironment) -> Environment {
    let millis = |seconds: Option<i64>, default: i64| seconds.map_or(default, |s| s.saturating_mul(1000));
    let max_ttl_ms = millis(input.max_ttl_seconds, base.max_ttl_ms);
    Environment {
        config: Json(input.config),
        policy: input.policy,
        ttl_ms: millis(input.ttl_seconds, base.ttl_ms.min(max_ttl_ms)),
        max_ttl_ms,
        idle_timeout_ms: millis(input.idle_timeout_seconds, base.idle_timeout_ms),
        on_idle: input.on_idle.unwrap_or(base.on_idle),
        retain_ms: millis(input.retain_seconds, base.retain_ms),
        checkpoint_policy: Json(input.checkpoint_policy),
        workspace_path: input.workspace_path,
        max_live_instances: input.max_live_instances,
        metadata: Json(input.metadata),
        ..base
    }
}

fn taken(name: &str) -> Error {
    Error::new(Code::NameTaken, format!("An environment named {name} exists already."))
}

/// Writes an event about an environment.
pub(super) async fn tell(tx: &mut Tx, caller: &Caller, environment: &Environment, type_: &'static str, now: Time) -> Result<()> {
    let event = NewEvent {
        organization: caller.organization,
        type_,
        subject_kind: "environment",
        subject: environment.id,
        generation: None,
        actor: &caller.actor(),
        data: json!({ "name": environment.name, "provider": environment.provider, "version": environment.version }),
    };
    Ok(tx.tell(event, now).await?)
}

fn check(berth: &Berth, input: &NewEnvironment) -> Result<()> {
    let errors = problems(berth, input);
    if errors.is_empty() {
        return Ok(());
    }
    let only_config = errors.iter().all(|e| e.pointer.starts_with("/config"));
    let mut error = Error::invalid_fields(errors);
    if only_config {
        error.code = Code::ConfigInvalid;
    }
    Err(error)
}

/// Everything that is wrong with the wish, each at its own place; what only the provider's schema sees comes last.
pub fn problems(berth: &Berth, input: &NewEnvironment) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let mut say = |pointer: String, message: String| wrong.push(FieldError { pointer, message });
    let max = input.max_ttl_seconds.unwrap_or(86_400);
    for (pointer, value, low, high) in [
        ("/max_ttl_seconds", input.max_ttl_seconds, 1, 365 * 86_400),
        ("/ttl_seconds", input.ttl_seconds, 1, max),
        ("/idle_timeout_seconds", input.idle_timeout_seconds, 1, 30 * 86_400),
        ("/retain_seconds", input.retain_seconds, 0, 365 * 86_400),
        ("/quotas/max_live_instances", input.max_live_instances, 1, 1_000_000),
        ("/checkpoint_policy/keep_last", input.checkpoint_policy.keep_last, 2, 1000),
        ("/checkpoint_policy/keep_for_seconds", input.checkpoint_policy.keep_for_seconds, 0, 10 * 365 * 86_400),
    ] {
        if value.is_some_and(|v| v < low || v > high) {
            say(pointer.to_owned(), format!("must be {low} to {high}"));
        }
    }
    if super::plugins::is_plugin(&input.provider) {
        return wrong;
    }
    if berth.providers.get(&input.provider).is_none() {
        let known: Vec<_> = berth.providers.all().map(|p| p.traits().kind).collect();
        say("/provider".to_owned(), format!("is not a provider of this server; it has {}", known.join(", ")));
        return wrong;
    }
    for (pointer, message) in berth.providers.check_config(&input.provider, &input.config).err().unwrap_or_default() {
        say(format!("/config{pointer}"), message);
    }
    wrong
}

/// By id or by name; archived ones by id only.
pub async fn get(berth: &Berth, caller: &Caller, id_or_name: &str) -> Result<Environment> {
    caller.require(Scope::Read)?;
    find(berth, caller.organization, id_or_name).await
}

/// A page of environments.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<Environment>> {
    caller.require(Scope::Read)?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, "environments", &query).await?;
    let rows = berth.store.read().await?.environments(caller.organization, cursor, query.limit + 1).await?;
    let (items, next_cursor) =
        super::lease::cut(rows, query.limit, &bound, |e: &Environment| Cursor { created_at: e.created_at, id: e.id });
    Ok(Page { items, next_cursor })
}

pub(super) async fn find(berth: &Berth, organization: Uuid, id_or_name: &str) -> Result<Environment> {
    let mut tx = berth.store.read().await?;
    let found = match Uuid::parse_str(id_or_name) {
        Ok(id) => tx.environment(organization, id).await?,
        Err(_) => tx.environment_named(organization, id_or_name).await?,
    };
    found.ok_or_else(|| Error::not_found("environment"))
}
