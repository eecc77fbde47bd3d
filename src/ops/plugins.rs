//! Plugins: registered with a handshake, listed, let go; and bound to the row of the ledger that a call is about.

use std::sync::Arc;

use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use super::input::ListQuery;
use super::view::{LeaseView, Page};
use super::{Berth, Caller, provider_failed, secrets};
use crate::clock::Time;
use crate::error::{Code, Error, FieldError, Result};
use crate::model::capability::{self, Narrowing, REUSABLE_LEASES};
use crate::model::environment::Environment;
use crate::model::instance::{Instance, Status};
use crate::model::key::Scope;
use crate::model::lease::{Lease, Policy};
use crate::model::plugin::Plugin;
use crate::model::secret::Reference;
use crate::provider::counted::Counted;
use crate::provider::plugin::handshake::Handshake;
use crate::provider::plugin::worker::{NotRegistered, Worker};
use crate::provider::plugin::{self, KIND, Row, Token};
use crate::provider::schema::with_references;
use crate::provider::{Kind, Provider, ProviderError};
use crate::store::event::NewEvent;
use crate::store::{Cursor, Tx};

/// What a registration asks for.
#[derive(Clone, Debug)]
pub struct NewPlugin {
    /// Unique in the organization.
    pub name: String,
    /// Where its worker is.
    pub url: String,
    /// The secret with what the worker is shown.
    pub token: Option<Reference>,
    /// The worker must refuse lower generations by itself.
    pub fencing: bool,
}

/// Registers a plugin after a whole handshake. 422 `destination_not_allowed` for an address that is not called, `config_invalid` with
/// the `step` at which the handshake failed.
pub async fn register(berth: &Berth, caller: &Caller, wanted: NewPlugin) -> Result<Plugin> {
    caller.require(Scope::Admin)?;
    let token = token(berth, caller.organization, wanted.token.as_ref()).await?;
    let not_registered = |why| match why {
        NotRegistered::Destination(why) => told(Code::DestinationNotAllowed, "/url", why),
        NotRegistered::Step(step, why) => failed_step(step, why),
    };
    let worker = berth.plugins.at(&wanted.url, berth.deployment.id).await.map_err(not_registered)?;
    let handshake = worker.introduce(token.as_ref().map(|token| token.0.as_str())).await.map_err(not_registered)?;
    if wanted.fencing && !handshake.fencing {
        return Err(failed_step("initialize", "it does not say that it refuses lower generations"));
    }
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let plugin = Plugin {
        id: caller.first_id(),
        organization_id: caller.organization,
        name: wanted.name,
        url: wanted.url,
        token_secret: wanted.token.as_ref().map(|token| token.name.clone()),
        token_version: wanted.token.and_then(|token| token.version),
        handshake: Json(json!(*handshake)),
        deleted_at: None,
        created_at: now,
        updated_at: now,
    };
    match tx.insert_plugin(&plugin).await {
        Ok(()) => {}
        Err(error) if error.is_unique_violation() => {
            return Err(Error::new(Code::NameTaken, format!("A plugin named {} is registered already.", plugin.name)));
        }
        Err(error) => return Err(error.into()),
    }
    tell(&mut tx, caller, &plugin, "plugin.registered", now).await?;
    tx.commit().await?;
    Ok(plugin)
}

fn told(code: Code, pointer: &str, message: &str) -> Error {
    let mut error = Error::invalid(pointer, message);
    error.code = code;
    error
}

fn failed_step(step: &str, why: &str) -> Error {
    told(Code::ConfigInvalid, "/url", &format!("the handshake failed at {step}: {why}")).fact("step", step)
}

/// A page of plugins.
pub async fn list(berth: &Berth, caller: &Caller, query: ListQuery) -> Result<Page<Plugin>> {
    caller.require(Scope::Admin)?;
    let (_, bound, cursor) = super::lease::narrow(berth, caller, "plugins", &query).await?;
    let rows = berth.store.read().await?.plugins(caller.organization, cursor, query.limit + 1).await?;
    let (items, next_cursor) = super::lease::cut(rows, query.limit, &bound, |p: &Plugin| Cursor { created_at: p.created_at, id: p.id });
    Ok(Page { items, next_cursor })
}

/// One plugin.
pub async fn get(berth: &Berth, caller: &Caller, id: Uuid) -> Result<Plugin> {
    caller.require(Scope::Admin)?;
    berth.store.read().await?.plugin(caller.organization, id).await?.ok_or_else(|| Error::not_found("plugin"))
}

