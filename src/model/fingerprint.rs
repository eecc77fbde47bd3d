//! The fingerprint says whether a live instance is what an acquire would make now.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::scope::Scope;
use super::secret::Pin;

/// What goes into a fingerprint; run ids, times, host paths, lease defaults, quotas and the environment's version do not.
#[derive(Debug)]
pub struct Ingredients<'a> {
    /// The tenant.
    pub organization: Uuid,
    /// The environment's id.
    pub environment: Uuid,
    /// The environment's provider.
    pub provider: &'a str,
    /// The caller's scope, if any.
    pub scope: Option<&'a Scope>,
    /// The harness the caller named, if any.
    pub harness: Option<&'a str>,
    /// The stored configuration: secret references, never values.
    pub config: &'a Value,
    /// The configured workspace path, if any.
    pub workspace_path: Option<&'a str>,
    /// What the configuration's references mean: versions, never values.
    pub secrets: &'a [Pin],
    /// Which plugin in which version, for a plugin's.
    pub plugin: Option<Value>,
}

/// `v1:sha256:<hex>` over canonical JSON.
pub fn of(parts: &Ingredients<'_>) -> String {
    let mut canonical = json!({
        "config": parts.config,
        "environment": parts.environment,
        "harness": parts.harness,
        "organization": parts.organization,
        "provider": parts.provider,
        "scope": parts.scope,
        "workspace_path": parts.workspace_path,
    });
    if !parts.secrets.is_empty() {
        let told = |pin: &Pin| json!([pin.reference.name, pin.reference.version, pin.means]);
        canonical["secrets"] = parts.secrets.iter().map(told).collect();
    }
    if let Some(plugin) = &parts.plugin {
        canonical["plugin"] = plugin.clone();
    }
    format!("v1:sha256:{}", hex::encode(Sha256::digest(canonical.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_order_in_the_config_does_not_matter() {
        let make = |config: &Value| {
            of(&Ingredients {
                organization: Uuid::nil(),
                environment: Uuid::nil(),
                provider: "local",
                scope: None,
                harness: None,
                config,
                workspace_path: None,
                secrets: &[],
                plugin: None,
            })
        };
        let a: Value = serde_json::from_str(r#"{"x":1,"y":{"b":1,"a":2}}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"y":{"a":2,"b":1},"x":1}"#).unwrap();
        assert_eq!(make(&a), make(&b));
        assert_ne!(make(&a), make(&Value::Null));
    }
}
