//! The API description for programs, and as a page for people that works offline.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::html::{escape, page, prose};
use super::{Http, openapi};

/// The page, made once: it only shows the description.
static PAGE: LazyLock<String> = LazyLock::new(|| written(&json!(openapi::document())));

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(description)).routes(routes!(docs))
}

/// The API description
///
/// `OpenAPI` 3.1.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "service", security(()),
    responses((status = 200, description = "This document.", body = super::words::Description, example = json!({ "openapi": "3.1.0" }))))]
async fn description() -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")], openapi::text()).into_response()
}

/// The API as a page
///
/// Made for reading offline: no scripts, nothing loaded.
#[utoipa::path(get, path = "/docs", operation_id = "docs", tag = "service", security(()),
    responses((status = 200, description = "A page.", body = String, content_type = "text/html", example = "<!doctype html>…")))]
async fn docs() -> Response {
    page("Berth API", &PAGE)
}

fn written(api: &Value) -> String {
    let mut out = String::from(
        "<h1>Berth API</h1><p>Leases sandboxes to agent runs and keeps the work inside them safe. \
         The same as <a href=\"/openapi.json\">openapi.json</a>.</p><p>First call:</p>\
         <pre>curl -sS localhost:7070/v1/leases -H \"Authorization: Bearer $KEY\" --json '{\"environment\":\"default\",\"holder\":\"me\"}'</pre>",
    );
    for tag in api["tags"].as_array().into_iter().flatten() {
        let name = text(&tag["name"]);
        let _ = write!(out, "<h2 id=\"{0}\">{0}</h2><p>{1}</p>", escape(name), prose(text(&tag["description"])));
        for (path, item) in members(&api["paths"]) {
            for (method, operation) in members(item).filter(|(_, operation)| operation["tags"][0] == name) {
                out.push_str(&operation_of(path, method, operation));
            }
        }
    }
    out.push_str("<h2 id=\"schemas\">schemas</h2>");
    for (name, schema) in members(&api["components"]["schemas"]) {
        out.push_str(&schema_of(name, schema));
    }
    out
}

fn operation_of(path: &str, method: &str, operation: &Value) -> String {
    let mut out = format!(
        "<details id=\"{}\"><summary><span class=\"method\">{}</span><code>{}</code> {}</summary><p>{}</p>",
        escape(text(&operation["operationId"])),
        method.to_uppercase(),
        escape(path),
        prose(text(&operation["summary"])),
        prose(text(&operation["description"])),
    );
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    out.push_str(&table(parameters.map(|p| {
        (
            format!("<code>{}</code> <span class=\"muted\">{}</span>", escape(text(&p["name"])), escape(text(&p["in"]))),
            prose(text(&p["description"])),
        )
    })));
    for (media_type, content) in members(&operation["requestBody"]["content"]) {
        let _ = write!(out, "<p>Body: {} as <code>{}</code></p>{}", kind(&content["schema"]), escape(media_type), pre(&content["example"]));
    }
    for (status, response) in members(&operation["responses"]) {
        let mut bodies = members(&response["content"]).map(|(_, content)| kind(&content["schema"]));
        let _ =
            write!(out, "<p><strong>{status}</strong> {} {}</p>", bodies.next().unwrap_or_default(), prose(text(&response["description"])));
    }
    out + "</details>"
}

fn schema_of(name: &str, schema: &Value) -> String {
    let rows = members(&schema["properties"]).map(|(field, schema)| {
        let described = prose(text(&schema["description"]));
        (format!("<code>{}</code> <span class=\"muted\">{}</span>", escape(field), kind(schema)), described)
    });
    format!(
        "<details id=\"schema-{0}\"><summary><code>{0}</code></summary><p>{1}</p>{2}{3}</details>",
        escape(name),
        prose(text(&schema["description"])),
        table(rows),
        openapi::example(name).map(|example| pre(&example)).unwrap_or_default()
    )
}

/// A schema in a word, with a link where it has a name.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return format!("<a href=\"#schema-{0}\">{0}</a>", escape(name));
    }
    if let Some(options) = schema["oneOf"].as_array() {
        return options.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::String(one) if one == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(one) => escape(one),
        Value::Array(several) => several.iter().filter_map(Value::as_str).map(escape).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
    }
}

fn table(rows: impl Iterator<Item = (String, String)>) -> String {
    let mut out = String::from("<table>");
    for (left, right) in rows {
        let _ = write!(out, "<tr><td>{left}</td><td>{right}</td></tr>");
    }
    out + "</table>"
}

fn pre(example: &Value) -> String {
    if example.is_null() {
        return String::new();
    }
    format!("<pre>{}</pre>", escape(&serde_json::to_string_pretty(example).unwrap_or_default()))
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, value)| (name.as_str(), value))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
