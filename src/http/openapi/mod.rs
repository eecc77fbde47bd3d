//! The API description: what the handlers declare, completed with what is true of all of them.

mod links;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use utoipa::openapi::content::Content;
use utoipa::openapi::info::{InfoBuilder, License};
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{Components, OpenApi, Ref, RefOr, Required};
use utoipa::{PartialSchema, ToSchema};

use crate::error::Code;
use crate::http::catalogue::entry;
use crate::http::problem::MEDIA_TYPE;
use crate::http::wire::problem::{FieldProblem, Problem};

/// Where handlers list the codes that are their own.
const CODES: &str = "x-error-codes";
/// The media type of files, trees and archives.
const BYTES: &str = "application/octet-stream";
const TAGS: [(&str, &str); 13] = [
    ("leases", "A holder's time-bounded, fenced claim on a sandbox."),
    ("exec", "Commands inside the sandbox."),
    ("files", "Files inside the sandbox."),
    ("checkpoints", "Revisions of a workspace: what must not be lost."),
    ("sandboxes", "The durable identity that survives the loss of everything physical."),
    ("environments", "Named provider configurations."),
    ("instances", "The ledger of everything a provider was ever asked to make."),
    ("events", "What happened, in the order in which it did."),
    ("providers", "Who makes, finds, runs and ends instances."),
    ("plugins", "Providers in any language, behind a URL."),
    ("secrets", "Values that configurations refer to and nothing shows."),
    ("keys", "Organizations and API keys."),
    ("maintenance", "What operators see and steer."),
];

/// One example for each component that an operation sends or answers.
static EXAMPLES: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let examples = serde_json::from_str(include_str!("examples.json"));
    examples.unwrap_or_else(|error| unreachable!("examples.json is not JSON: {error}"))
});

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let text = serde_json::to_string_pretty(&document());
    text.unwrap_or_else(|error| unreachable!("the description is not JSON: {error}")) + "\n"
});

/// The description as it is served and checked in.
pub fn text() -> &'static str {
    &TEXT
}

/// The description.
pub fn document() -> OpenApi {
    let mut api = crate::http::described().into_openapi();
    api.info = InfoBuilder::new()
        .title("Berth")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Leases sandboxes to agent runs and keeps the work inside them safe."))
        .license(Some(License::new(env!("CARGO_PKG_LICENSE"))))
        .build();
    let service = ("service", "The service itself.");
    let tags = TAGS.into_iter().chain([service]);
    api.tags = Some(tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build()).collect());
    api.security = Some(vec![SecurityRequirement::new("bearer", Vec::<String>::new())]);
    let components = api.components.get_or_insert_with(Components::new);
    components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    components.schemas.insert(FieldProblem::name().into_owned(), FieldProblem::schema());
    let mut more = Vec::new();
    Problem::schemas(&mut more);
    components.schemas.extend(more);
    let sent = sent_components(&api);
    if let Some(components) = api.components.as_mut() {
        always_answered(components, &sent);
        lift_descriptions(components);
    }
    for item in api.paths.paths.values_mut() {
        item.post.iter_mut().for_each(take_idempotency_key);
    }
    let optional = optional_bodies(&api);
    for operation in operations(&mut api) {
        plain_parameters(operation);
        raw_bytes(operation);
        list_errors(operation);
        show_examples(operation);
        links::add(operation);
        body_may_be_left_out(operation, &optional);
    }
    api
}

/// Every POST with a JSON body takes an `Idempotency-Key`.
fn take_idempotency_key(operation: &mut Operation) {
    let Some(RefOr::T(body)) = &operation.request_body else { return };
    if !body.content.contains_key("application/json") {
        return;
    }
    let text = "Sent again under the same key, the same request is answered with what it made, and not done twice; for 24 h.";
    let schema = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!-~]+$"));
    let parameter = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(text))
        .schema(Some(schema.build()));
    operation.parameters.get_or_insert_default().push(RefOr::T(parameter.build()));
    let extensions = operation.extensions.get_or_insert_default();
    let codes = extensions.entry(CODES.to_owned()).or_insert_with(|| json!([]));
    if let Value::Array(codes) = codes {
        // What a replay tells about may be gone by then.
        codes.extend(["idempotency_key_in_use", "idempotency_key_mismatch", "not_found"].map(|code| json!(code)));
    }
}

fn operations(api: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    let items = api.paths.paths.values_mut();
    items.flat_map(|item| [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch]).flatten()
}

/// The components that callers send, with everything they refer to.
fn sent_components(api: &OpenApi) -> BTreeSet<String> {
    let document = json!(api);
    let mut waiting = Vec::new();
    for operation in document["paths"].as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object).flat_map(Map::values) {
        refs(&operation["requestBody"], &mut waiting);
    }
    let mut sent = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if sent.insert(name.clone()) {
            refs(&document["components"]["schemas"][&name], &mut waiting);
        }
    }
    sent
}

fn refs(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).and_then(component));
            members.values().for_each(|value| refs(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| refs(value, found)),
        _ => {}
    }
}

fn component(reference: &str) -> Option<String> {
    reference.strip_prefix("#/components/schemas/").map(str::to_owned)
}

/// Answers always have every member, null where there is nothing; only problems leave members out.
fn always_answered(components: &mut Components, sent: &BTreeSet<String>) {
    let problem = Problem::name();
    for (name, schema) in &mut components.schemas {
        if let RefOr::T(Schema::Object(object)) = schema
            && !sent.contains(name)
            && *name != problem
        {
            object.required = object.properties.keys().cloned().collect();
        }
    }
}

