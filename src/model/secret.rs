//! Secrets: named, versioned values that configurations refer to. At rest they are sealed; only a provider call sees them.

use std::collections::BTreeSet;
use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::Time;

/// The one member of an object that stands for a secret.
const MEMBER: &str = "secret_ref";
/// The most bytes of a value.
pub const LARGEST: usize = 64 * 1024;

/// A secret without its value, as stored.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Secret {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub name: String,
    pub version: i64,
    pub created_at: Time,
    pub updated_at: Time,
}

/// What stands in a configuration instead of a value: `{"secret_ref": {"name": …, "version"?: …}}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// The secret's name.
    pub name: String,
    /// Which version; the latest when absent.
    pub version: Option<i64>,
}

impl Reference {
    /// The reference that this value is, if it is one.
    pub fn of(value: &Value) -> Option<Self> {
        let members = value.as_object().filter(|members| members.len() == 1)?;
        Self::deserialize(members.get(MEMBER)?).ok()
    }

    /// What a schema that takes a reference says of it.
    pub fn schema() -> Value {
        json!({
            "type": "object", "required": [MEMBER], "additionalProperties": false,
            "properties": { MEMBER: {
                "type": "object", "required": ["name"], "additionalProperties": false,
                "properties": {
                    "name": { "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$" },
                    "version": { "type": "integer", "minimum": 1, "maximum": i64::MAX }
                }
            } }
        })
    }
}

/// Whether a secret may be called this.
pub fn is_name(name: &str) -> bool {
    let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 63 && name.bytes().next().is_some_and(first) && name.bytes().all(|b| first(b) || b"._-".contains(&b))
}

/// A reference, where it stands, and what it means at a moment: which secret in which version, if there is one.
#[derive(Clone, Debug)]
pub struct Pin {
    /// The reference.
    pub reference: Reference,
    /// A place where it stands, as a JSON pointer.
    pub pointer: String,
    /// The secret's id and the version.
    pub means: Option<(Uuid, i64)>,
}

/// Every reference of a configuration with its JSON pointer, in order.
pub fn references(config: &Value) -> Vec<(String, Reference)> {
    let mut found = Vec::new();
    collect(config, &mut String::new(), &mut found);
    found
}

fn collect(value: &Value, at: &mut String, found: &mut Vec<(String, Reference)>) {
    if let Some(reference) = Reference::of(value) {
        found.push((at.clone(), reference));
        return;
    }
    let mut below = |step: &str, value: &Value| {
        let length = at.len();
        at.push('/');
        at.push_str(&step.replace('~', "~0").replace('/', "~1"));
        collect(value, at, found);
        at.truncate(length);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, value)| below(&index.to_string(), value)),
        _ => {}
    }
}

/// The names of the secrets that a configuration refers to.
pub fn names(config: &Value) -> BTreeSet<String> {
    references(config).into_iter().map(|(_, reference)| reference.name).collect()
}

/// The configuration with each reference replaced by what `value_of` knows for it; one that it does not know stays.
pub fn filled(config: &Value, value_of: &impl Fn(&Reference) -> Option<String>) -> Value {
    if let Some(value) = Reference::of(config).and_then(|reference| value_of(&reference)) {
        return Value::String(value);
    }
    match config {
        Value::Object(members) => Value::Object(members.iter().map(|(k, v)| (k.clone(), filled(v, value_of))).collect::<Map<_, _>>()),
        Value::Array(items) => Value::Array(items.iter().map(|item| filled(item, value_of)).collect()),
        other => other.clone(),
    }
}

/// What secrets are sealed with, made of the operator's text. Shown by nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Which version of which secret some bytes are; bound to them, so that no row can stand in for another.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The tenant.
    pub organization: Uuid,
    /// The secret.
    pub secret: Uuid,
    /// Its version.
    pub version: i64,
}

