//! Succession: how a sandbox's instance leaves the live set and how the next one enters it. Retirement and the pointer's move are
//! one transaction, always the caller's.

use std::time::Duration;

use serde_json::json;
use sqlx::types::Json;

use super::Berth;
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::environment::Environment;
use crate::model::event::Actor;
use crate::model::instance::{Event, Instance, Role, Status};
use crate::model::plugin::Plugin;
use crate::model::sandbox::Sandbox;
use crate::model::secret::Pin;
use crate::store::Tx;
use crate::store::event::NewEvent;

/// Why and how an instance leaves the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Its end was decided: `pending_cleanup`.
    Decided,
    /// Its loss was proven: `lost`.
    Lost,
    /// The create was surely refused: `destroyed`.
    Refused,
}

/// Retires an instance. If it is the current one, the pointer becomes null and the generation becomes the highest of the
/// sandbox's rows + 1; a failed successor leaves pointer and generation alone. `consented`: losing unsaved work was agreed to.
pub async fn retire(
    tx: &mut Tx,
    sandbox: &mut Sandbox,
    instance: &mut Instance,
    how: Leaving,
    reason: &str,
    consented: bool,
    actor: &Actor,
    now: Time,
) -> Result<()> {
    let was = instance.status;
    let dirty = sandbox.is_dirty(Some(instance));
    let (event, told) = match how {
        Leaving::Decided => (Event::Retire, "instance.retired"),
        Leaving::Lost => (Event::Lose, "instance.lost"),
        Leaving::Refused => (Event::Refused, "instance.refused"),
    };
    instance.status = super::step(was.on(event))?;
    let was_current = instance.role == Role::Current;
    instance.role = Role::Retired;
    instance.hold_reason = None;
    instance.retire_reason = Some(reason.to_owned());
    instance.retired_at = Some(now);
    instance.cleanup_next_at = (instance.status == Status::PendingCleanup).then_some(now);
    if instance.status == Status::Destroyed {
        instance.destroyed_at = Some(now);
    }
    tx.save_instance(instance, was, now).await?;
    if was_current {
        sandbox.instance_id = None;
        sandbox.generation = tx.highest_generation(sandbox.id).await?.max(sandbox.generation) + 1;
        sandbox.process_open = false;
        let had_work =
            was != Status::Creating && dirty && sandbox.current_checkpoint_id.is_none() && sandbox.workspace_seq > sandbox.given_up_seq;
        if had_work && !consented && !sandbox.is_anonymous() {
            sandbox.unsaved_loss = true;
        }
        tx.save_sandbox(sandbox, now).await?;
    }
    let data = json!({ "instance_id": instance.id, "reason": reason, "sandbox_generation": sandbox.generation });
    tell(tx, instance, told, data, actor, now).await
}

/// A successor that was made and verified beside the current instance takes its place: one leaves, the other enters, and the
/// sandbox's generation becomes the successor's. The caller saves the sandbox.
pub async fn switch(
    tx: &mut Tx,
    sandbox: &mut Sandbox,
    former: &mut Instance,
    next: &mut Instance,
    reason: &str,
    actor: &Actor,
    now: Time,
) -> Result<()> {
    let was = former.status;
    former.status = super::step(was.on(Event::Retire))?;
    former.role = Role::Retired;
    former.hold_reason = None;
    former.retire_reason = Some(reason.to_owned());
    (former.retired_at, former.cleanup_next_at) = (Some(now), Some(now));
    tx.save_instance(former, was, now).await?;
    let made = next.status;
    next.status = super::step(made.on(Event::Ready))?;
    next.role = Role::Current;
    next.quiet = true;
    tx.save_instance(next, made, now).await?;
    sandbox.instance_id = Some(next.id);
    sandbox.generation = next.generation;
    tell(
        tx,
        former,
        "instance.retired",
        json!({ "instance_id": former.id, "reason": reason, "sandbox_generation": sandbox.generation }),
        actor,
        now,
    )
    .await
}

/// What a new instance is made from.
#[derive(Debug)]
pub struct Making<'a> {
    /// Whose configuration it records.
    pub environment: &'a Environment,
    /// What it will be compared by.
    pub fingerprint: String,
    /// What the configuration's references to secrets mean now.
    pub secrets: Vec<Pin>,
    /// The plugin that is to make it, for a plugin's environment.
    pub plugin: Option<Plugin>,
    /// When making it must be over.
    pub deadline: Duration,
}