/// What a member means is said of the member, and not of one of its two forms.
fn lift_descriptions(components: &mut Components) {
    for schema in components.schemas.values_mut() {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        for member in object.properties.values_mut() {
            let RefOr::T(Schema::OneOf(either)) = member else { continue };
            for form in &mut either.items {
                if let RefOr::Ref(reference) = form
                    && !reference.description.is_empty()
                {
                    either.description = Some(std::mem::take(&mut reference.description));
                }
            }
        }
    }
}

/// Request bodies of which nothing is required may be left out as a whole.
fn optional_bodies(api: &OpenApi) -> BTreeSet<String> {
    let schemas = api.components.iter().flat_map(|components| &components.schemas);
    let optional = schemas.filter(|(_, schema)| matches!(schema, RefOr::T(Schema::Object(object)) if object.required.is_empty()));
    optional.map(|(name, _)| name.clone()).collect()
}

fn body_may_be_left_out(operation: &mut Operation, optional: &BTreeSet<String>) {
    let Some(RefOr::T(body)) = operation.request_body.as_mut() else { return };
    let names: Vec<String> = body.content.values().filter_map(content_component).collect();
    body.required =
        Some(if names.is_empty() || !names.iter().all(|name| optional.contains(name)) { Required::True } else { Required::False });
}

/// A parameter is left out, never null.
fn plain_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let kind = match parameter.schema.as_mut() {
            Some(RefOr::T(Schema::Object(object))) => &mut object.schema_type,
            Some(RefOr::T(Schema::Array(array))) => &mut array.schema_type,
            _ => continue,
        };
        if let SchemaType::Array(types) = kind
            && let Some(only) = types.iter().find(|one| **one != Type::Null).cloned()
        {
            *kind = SchemaType::Type(only);
        }
    }
}

/// Bytes are no text: generated clients take and give them as they are.
fn raw_bytes(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.get_mut(BYTES).into_iter().for_each(binary);
    }
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer {
            answer.content.get_mut(BYTES).into_iter().for_each(binary);
        }
    }
}

fn binary(content: &mut RefOr<Content>) {
    if let RefOr::T(content) = content {
        let bytes = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        content.schema = Some(RefOr::T(Schema::Object(bytes.build())));
    }
}

/// Adds an answer for every status that one of the operation's codes has.
fn list_errors(operation: &mut Operation) {
    let codes = codes_of(operation);
    let words: Vec<String> = codes.iter().map(|code| code.as_str()).collect();
    operation.extensions.get_or_insert_default().insert(CODES.to_owned(), json!(words));
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(entry(code).status).or_default().push(code);
    }
    for (status, codes) in by_status {
        let lines: Vec<String> = codes.iter().map(|code| format!("`{}`: {}.", code.as_str(), entry(*code).title)).collect();
        operation.responses.responses.insert(status.to_string(), RefOr::T(problem_response(&lines.join(" "))));
    }
}

fn problem_response(description: &str) -> Response {
    let content = Content::new(Some(Ref::from_schema_name(Problem::name())));
    ResponseBuilder::new().description(description).content(MEDIA_TYPE, content).build()
}

/// The operation's own codes, and those that every operation of its shape has.
fn codes_of(operation: &mut Operation) -> Vec<Code> {
    let own = operation.extensions.as_mut().and_then(|extensions| extensions.remove(CODES)).unwrap_or_default();
    let own = own.as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut codes: HashSet<Code> =
        own.map(|word| Code::parse(word).unwrap_or_else(|| unreachable!("{word} is no code of the contract"))).collect();
    let is_public = operation.security.as_ref().is_some_and(|needs| needs.iter().all(|need| *need == SecurityRequirement::default()));
    codes.insert(Code::Internal);
    if !is_public {
        codes.extend([
            Code::Unauthorized,
            Code::InvalidToken,
            Code::Forbidden,
            Code::RateLimited,
            Code::StorageUnavailable,
            Code::ShuttingDown,
        ]);
    }
    if operation.operation_id.as_deref() == Some("readyz") {
        codes.insert(Code::StorageUnavailable);
    }
    if let Some(RefOr::T(body)) = &operation.request_body
        && body.content.contains_key("application/json")
    {
        codes.extend([Code::MalformedJson, Code::PayloadTooLarge, Code::UnsupportedMediaType, Code::InvalidRequest]);
    }
    for parameter in operation.parameters.iter().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        match parameter.parameter_in {
            ParameterIn::Path => codes.insert(Code::NotFound),
            _ => codes.insert(Code::InvalidRequest),
        };
        if parameter.name == "cursor" {
            codes.insert(Code::InvalidCursor);
        }
    }
    Code::ALL.iter().copied().filter(|code| codes.contains(code)).collect()
}

/// Shows an example for each body that is a component and has none of its own.
fn show_examples(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = operation.request_body.as_mut() {
        body.content.values_mut().for_each(show_example);
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status.starts_with('2')
        {
            response.content.values_mut().for_each(show_example);
        }
    }
}

fn show_example(content: &mut RefOr<Content>) {
    let Some(name) = content_component(content) else { return };
    if let RefOr::T(content) = content
        && content.example.is_none()
    {
        content.example = example(&name);
    }
}

fn content_component(content: &RefOr<Content>) -> Option<String> {
    match content {
        RefOr::T(Content { schema: Some(RefOr::Ref(reference)), .. }) => component(&reference.ref_location),
        _ => None,
    }
}

/// The example of a component; a page's is made of its items'.
pub fn example(component: &str) -> Option<Value> {
    let of_page = || Some(json!({ "items": [EXAMPLES.get(component.strip_suffix("Page")?)?], "next_cursor": null }));
    EXAMPLES.get(component).cloned().or_else(of_page)
}

#[cfg(test)]
mod tests;
