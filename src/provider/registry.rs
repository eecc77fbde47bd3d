//! The providers of this server by kind, and the check of a configuration against its provider's schema.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::Value;

use super::counted::Counted;
use super::schema::with_references;
use super::{Kind, Provider, ProviderError, ResolvedConfig, Result};

/// The providers this server offers.
#[derive(Clone)]
pub struct Registry(Arc<BTreeMap<&'static str, Entry>>);

struct Entry {
    provider: Arc<dyn Provider>,
    schema: Validator,
    /// The same, where a string may be a reference to a secret.
    stored: Validator,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Registry {
    /// Compiles every provider's schema, and counts what each is asked from now on. `Invalid` when a schema is none or two providers have one name.
    pub fn new(providers: Vec<Arc<dyn Provider>>) -> Result<Self> {
        let mut entries = BTreeMap::new();
        for provider in providers {
            let compile = |schema: &Value| {
                jsonschema::draft202012::new(schema)
                    .map_err(|e| ProviderError::new(Kind::Invalid, "a provider's config schema is no JSON Schema").because(e))
            };
            let schema = provider.config_schema();
            let (stored, schema) = (compile(&with_references(&schema))?, compile(&schema)?);
            let kind = provider.traits().kind;
            if entries.insert(kind, Entry { provider: Arc::new(Counted(provider)), schema, stored }).is_some() {
                return Err(ProviderError::new(Kind::Invalid, "two providers have the same kind"));
            }
        }
        Ok(Self(Arc::new(entries)))
    }

    /// The provider of this kind.
    pub fn get(&self, kind: &str) -> Option<Arc<dyn Provider>> {
        self.0.get(kind).map(|entry| Arc::clone(&entry.provider))
    }

    /// Every provider, by the order of their kinds.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.0.values().map(|entry| &entry.provider)
    }

    /// Checks a configuration as it is stored, with references to secrets. Each failure is a JSON pointer into it and what is wrong
    /// there; values are never repeated.
    pub fn check_config(&self, kind: &str, config: &Value) -> std::result::Result<(), Vec<(String, String)>> {
        self.check(kind, config, |entry| &entry.stored)
    }

    /// Checks a configuration as its provider gets it, with the secrets' values in it.
    pub fn check_resolved(&self, kind: &str, config: &ResolvedConfig) -> std::result::Result<(), Vec<(String, String)>> {
        self.check(kind, config.reveal(), |entry| &entry.schema)
    }

    fn check(&self, kind: &str, config: &Value, schema: impl Fn(&Entry) -> &Validator) -> std::result::Result<(), Vec<(String, String)>> {
        let Some(entry) = self.0.get(kind) else {
            return Err(vec![(String::new(), "there is no such provider".to_owned())]);
        };
        let wrong: Vec<_> =
            schema(entry).iter_errors(config).map(|error| (error.instance_path().to_string(), error.masked().to_string())).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provider::memory::Memory;

    #[test]
    fn a_wrong_config_names_its_place_and_not_its_value() {
        let registry = Registry::new(vec![Arc::new(Memory::new())]).unwrap();
        assert_eq!(registry.check_config("memory", &json!({ "label": "a" })), Ok(()));
        let wrong = registry.check_config("memory", &json!({ "label": 8161, "more": true })).unwrap_err();
        assert!(wrong.iter().any(|(pointer, message)| pointer == "/label" && !message.contains("8161")), "{wrong:?}");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(registry.check_config("docker", &json!({})).is_err());
        assert!(registry.get("memory").is_some() && registry.get("docker").is_none() && registry.all().count() == 1);
    }

    #[test]
    fn one_kind_has_one_provider() {
        assert!(Registry::new(vec![Arc::new(Memory::new()), Arc::new(Memory::new())]).is_err());
    }
}