impl Place {
    fn bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(self.organization.as_bytes());
        bytes[16..32].copy_from_slice(self.secret.as_bytes());
        bytes[32..].copy_from_slice(&self.version.to_be_bytes());
        bytes
    }
}

impl Key {
    /// The key that this text stands for; the text must be hard to guess.
    pub fn of(text: &str) -> Self {
        Self(Sha256::new().chain_update(b"berth secret key v1").chain_update(text.as_bytes()).finalize().into())
    }

    /// By which a database knows the key without telling it.
    pub fn check_value(&self) -> Vec<u8> {
        Sha256::new().chain_update(b"berth secret check v1").chain_update(self.0).finalize().to_vec()
    }

    fn cipher(&self) -> LessSafeKey {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.0).unwrap_or_else(|_| unreachable!("the key has the cipher's length"));
        LessSafeKey::new(key)
    }

    /// Seals a value under a nonce that was never used before: nonce, ciphertext, tag.
    pub fn seal(&self, place: Place, nonce: [u8; NONCE_LEN], value: &str) -> Vec<u8> {
        let mut text = value.as_bytes().to_vec();
        let bound = Aad::from(place.bytes());
        let sealed = self.cipher().seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), bound, &mut text);
        sealed.unwrap_or_else(|_| unreachable!("a value is shorter than what the cipher takes"));
        [&nonce[..], &text].concat()
    }

    /// The value; `None` when it was sealed with another key, for another place, or is not whole.
    pub fn open(&self, place: Place, sealed: &[u8]) -> Option<String> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let value = self.cipher().open_in_place(nonce, Aad::from(place.bytes()), &mut text).ok()?;
        String::from_utf8(value.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_LEN] = [7; NONCE_LEN];

    fn place() -> Place {
        Place { organization: Uuid::from_u128(1), secret: Uuid::from_u128(2), version: 3 }
    }

    #[test]
    fn what_is_sealed_opens_in_its_place_with_its_key_and_nowhere_else() {
        let key = Key::of("a text that is long enough to be a key of tests");
        let sealed = key.seal(place(), NONCE, "hunter2");
        assert!(!String::from_utf8_lossy(&sealed).contains("hunter2"));
        assert_eq!(key.open(place(), &sealed).as_deref(), Some("hunter2"));
        assert_eq!(Key::of("another").open(place(), &sealed), None);
        for elsewhere in
            [Place { organization: Uuid::nil(), ..place() }, Place { secret: Uuid::nil(), ..place() }, Place { version: 4, ..place() }]
        {
            assert_eq!(key.open(elsewhere, &sealed), None, "{elsewhere:?}");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(key.open(place(), &changed), None, "byte {at}");
        }
        assert_eq!(key.open(place(), &sealed[..5]), None);
        assert_ne!(key.check_value(), Key::of("another").check_value());
        assert_eq!(format!("{key:?}"), "[hidden]");
    }

    #[test]
    fn references_are_found_by_their_form_with_their_places_and_filled() {
        let config = json!({
            "env": { "A/B": { "secret_ref": { "name": "a" } }, "C": "plain" },
            "list": [1, { "secret_ref": { "name": "b", "version": 2 } }],
            "no": { "secret_ref": "text" }, "nor": { "secret_ref": { "name": "c" }, "more": 1 }
        });
        let found = references(&config);
        let told: Vec<_> = found.iter().map(|(at, r)| (at.as_str(), r.name.as_str(), r.version)).collect();
        assert_eq!(told, [("/env/A~1B", "a", None), ("/list/1", "b", Some(2))]);
        assert_eq!(names(&config).into_iter().collect::<Vec<_>>(), ["a", "b"]);
        let full = filled(&config, &|reference| (reference.name == "a").then(|| "value".to_owned()));
        assert_eq!((full["env"]["A/B"].as_str(), &full["list"][1]), (Some("value"), &config["list"][1]));
        assert_eq!(full["nor"], config["nor"]);
    }
}
