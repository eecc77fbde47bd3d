//! A scope is the caller's own name for a logical sandbox: a flat object of strings.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// At most this many keys.
pub const MAX_KEYS: usize = 16;
/// A key has at most this many characters.
pub const MAX_KEY_CHARS: usize = 64;
/// A value has at most this many characters.
pub const MAX_VALUE_CHARS: usize = 256;

/// A checked scope. Two scopes with the same pairs are the same scope, whatever their order.
pub type Scope = BTreeMap<String, String>;

/// SHA-256 over the canonical JSON (sorted keys, no white space), in lower-case hex: unique per environment.
pub fn key(scope: &Scope) -> String {
    let canonical = serde_json::to_vec(scope).unwrap_or_default();
    hex::encode(Sha256::digest(canonical))
}

/// Everything wrong with a scope, as (pointer below the scope, message).
pub fn problems(scope: &Scope) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if scope.is_empty() {
        found.push((String::new(), "must have at least one key; leave it out for an anonymous sandbox".to_owned()));
    }
    if scope.len() > MAX_KEYS {
        found.push((String::new(), format!("has more than {MAX_KEYS} keys")));
    }
    for (name, value) in scope {
        let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        if name.is_empty() || name.chars().count() > MAX_KEY_CHARS || name.chars().any(char::is_control) {
            found.push((pointer.clone(), format!("key must have 1 to {MAX_KEY_CHARS} printable characters")));
        }
        if value.chars().count() > MAX_VALUE_CHARS || value.contains('\0') {
            found.push((pointer, format!("must have at most {MAX_VALUE_CHARS} characters and no NUL")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_values_do() {
        let a: Scope = serde_json::from_str(r#"{"a":"1","b":"2"}"#).unwrap();
        let b: Scope = serde_json::from_str(r#"{"b":"2","a":"1"}"#).unwrap();
        let c: Scope = serde_json::from_str(r#"{"b":"2","a":"2"}"#).unwrap();
        assert_eq!(key(&a), key(&b));
        assert_ne!(key(&a), key(&c));
    }

    #[test]
    fn limits_are_told_with_their_place() {
        let wide: Scope = (0..17).map(|i| (format!("k{i}"), String::new())).collect();
        assert_eq!(problems(&wide)[0].0, "");
        let long: Scope = [("a/b".to_owned(), "x".repeat(257))].into();
        assert_eq!(problems(&long)[0].0, "/a~1b");
        assert!(!problems(&Scope::new()).is_empty());
    }
}
