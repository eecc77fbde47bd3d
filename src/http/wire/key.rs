//! Organizations and API keys on the wire, as they are listed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::service::Organization;
use super::{page, words};
use crate::clock::Time;
use crate::http::body::Checked;
use crate::model::key;
use crate::ops::view::OrganizationRow;

/// An API key without its secret, which was shown once.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApiKey {
    /// The key's id.
    pub id: Uuid,
    /// The tenant it belongs to.
    pub organization_id: Uuid,
    /// For people.
    pub name: String,
    /// What it may do.
    #[schema(value_type = Vec<words::GrantedScope>)]
    pub scopes: Vec<key::Scope>,
    /// When it stops working.
    #[schema(value_type = Option<words::Timestamp>)]
    pub expires_at: Option<Time>,
    /// When it was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
}

impl ApiKey {
    /// The key as its reader sees it.
    pub fn of(key: &key::ApiKey) -> Self {
        Self {
            id: key.id,
            organization_id: key.organization_id,
            name: key.name.clone(),
            scopes: key.scopes.clone(),
            expires_at: key.expires_at,
            created_at: key.created_at,
        }
    }
}

page!(
    /// A page of working keys, newest first.
    ApiKeyPage,
    ApiKey,
    key::ApiKey
);

/// Replaces a key by a new one with the same name, scopes and end.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyRotate {
    /// How long the old key goes on working; 3600 when absent, 0 ends it at once.
    #[schema(minimum = 0, maximum = 2_592_000)]
    pub overlap_seconds: Option<u64>,
}

impl Checked for ApiKeyRotate {}

impl Organization {
    /// The organization as its reader sees it.
    pub fn of(row: &OrganizationRow) -> Self {
        Self { id: row.id, name: row.name.clone(), created_at: row.created_at }
    }
}

page!(
    /// A page of organizations, newest first.
    OrganizationPage,
    Organization,
    OrganizationRow
);