/// Lets a plugin go. 409 `in_use` while something that was made with it is not over.
pub async fn delete(berth: &Berth, caller: &Caller, id: Uuid) -> Result<()> {
    caller.require(Scope::Admin)?;
    let mut tx = berth.store.begin().await?;
    let plugin = tx.lock_plugin(caller.organization, id).await?.ok_or_else(|| Error::not_found("plugin"))?;
    let now = tx.now().await?;
    let unfinished = tx.unfinished_of_plugin(id).await?;
    if unfinished > 0 {
        return Err(Error::new(Code::InUse, "Instances that are not over were made with this plugin, and their end needs it.")
            .fact("unfinished_instances", unfinished));
    }
    tx.delete_plugin(id, now).await?;
    tell(&mut tx, caller, &plugin, "plugin.deleted", now).await?;
    tx.commit().await?;
    berth.plugins.forget(id);
    Ok(())
}

async fn tell(tx: &mut Tx, caller: &Caller, plugin: &Plugin, type_: &'static str, now: Time) -> Result<()> {
    let event = NewEvent {
        organization: plugin.organization_id,
        type_,
        subject_kind: "plugin",
        subject: plugin.id,
        generation: None,
        actor: &caller.actor(),
        data: json!({ "name": plugin.name }),
    };
    Ok(tx.tell(event, now).await?)
}

async fn token(berth: &Berth, organization: Uuid, reference: Option<&Reference>) -> Result<Option<Token>> {
    match reference {
        Some(reference) => Ok(Some(Token(secrets::value(berth, organization, reference, "/token").await?))),
        None => Ok(None),
    }
}

/// A plugin's worker with what its life of this moment says of itself, which is written down when it is news.
async fn hear(berth: &Berth, plugin: &Plugin, token: Option<&Token>) -> Result<(Arc<Worker>, Arc<Handshake>)> {
    let failed = |error: ProviderError| {
        if error.kind == Kind::Refused {
            // It may have moved: the next call looks its address up again.
            berth.plugins.forget(plugin.id);
        }
        provider_failed(&error)
    };
    let worker = berth.plugins.of(plugin.id, &plugin.url, berth.deployment.id).await.map_err(failed)?;
    let handshake = worker.ready(token.map(|token| token.0.as_str())).await.map_err(failed)?;
    if plugin.handshake["generation"] != handshake.generation.as_str() {
        let mut tx = berth.store.begin().await?;
        let now = tx.now().await?;
        tx.save_handshake(plugin.id, &json!(*handshake), now).await?;
        tx.commit().await?;
    }
    Ok((worker, handshake))
}

/// What an environment says of its plugin.
struct Envelope<'a> {
    plugin: &'a str,
    driver_key: &'a str,
    driver_config: Value,
}

impl<'a> Envelope<'a> {
    fn of(config: &'a Value) -> Self {
        let text = |key: &str| config[key].as_str().unwrap_or_default();
        let driver_config = config.get("driver_config").cloned().unwrap_or_else(|| json!({}));
        Self { plugin: text("plugin"), driver_key: text("driver_key"), driver_config }
    }
}

/// JSON Schema of a plugin environment's `config`; the driver's own part is held against the driver's schema.
pub fn envelope_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "required": ["plugin", "driver_key"], "additionalProperties": false,
        "properties": {
            "plugin": { "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$", "description": "A plugin's name, see GET /v1/plugins." },
            "driver_key": { "type": "string", "minLength": 1, "maxLength": 100, "description": "One of the plugin's drivers." },
            "driver_config": { "type": "object", "description": "Checked against the driver's config_schema." }
        }
    })
}

/// The plugin that an environment names, which is not deleted before the transaction is over.
pub(super) async fn named(tx: &mut Tx, environment: &Environment) -> Result<Option<Plugin>> {
    Ok(tx.plugin_named(environment.organization_id, Envelope::of(&environment.config).plugin).await?)
}

