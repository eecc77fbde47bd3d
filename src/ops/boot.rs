//! The first start: an organization, a key and an environment, so that one command gives a working service.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore;
use rand::rngs::OsRng;
use serde_json::json;
use sqlx::types::Json;

use super::Berth;
use crate::error::{Code, Error, Result};
use crate::model::environment::{CheckpointPolicy, Environment, OnIdle};
use crate::model::key::{self, ApiKey, Scope};

/// The organization of the first key.
pub const DEFAULT_ORGANIZATION: &str = "default";

/// Makes organization `default`, its operator and admin key, and environment `default` on an empty database; otherwise changes
/// nothing. Returns the key if one had to be generated.
pub async fn first_start(berth: &Berth, bootstrap_key: Option<&str>) -> Result<Option<String>> {
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    let (organization, _) = tx.ensure_organization(DEFAULT_ORGANIZATION, now).await?;
    if tx.has_keys().await? {
        tx.commit().await?;
        return Ok(None);
    }
    let generated = if bootstrap_key.is_none() { Some(new_secret()?) } else { None };
    let secret = bootstrap_key.or(generated.as_deref()).unwrap_or_default();
    let key = ApiKey {
        id: crate::id::new(),
        organization_id: organization.id,
        name: "bootstrap".to_owned(),
        scopes: vec![Scope::Admin, Scope::Operator],
        expires_at: None,
        created_at: now,
    };
    tx.insert_key(&key, &key::hash(secret)).await?;
    // A provider that has to be told what to run cannot be anybody's default.
    let unasked = |kind: &str| berth.providers.check_config(kind, &serde_json::json!({})).is_ok();
    if let Some(provider) = berth.providers.all().find(|provider| unasked(provider.traits().kind))
        && tx.environment_named(organization.id, "default").await?.is_none()
    {
        let mut environment = defaults(organization.id, "default", provider.traits().kind);
        environment.created_at = now;
        tx.insert_environment(&environment).await?;
    }
    tx.commit().await?;
    Ok(generated)
}

/// An environment with every default of the contract.
pub fn defaults(organization: uuid::Uuid, name: &str, provider: &str) -> Environment {
    let zero = crate::clock::Time(0);
    Environment {
        id: crate::id::new(),
        organization_id: organization,
        name: name.to_owned(),
        provider: provider.to_owned(),
        config: Json(json!({})),
        policy: None,
        ttl_ms: 3_600_000,
        max_ttl_ms: 86_400_000,
        idle_timeout_ms: 300_000,
        on_idle: OnIdle::Stop,
        retain_ms: 7 * 86_400_000,
        checkpoint_policy: Json(CheckpointPolicy::default()),
        workspace_path: None,
        max_live_instances: None,
        metadata: Json(json!({})),
        version: 1,
        archived_at: None,
        created_at: zero,
        updated_at: zero,
    }
}

/// A new API key's secret.
pub fn new_secret() -> Result<String> {
    Ok(format!("berth_sk_{}", random_text()?))
}

/// 256 random bits of the operating system.
pub fn random_text() -> Result<String> {
    let mut bytes = [0; 32];
    OsRng.try_fill_bytes(&mut bytes).map_err(|_| Error::new(Code::Internal, "The operating system gave no random bytes."))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
