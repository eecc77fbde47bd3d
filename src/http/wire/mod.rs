//! The shapes of the wire: what callers send and what they are answered, one file per noun.

pub mod asked;
pub mod checkpoint;
pub mod environment;
pub mod environment_patch;
pub mod event;
pub mod exec;
pub mod exec_stream;
pub mod explain;
pub mod file;
pub mod instance;
pub mod key;
pub mod lease;
pub mod maintenance;
pub mod many;
pub mod plugin;
pub mod pointer;
pub mod probe;
pub mod problem;
pub mod retention;
pub mod sandbox;
pub mod secret;
pub mod service;
pub mod sync;
pub mod words;

use crate::error::FieldError;
use crate::model::scope::{self, Scope};
use crate::ops::view;

/// A page of a list, as a named component.
macro_rules! page {
    ($(#[$doc:meta])* $name:ident, $item:ty, $view:ty) => {
        $(#[$doc])*
        #[derive(Debug, serde::Serialize, utoipa::ToSchema)]
        pub struct $name {
            /// At most `limit` of them.
            pub items: Vec<$item>,
            /// Pass it as `cursor` for the next page; null at the end.
            pub next_cursor: Option<String>,
        }

        impl From<crate::ops::view::Page<$view>> for $name {
            fn from(page: crate::ops::view::Page<$view>) -> Self {
                Self { items: page.items.iter().map(<$item>::of).collect(), next_cursor: page.next_cursor }
            }
        }
    };
}
pub(crate) use page;

/// The most bytes of `metadata` as JSON.
const LARGEST_METADATA: usize = 64 * 1024;

/// Adds what a schema cannot say about a scope.
pub fn check_scope(sent: Option<&Scope>, errors: &mut Vec<FieldError>) {
    let problems = sent.map(scope::problems).unwrap_or_default();
    errors.extend(problems.into_iter().map(|(below, message)| FieldError { pointer: format!("/scope{below}"), message }));
}

/// Adds what a schema cannot say about metadata.
pub fn check_metadata(sent: Option<&serde_json::Value>, errors: &mut Vec<FieldError>) {
    if sent.is_some_and(|metadata| metadata.to_string().len() > LARGEST_METADATA) {
        let message = format!("must have at most {LARGEST_METADATA} bytes as JSON");
        errors.push(FieldError { pointer: "/metadata".to_owned(), message });
    }
}

/// Metadata that was not sent is an empty object.
pub fn metadata_or_empty(sent: Option<serde_json::Value>) -> serde_json::Value {
    sent.unwrap_or_else(|| serde_json::json!({}))
}

/// What will happen by itself, and what holds it back.
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
pub struct Next {
    /// In one word, such as `expire`, `idle_drain`, `destroy`, `retry_cleanup`, `none`.
    #[schema(examples("expire"))]
    pub action: String,
    /// When, if that is known.
    #[schema(value_type = Option<words::Timestamp>)]
    pub at: Option<crate::clock::Time>,
    /// What must end first.
    pub blocked_by: Vec<String>,
}

impl From<view::Next> for Next {
    fn from(next: view::Next) -> Self {
        Self { action: next.action, at: next.at, blocked_by: next.blocked_by }
    }
}