impl Making<'_> {
    /// 422 unless everything that the configuration refers to exists.
    pub(super) fn require(&self) -> Result<()> {
        super::secrets::require(&self.secrets)?;
        if super::plugins::is_plugin(&self.environment.provider) && self.plugin.is_none() {
            return Err(Error::new(Code::ConfigInvalid, "This environment's plugin is not registered any more."));
        }
        Ok(())
    }
}

/// Writes the ledger row of the next instance, before any provider is asked. A current one takes the sandbox's generation and the
/// pointer; a successor made beside the current one takes the highest generation of the rows + 1.
pub async fn write_next(tx: &mut Tx, sandbox: &mut Sandbox, role: Role, making: &Making<'_>, now: Time) -> Result<Instance> {
    let generation = match role {
        Role::Current => sandbox.generation,
        _ => tx.highest_generation(sandbox.id).await?.max(sandbox.generation) + 1,
    };
    making.require()?;
    let environment = making.environment;
    let instance = Instance {
        id: crate::id::new(),
        organization_id: sandbox.organization_id,
        environment_id: environment.id,
        sandbox_id: sandbox.id,
        generation,
        role,
        provider: environment.provider.clone(),
        binding: None,
        provider_ref: None,
        config: Json(environment.config.0.clone()),
        configured_path: environment.workspace_path.clone(),
        fingerprint: making.fingerprint.clone(),
        status: Status::Creating,
        quiet: true,
        owed_fence: None,
        hold_reason: None,
        retire_reason: None,
        disposition: None,
        workspace_path: None,
        provider_expires_at: None,
        observed_at: None,
        create_called_at: None,
        provision_deadline: now.after(making.deadline),
        cleanup_attempts: 0,
        cleanup_next_at: None,
        cleanup_error_kind: None,
        quarantine_reason: None,
        used_at: now,
        created_at: now,
        running_at: None,
        stopped_at: None,
        retired_at: None,
        destroyed_at: None,
        updated_at: now,
        plugin_id: making.plugin.as_ref().map(|plugin| plugin.id),
        provider_metadata: None,
    };
    tx.insert_instance(&instance).await?;
    if let Some(token) = making.plugin.as_ref().and_then(|plugin| plugin.token_secret.clone()) {
        // Its end needs what its plugin is shown.
        tx.name_secrets(instance.id, instance.organization_id, &[token].into()).await?;
    }
    // The row holds its environment's key now: an archive that came first is seen here, a later one sees this row.
    if tx.is_archived(environment.id).await? {
        return Err(Error::new(Code::EnvironmentArchived, "This environment is archived; nothing new is made in it."));
    }
    if role == Role::Current {
        sandbox.instance_id = Some(instance.id);
        tx.save_sandbox(sandbox, now).await?;
    }
    Ok(instance)
}

/// Writes an event about an instance.
pub async fn tell(tx: &mut Tx, instance: &Instance, type_: &'static str, data: serde_json::Value, actor: &Actor, now: Time) -> Result<()> {
    let event = NewEvent {
        organization: instance.organization_id,
        type_,
        subject_kind: "instance",
        subject: instance.id,
        generation: Some(instance.generation),
        actor,
        data,
    };
    Ok(tx.tell(event, now).await?)
}

impl Berth {
    /// What `write_next` needs, from an environment and what the acquire said.
    pub async fn making<'a>(
        &self,
        tx: &mut Tx,
        environment: &'a Environment,
        scope: Option<&crate::model::scope::Scope>,
        harness: Option<&str>,
    ) -> Result<Making<'a>> {
        let plugin = if super::plugins::is_plugin(&environment.provider) { super::plugins::named(tx, environment).await? } else { None };
        let mut secrets = super::secrets::pins(tx, environment.organization_id, &environment.config).await?;
        let fingerprint = crate::model::fingerprint::of(&crate::model::fingerprint::Ingredients {
            organization: environment.organization_id,
            environment: environment.id,
            provider: &environment.provider,
            scope,
            harness,
            config: &environment.config,
            workspace_path: environment.workspace_path.as_deref(),
            secrets: &secrets,
            plugin: plugin.as_ref().map(Plugin::identity),
        });
        if let Some(reference) = plugin.as_ref().and_then(Plugin::token) {
            // What the worker is shown is no part of a sandbox, but it has to stay as long as one.
            let means = tx.pinned_secret(environment.organization_id, &reference).await?;
            secrets.push(Pin { reference, pointer: "/plugin".to_owned(), means });
        }
        Ok(Making { environment, fingerprint, secrets, plugin, deadline: self.settings.provision_deadline })
    }
}
