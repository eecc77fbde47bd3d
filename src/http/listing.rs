//! Directories inside the sandbox, page by page.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::answer::Answer;
use super::extract::{Authenticated, Id};
use super::problem::Problem;
use super::query::Query;
use super::wire::file::{FileEntry, FilePage};
use crate::error::Code;
use crate::ops::{self, Berth};

/// Entries of a page that names no limit.
const DEFAULT_LIMIT: usize = 20;
/// How much of the filters' hash a cursor carries.
const FILTER_BYTES: usize = 8;

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which directory.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DirectoryListing {
    /// Relative to the workspace, or absolute inside the sandbox; the workspace when absent.
    #[param(min_length = 1, max_length = 4096, example = ".")]
    path: Option<String>,
    /// With everything below it.
    recursive: Option<bool>,
    /// At most this many; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// The `next_cursor` of the page before.
    #[param(max_length = 8000)]
    cursor: Option<String>,
}

impl DirectoryListing {
    fn path(&self) -> &str {
        self.path.as_deref().unwrap_or(".")
    }

    /// A cursor is bound to what is listed: a hash of that, then the last path of the page before.
    fn filter(&self) -> [u8; FILTER_BYTES] {
        let mut filter = [0; FILTER_BYTES];
        let hash = Sha256::new().chain_update([u8::from(self.recursive == Some(true))]).chain_update(self.path()).finalize();
        filter.copy_from_slice(&hash[..FILTER_BYTES]);
        filter
    }

    fn after(&self) -> Result<Option<Vec<u8>>, Problem> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let bytes = URL_SAFE_NO_PAD.decode(cursor).unwrap_or_default();
        match bytes.strip_prefix(&self.filter()) {
            Some(after) if !after.is_empty() => Ok(Some(after.to_vec())),
            _ => Err(Problem::new(Code::InvalidCursor, "The cursor was not made by this listing.")),
        }
    }

    fn cursor(&self, after: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode([&self.filter()[..], after].concat())
    }
}

/// List a directory
///
/// In byte order of the paths. Links are shown and not followed.
#[utoipa::path(get, path = "/v1/leases/{id}/files/list", operation_id = "file_list", tag = "files",
    params(("id" = uuid::Uuid, Path, description = "The lease."), DirectoryListing),
    responses((status = 200, description = "A page of entries.", body = FilePage)),
    extensions(("x-error-codes" = json!([
        "invalid_path", "invalid_cursor", "file_not_found", "not_a_directory", "lease_not_active", "lease_expired", "lease_taken_over",
        "instance_lost", "instance_not_running", "transition_in_progress", "resume_failed", "provider_error", "provider_unavailable",
        "provider_timeout"
    ]))))]
async fn list(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    Query(listing): Query<DirectoryListing>,
) -> Answer<Json<FilePage>> {
    let (recursive, limit) = (listing.recursive.unwrap_or(false), listing.limit.unwrap_or(DEFAULT_LIMIT));
    let (entries, next) = ops::files::list(&berth, &caller, id, listing.path(), recursive, listing.after()?, limit).await?;
    let items = entries.into_iter().map(FileEntry::from).collect();
    Ok(Json(FilePage { items, next_cursor: next.map(|after| listing.cursor(&after)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(path: &str, cursor: Option<String>) -> DirectoryListing {
        DirectoryListing { path: Some(path.to_owned()), recursive: None, limit: None, cursor }
    }

    #[test]
    fn a_cursor_is_bound_to_its_listing() {
        let cursor = listing("a", None).cursor(b"\xffname");
        assert_eq!(listing("a", Some(cursor.clone())).after().unwrap(), Some(b"\xffname".to_vec()));
        assert_eq!(listing("b", Some(cursor)).after().unwrap_err().0.code, Code::InvalidCursor);
        assert!(listing("a", Some("garbage".to_owned())).after().is_err());
    }
}