/// 422 unless a plugin environment's configuration names a plugin and a driver of it, and fits the driver's schema.
pub(super) async fn fits(tx: &mut Tx, organization: Uuid, config: &Value) -> Result<Plugin> {
    let wrong = violations(&envelope_schema(), config, "");
    if !wrong.is_empty() {
        return Err(unfit(wrong));
    }
    let envelope = Envelope::of(config);
    let unknown = |at: &str, message: &str| unfit(vec![(at.to_owned(), message.to_owned())]);
    let plugin = tx.plugin_named(organization, envelope.plugin).await?;
    let plugin = plugin.ok_or_else(|| unknown("/plugin", "is not a plugin of this organization"))?;
    let known: Handshake = serde_json::from_value(plugin.handshake.0.clone()).map_err(|_| unreadable())?;
    let driver = known.driver(envelope.driver_key).ok_or_else(|| unknown("/driver_key", "is not a driver of this plugin"))?;
    let wrong = violations(&with_references(&driver.config_schema), &envelope.driver_config, "/driver_config");
    if wrong.is_empty() { Ok(plugin) } else { Err(unfit(wrong)) }
}

/// The same, and 422 unless it fits with its secrets' values too, and the driver itself takes it, if it says.
pub(super) async fn check(berth: &Berth, organization: Uuid, config: &Value) -> Result<()> {
    let plugin = fits(&mut berth.store.read().await?, organization, config).await?;
    let envelope = Envelope::of(config);
    let token = token(berth, organization, plugin.token().as_ref()).await?;
    let (worker, handshake) = hear(berth, &plugin, token.as_ref()).await?;
    let resolved = secrets::resolve(berth, organization, &envelope.driver_config).await?;
    let schema = handshake.driver(envelope.driver_key).map(|driver| driver.config_schema.clone()).unwrap_or_default();
    let wrong = violations(&schema, resolved.reveal(), "/driver_config");
    if !wrong.is_empty() {
        return Err(unfit(wrong));
    }
    let verdict = plugin::validate_config(&worker, token.as_ref(), &handshake, envelope.driver_key, resolved.reveal()).await;
    if verdict.map_err(|e| provider_failed(&e))? {
        return Ok(());
    }
    Err(unfit(vec![("/driver_config".to_owned(), "is not what the driver takes".to_owned())]))
}

fn unfit(wrong: Vec<(String, String)>) -> Error {
    let errors = wrong.into_iter().map(|(at, message)| FieldError { pointer: format!("/config{at}"), message });
    let mut error = Error::invalid_fields(errors.collect());
    error.code = Code::ConfigInvalid;
    error
}

fn violations(schema: &Value, config: &Value, below: &str) -> Vec<(String, String)> {
    match jsonschema::draft202012::new(schema) {
        Ok(schema) => schema.iter_errors(config).map(|e| (format!("{below}{}", e.instance_path()), e.masked().to_string())).collect(),
        Err(_) => vec![(below.to_owned(), "cannot be checked: the driver's schema is none".to_owned())],
    }
}

fn unreadable() -> Error {
    Error::new(Code::Internal, "What is stored of this plugin cannot be read.")
}

/// Whether sandboxes of a plugin's driver may be given to the next holder: declared and verified. A worker that does not answer now is
/// judged by what it said last, so that nothing is given up because of a pause.
pub(super) async fn reuses(berth: &Berth, environment: &Environment) -> Result<bool> {
    let envelope = Envelope::of(&environment.config);
    let Some(plugin) = berth.store.read().await?.plugin_named(environment.organization_id, envelope.plugin).await? else {
        return Ok(false);
    };
    let token = token(berth, environment.organization_id, plugin.token().as_ref()).await?;
    let handshake: Handshake = match hear(berth, &plugin, token.as_ref()).await {
        Ok((_, handshake)) => (*handshake).clone(),
        Err(_) => serde_json::from_value(plugin.handshake.0.clone()).map_err(|_| unreadable())?,
    };
    let Some(driver) = handshake.driver(envelope.driver_key) else { return Ok(false) };
    let declared = driver.declared();
    let granted = capability::effective(None, &handshake.methods, &declared, Narrowing::default());
    Ok(granted[0].is_ok() && declared.get(REUSABLE_LEASES) == Some(&true))
}

