//! A provider's schema as environments are held against it: wherever it says string, a reference to a secret will do.

use serde_json::{Value, json};

use crate::model::secret::Reference;

/// The format of a string that is always a secret: its value never stands in a configuration.
const SECRET: &str = "secret-ref";
/// Keywords that hold one schema.
const ONE: [&str; 9] =
    ["additionalProperties", "items", "contains", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "additionalItems"];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// The same schema, where a string may also be a reference to a secret; one of the format `secret-ref` must be.
pub fn with_references(schema: &Value) -> Value {
    let Some(members) = schema.as_object() else { return schema.clone() };
    let mut open = members.clone();
    for (keyword, below) in &mut open {
        if ONE.contains(&keyword.as_str()) {
            *below = with_references(below);
        } else if LISTS.contains(&keyword.as_str()) {
            below.as_array_mut().into_iter().flatten().for_each(|one| *one = with_references(one));
        } else if NAMED.contains(&keyword.as_str()) {
            below.as_object_mut().into_iter().flatten().for_each(|(_, one)| *one = with_references(one));
        }
    }
    if is_secret(schema) {
        return Reference::schema();
    }
    if says_string(schema) { json!({ "anyOf": [open, Reference::schema()] }) } else { Value::Object(open) }
}

fn is_secret(schema: &Value) -> bool {
    schema["format"] == SECRET
}

fn says_string(schema: &Value) -> bool {
    let kind = &schema["type"];
    kind == "string" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "string"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_may_be_a_reference_and_a_secret_must_be_one() {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "name": { "type": "string", "pattern": "^a" },
                "key": { "type": "string", "format": "secret-ref" },
                "count": { "type": "integer" },
                "network": { "enum": ["none"] },
                "env": { "type": "object", "propertyNames": { "type": "string", "pattern": "^[A-Z]+$" }, "additionalProperties": { "type": "string" } },
                "deep": { "oneOf": [{ "type": "null" }, { "type": "array", "items": { "type": ["string", "null"] } }] }
            }
        });
        let open = jsonschema::draft202012::new(&with_references(&schema)).unwrap();
        let reference = json!({ "secret_ref": { "name": "s" } });
        for fits in [
            json!({ "name": "abc", "env": { "A": "b" } }),
            json!({ "name": reference, "key": reference, "env": { "A": reference }, "deep": [reference, null] }),
            json!({ "key": { "secret_ref": { "name": "s", "version": 4 } } }),
        ] {
            assert!(open.is_valid(&fits), "{fits}");
        }
        for does_not in [
            json!({ "name": "b" }),
            json!({ "key": "in plain sight" }),
            json!({ "count": reference }),
            json!({ "network": reference }),
            json!({ "env": { "a": "lower" } }),
            json!({ "name": { "secret_ref": { "name": "UPPER" } } }),
            json!({ "name": { "secret_ref": { "name": "s", "version": 0 } } }),
            json!({ "name": { "secret_ref": { "name": "s" }, "more": 1 } }),
            json!({ "more": reference }),
        ] {
            assert!(!open.is_valid(&does_not), "{does_not}");
        }
    }
}
