//! `GET /problems/{code}`: what a code means and what to do, for a person with a problem.

use axum::Json;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::catalogue::entry;
use super::extract::Named;
use super::html::{escape, page, prose};
use super::problem::Problem;
use crate::error::Code;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(explain))
}

/// What an error code means and what to do.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemType {
    /// As a problem's `type` names it.
    #[serde(rename = "type")]
    pub type_: String,
    /// As a problem's `code` names it.
    pub code: String,
    /// A short headline.
    pub title: String,
    /// The one HTTP status.
    pub status: u16,
    /// Whether the identical request may succeed later.
    pub retryable: bool,
    /// What it means.
    pub meaning: String,
    /// What to do about it.
    pub advice: String,
}

/// Explain an error code
///
/// As a page, as text or as JSON, by `Accept`.
#[utoipa::path(get, path = "/problems/{code}", operation_id = "problem_explain", tag = "service", security(()),
    params(("code" = String, Path, description = "The code.", example = "lease_conflict")),
    responses((status = 200, description = "What it means and what to do.", content(
        (ProblemType = "application/json"),
        (String = "text/html", example = "<!doctype html>…"),
        (String = "text/plain", example = "409 lease_conflict: Another holder has the sandbox")))),
    extensions(("x-error-codes" = json!(["not_found", "not_acceptable"]))))]
async fn explain(Named(code): Named, headers: HeaderMap) -> Answer {
    let known = Code::parse(&code).ok_or_else(|| Problem::new(Code::NotFound, "No such error code."))?;
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let form = chosen(accept, &["text/html", "application/json", "text/plain"]);
    let form = form.ok_or_else(|| Problem::new(Code::NotAcceptable, "This is told as text/html, application/json or text/plain."))?;
    Ok(told(known, form))
}

fn told(code: Code, form: &str) -> Response {
    let (entry, word) = (entry(code), code.as_str());
    let again = if entry.retryable { "Yes, after `Retry-After`." } else { "No." };
    match form {
        "application/json" => Json(ProblemType {
            type_: format!("/problems/{word}"),
            code: word,
            title: entry.title.to_owned(),
            status: entry.status,
            retryable: entry.retryable,
            meaning: entry.meaning.to_owned(),
            advice: entry.advice.to_owned(),
        })
        .into_response(),
        "text/plain" => {
            let text = format!(
                "{} {word}: {}\n\n{}\n{}\nSend the same request again? {again}\n",
                entry.status, entry.title, entry.meaning, entry.advice
            );
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        }
        _ => page(
            entry.title,
            &format!(
                "<p class=\"muted\">{} <code>{word}</code></p><h1>{}</h1><p>{}</p><h2>What to do</h2><p>{}</p>\
                 <h2>Send the same request again?</h2><p>{}</p><p><a href=\"/docs\">The API</a></p>",
                entry.status,
                escape(entry.title),
                prose(entry.meaning),
                prose(entry.advice),
                prose(again)
            ),
        ),
    }
}

/// The form that `Accept` likes best; among equals the first offered. `None` when it likes none.
fn chosen<'a>(accept: &str, offered: &[&'a str]) -> Option<&'a str> {
    let liking = |form: &str| {
        let family = form.split('/').next().unwrap_or_default();
        let ranges = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next()?;
            let closeness = [("*/*".to_owned(), 1), (format!("{family}/*"), 2), (form.to_owned(), 3)];
            let closeness = closeness.into_iter().find(|(pattern, _)| pattern.eq_ignore_ascii_case(name))?.1;
            let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok())?;
            Some((closeness, quality))
        });
        ranges.max_by_key(|(closeness, _)| *closeness).map_or(0.0, |(_, quality)| quality)
    };
    let mut best = None;
    for form in offered {
        let quality = liking(form);
        if quality > best.map_or(0.0, |(_, so_far)| so_far) {
            best = Some((*form, quality));
        }
    }
    best.map(|(form, _)| form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_range_decides_and_the_best_liked_form_wins() {
        let offered = ["text/html", "application/json", "text/plain"];
        assert_eq!(chosen("*/*", &offered), Some("text/html"));
        assert_eq!(chosen("application/json", &offered), Some("application/json"));
        assert_eq!(chosen("text/html;q=0.2, text/*;q=0.9, */*;q=0.1", &offered), Some("text/plain"));
        assert_eq!(chosen("image/png", &offered), None);
    }
}
