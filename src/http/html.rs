//! The few bytes of HTML that the pages for people need; nothing is loaded from anywhere.

use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::response::{Html, IntoResponse, Response};

/// Text that is safe inside an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escaped text with its `code spans` set as code.
pub fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in escape(text).split('`').enumerate() {
        match (index, index % 2) {
            (0, _) => {}
            (_, 1) => out.push_str("<code>"),
            _ => out.push_str("</code>"),
        }
        out.push_str(part);
    }
    if text.matches('`').count() % 2 == 1 {
        out.push_str("</code>");
    }
    out
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a2e;background:#fff}
code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f4f8;border-radius:4px}code{padding:.1em .3em}pre{padding:.8rem;overflow:auto}
h1,h2{line-height:1.2}h2{margin-top:2.5rem;border-bottom:1px solid #dde}summary{cursor:pointer;padding:.3rem 0}details{border-bottom:1px solid #eef}
.method{display:inline-block;width:4.5em;font-weight:700}table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.25rem 1rem .25rem 0}
.muted{color:#667}";

/// A page that runs no script and loads nothing.
pub fn page(title: &str, body: &str) -> Response {
    let title = escape(title);
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><body>{body}</body></html>\n"
    );
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    ([(CONTENT_SECURITY_POLICY, policy)], Html(html)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_escaped_and_its_code_is_closed() {
        assert_eq!(prose("a `b<c` d"), "a <code>b&lt;c</code> d");
        assert_eq!(prose("open `code"), "open <code>code</code>");
    }
}