/// The provider of a plugin's row: the worker's present life, and everything a call has to say, from the rows alone.
pub(super) async fn bind(berth: &Berth, instance: &Instance) -> Result<Arc<dyn Provider>> {
    let gone = || Error::new(Code::ProviderUnavailable, "The plugin that this sandbox belongs to is not registered any more.");
    let mut tx = berth.store.read().await?;
    let plugin = tx.plugin(instance.organization_id, instance.plugin_id.unwrap_or_default()).await?.ok_or_else(gone)?;
    let sandbox = tx.sandbox(instance.organization_id, instance.sandbox_id).await?;
    // The row itself may be older than what a take-over or a switch has written meanwhile; what only grows is read again.
    let row = tx.instance_by_id(instance.id).await?;
    let named = tx.last_lease_of_instance(instance.id).await?;
    let is_successor = named.is_none();
    // A successor is made for whoever writes in the sandbox; their lease names it once it takes over.
    let lease = match named {
        Some(lease) => Some(lease),
        None => tx.live_leases(instance.sandbox_id).await?.into_iter().find(Lease::is_writer),
    };
    drop(tx);
    let row = row.as_ref().unwrap_or(instance);
    // One that is made because the former one's end is near lives on for as long as the lease does.
    let until = |lease: &Lease| lease.requested_expires_at.map(|at| if is_successor { lease.expires_at.unwrap_or(at).max(at) } else { at });
    let envelope = Envelope::of(&row.config);
    let token = token(berth, row.organization_id, plugin.token().as_ref()).await?;
    let mut config = secrets::resolve(berth, row.organization_id, &envelope.driver_config).await?;
    if let Some(Token(token)) = &token {
        config = config.hiding(token.clone());
    }
    let (worker, handshake) = hear(berth, &plugin, token.as_ref()).await?;
    let run = lease.as_ref().and_then(|lease| Uuid::try_parse(&lease.holder).ok());
    let of = Row {
        registration: plugin.id,
        organization: row.organization_id,
        environment: row.environment_id,
        sandbox: row.sandbox_id,
        instance: row.id,
        generation: row.generation,
        current_generation: sandbox.map_or(row.generation, |sandbox| sandbox.generation),
        driver_key: envelope.driver_key.to_owned(),
        config,
        metadata: row.provider_metadata.as_ref().map_or_else(|| json!({}), |metadata| metadata.0.clone()),
        provider_expires_at: row.provider_expires_at,
        workspace: row.workspace_path.clone(),
        run: run.unwrap_or_else(crate::id::new),
        harness: lease.as_ref().and_then(|lease| lease.harness.clone()),
        requested_expires_at: lease.as_ref().and_then(until),
        at_rest: row.status == Status::Stopped,
        stop_confirmed: row.status == Status::Stopping && row.disposition.is_some(),
    };
    let bound = plugin::Plugin::bind(worker, token, handshake, of).map_err(|e| provider_failed(&e))?;
    Ok(Arc::new(Counted(Arc::new(bound))))
}

/// The nine of a plugin's lease, as the worker's life of this moment has them, and why not.
pub(super) async fn capabilities(berth: &Berth, view: &LeaseView) -> Result<Vec<(&'static str, bool, Option<&'static str>)>> {
    let denied = |why| Ok(capability::KEYS.iter().map(|key| (*key, false, Some(why))).collect());
    let mut tx = berth.store.read().await?;
    let instance = tx.instance_by_id(view.lease.instance_id.unwrap_or_default()).await?;
    let Some(instance) = instance else { return denied("the lease has no instance") };
    let plugin = tx.plugin(instance.organization_id, instance.plugin_id.unwrap_or_default()).await?;
    drop(tx);
    let Some(plugin) = plugin else { return denied("the plugin is not registered any more") };
    let envelope = Envelope::of(&instance.config);
    let unresolved = secrets::resolve(berth, instance.organization_id, &envelope.driver_config).await.is_err();
    let Ok(token) = token(berth, instance.organization_id, plugin.token().as_ref()).await else {
        return denied("the plugin's token cannot be resolved");
    };
    let Ok((_, handshake)) = hear(berth, &plugin, token.as_ref()).await else { return denied("the plugin's worker does not answer") };
    let Some(driver) = handshake.driver(envelope.driver_key) else { return denied("the worker does not declare the driver any more") };
    let metadata = instance.provider_metadata.as_ref().map(|metadata| &metadata.0);
    let narrowing = Narrowing {
        reuses_nothing: view.lease.policy != Policy::ReuseByEnvironment,
        no_native_sync: metadata.is_some_and(plugin::syncs_by_commands),
        unresolved,
    };
    let granted = capability::effective(None, &handshake.methods, &driver.declared(), narrowing);
    Ok(capability::KEYS.iter().zip(granted).map(|(key, granted)| (*key, granted.is_ok(), granted.err())).collect())
}

/// Whether rows of this provider are a plugin's.
pub(super) fn is_plugin(provider: &str) -> bool {
    provider == KIND
}
