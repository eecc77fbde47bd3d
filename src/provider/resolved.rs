//! A configuration with its secrets' values in it, for one provider call: shown by nothing, and able to tell where they come back.

use std::fmt;

use serde_json::Value;

/// A value shorter than this is only told from other text where it stands alone.
const TELLING: usize = 4;

/// A configuration as its provider gets it.
#[derive(Clone, Default)]
pub struct ResolvedConfig {
    config: Value,
    secrets: Vec<Confided>,
}

/// One secret in it: where, and what.
#[derive(Clone)]
struct Confided {
    pointer: String,
    value: String,
}

impl fmt::Debug for ResolvedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResolvedConfig({} secrets)", self.secrets.len())
    }
}

impl From<Value> for ResolvedConfig {
    /// A configuration without secrets.
    fn from(config: Value) -> Self {
        Self { config, secrets: Vec::new() }
    }
}

impl ResolvedConfig {
    /// A configuration with these values at these JSON pointers.
    pub fn new(config: Value, secrets: Vec<(String, String)>) -> Self {
        Self { config, secrets: secrets.into_iter().map(|(pointer, value)| Confided { pointer, value }).collect() }
    }

    /// The same, with one more value that may come back and is nowhere in it.
    #[must_use]
    pub fn hiding(mut self, value: String) -> Self {
        self.secrets.push(Confided { pointer: String::new(), value });
        self
    }

    /// The configuration, values and all, for the call it was resolved for.
    pub fn reveal(&self) -> &Value {
        &self.config
    }

    /// Whether a text that came from outside gives a secret away.
    pub fn is_told_by(&self, text: &str) -> bool {
        self.secrets.iter().any(|secret| {
            let value = secret.value.as_str();
            text == value || (value.len() >= TELLING && text.contains(value))
        })
    }

    /// What a provider said about its object, without the secrets: neither where the configuration has one, nor wherever else its
    /// value stands. What is left empty by that is left out too.
    pub fn stripped(&self, said: &Value) -> Value {
        self.strip(said, &mut String::new()).unwrap_or(Value::Null)
    }

    fn strip(&self, said: &Value, at: &mut String) -> Option<Value> {
        if self.secrets.iter().any(|secret| secret.pointer == *at) && !at.is_empty() {
            return None;
        }
        match said {
            Value::String(text) if self.is_told_by(text) => None,
            Value::Number(number) if self.is_told_by(&number.to_string()) => None,
            Value::Object(members) => {
                let kept = members.iter().filter(|(name, _)| !self.is_told_by(name)).filter_map(|(name, value)| {
                    let length = at.len();
                    at.push('/');
                    at.push_str(&name.replace('~', "~0").replace('/', "~1"));
                    let below = self.strip(value, at);
                    at.truncate(length);
                    Some((name.clone(), below?))
                });
                let kept: serde_json::Map<_, _> = kept.collect();
                (!kept.is_empty() || members.is_empty()).then_some(Value::Object(kept))
            }
            Value::Array(items) => {
                let kept = items.iter().enumerate().filter_map(|(index, value)| {
                    let length = at.len();
                    at.push('/');
                    at.push_str(&index.to_string());
                    let below = self.strip(value, at);
                    at.truncate(length);
                    below
                });
                let kept: Vec<_> = kept.collect();
                (!kept.is_empty() || items.is_empty()).then_some(Value::Array(kept))
            }
            other => Some(other.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_come_back_neither_by_path_nor_by_value() {
        let config = json!({ "credentials": { "apiKey": "canary-1" }, "pin": "77" });
        let secrets = vec![("/credentials/apiKey".to_owned(), "canary-1".to_owned()), ("/pin".to_owned(), "77".to_owned())];
        let config = ResolvedConfig::new(config, secrets);
        let said = json!({
            "credentials": { "apiKey": "changed, but in its place" }, "region": "eu", "note": "it was canary-1, I think",
            "list": ["canary-1"], "mixed": ["canary-1", "fine"], "by_key": { "canary-1": 1, "ok": true }, "n": 77, "year": "1977", "empty": {}
        });
        let kept = config.stripped(&said);
        assert_eq!(kept, json!({ "region": "eu", "mixed": ["fine"], "by_key": { "ok": true }, "year": "1977", "empty": {} }));
        assert!(config.is_told_by("sandbox-canary-1") && !config.is_told_by("sandbox-1") && !config.is_told_by("1977"));
        assert!(!format!("{config:?}").contains("canary"));
        let plain = ResolvedConfig::from(said.clone());
        assert_eq!(plain.stripped(&said), said);
    }
}
