//! The description as clients need it: current, whole, named, described, with examples that fit.

use super::*;

const FILE: &str = "openapi/berth.json";

fn each_operation(api: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = api["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(path, item)| item.as_object().into_iter().flatten().map(move |(method, it)| (format!("{method} {path}"), it)))
}

#[test]
fn the_checked_in_file_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("BERTH_UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, text()).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == text(), "{FILE} is old: run `berth openapi > {FILE}`");
}

#[test]
fn every_operation_is_whole() {
    let api = json!(document());
    let mut ids = BTreeSet::new();
    for (name, operation) in each_operation(&api) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id} twice");
        assert!(operation["summary"].is_string(), "{name}: no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{name}: tags");
        assert!(operation["responses"]["500"].is_object(), "{name}: no 500");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{name}: {}", parameter["name"]);
        }
        let mut has_example = operation["responses"]["204"].is_object();
        for (status, response) in operation["responses"].as_object().unwrap() {
            // What is answered without a body, as a deletion is, has nothing to show.
            has_example |= status.starts_with('2') && response["content"].is_null();
            assert!(response["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}: {status}");
            for (media_type, content) in response["content"].as_object().into_iter().flatten() {
                if status.starts_with('2') {
                    assert!(!content["example"].is_null(), "{name}: {status} {media_type} has no example");
                    has_example = true;
                } else {
                    assert_eq!(media_type, MEDIA_TYPE, "{name}: {status}");
                }
            }
        }
        for content in operation["requestBody"]["content"].as_object().into_iter().flat_map(Map::values) {
            assert!(!content["example"].is_null(), "{name}: the body has no example");
        }
        assert!(has_example, "{name}: no example");
    }
}

/// Where a schema is written out although it has members, and so should have a name.
fn inline_objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if members.contains_key("properties") || members.get("type") == Some(&json!("object")) {
                found.push(at.to_owned());
            }
            for (name, value) in members.iter().filter(|(name, _)| *name != "example" && *name != "examples") {
                inline_objects(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| inline_objects(value, &format!("{at}/{i}"), found)),
        _ => {}
    }
}

#[test]
fn every_object_is_a_named_component_with_described_members() {
    let api = json!(document());
    let mut found = Vec::new();
    inline_objects(&api["paths"], "paths", &mut found);
    for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
        assert!(schema["description"].is_string(), "{name}: no description");
        for (field, member) in schema["properties"].as_object().into_iter().flatten() {
            let described = member["description"].is_string() || member["$ref"].is_string();
            assert!(described, "{name}.{field}: no description");
            inline_objects(member, &format!("{name}.{field}"), &mut found);
        }
    }
    assert!(found.is_empty(), "inline objects: {found:?}");
}

#[test]
fn every_example_fits_its_schema_and_every_reference_leads_somewhere() {
    let api = json!(document());
    let components = &api["components"]["schemas"];
    let mut named = Vec::new();
    refs(&api, &mut named);
    for name in named {
        assert!(components[&name].is_object(), "{name} is nowhere");
    }
    for (name, example) in EXAMPLES.iter() {
        let root = json!({ "$ref": format!("#/components/schemas/{name}"), "components": { "schemas": components } });
        let validator = jsonschema::options().should_validate_formats(true).build(&root).unwrap();
        let wrong: Vec<String> = validator.iter_errors(example).map(|error| format!("{} {error}", error.instance_path())).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
    }
}

#[test]
fn answers_are_open_and_requests_are_closed() {
    let api = json!(document());
    let components = &api["components"]["schemas"];
    assert!(components["LeaseStatus"]["enum"].is_null() && components["LeaseStatus"]["x-open-enum"].is_array());
    assert!(components["Access"]["enum"].is_array());
    assert_eq!(components["LeaseAcquire"]["additionalProperties"], json!(false));
    assert_eq!(components["LeaseAcquire"]["required"], json!(["environment", "holder"]));
    let lease = components["Lease"]["properties"].as_object().map(Map::len);
    assert_eq!(components["Lease"]["required"].as_array().map(Vec::len), lease);
}

#[test]
fn every_link_leads_to_an_operation_with_its_parameters() {
    let api = json!(document());
    let find = |id: &str| each_operation(&api).map(|(_, operation)| operation).find(|operation| operation["operationId"] == id);
    let mut seen = 0;
    for (name, operation) in each_operation(&api) {
        let links = operation["responses"].as_object().unwrap().values().filter_map(|response| response["links"].as_object()).flatten();
        for (_, link) in links {
            let target = find(link["operationId"].as_str().unwrap()).unwrap_or_else(|| panic!("{name}: {link} leads nowhere"));
            let parameters = target["parameters"].as_array().unwrap();
            for given in link["parameters"].as_object().unwrap().keys() {
                assert!(parameters.iter().any(|p| p["name"] == given.as_str()), "{name}: {link}: no {given}");
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links");
}
