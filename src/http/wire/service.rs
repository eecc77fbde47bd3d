//! The service itself on the wire: who asks, what works, keys, organizations, providers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::words;
use crate::clock::Time;
use crate::http::body::Checked;
use crate::model::key::{self, ApiKey};
use crate::ops::view::ProviderView;

/// That the process lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    #[schema(value_type = words::LiveStatus)]
    pub status: &'static str,
}

/// That the service can do its work.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    /// `ready`; else the answer is a problem.
    #[schema(value_type = words::ReadyStatus)]
    pub status: &'static str,
}

/// Who the request was made by.
#[derive(Debug, Serialize, ToSchema)]
pub struct WhoAmI {
    /// The tenant.
    pub organization_id: Uuid,
    /// The tenant's name.
    pub organization_name: String,
    /// What the request was made with.
    #[schema(value_type = words::CredentialKind)]
    pub credential: &'static str,
    /// The key's id, for an API key.
    pub api_key_id: Option<Uuid>,
    /// The key's name, for an API key.
    pub name: Option<String>,
    /// What the key may do; empty for a lease token, which works on its own lease only.
    #[schema(value_type = Vec<words::GrantedScope>)]
    pub scopes: Vec<key::Scope>,
    /// When the key expires.
    #[schema(value_type = Option<words::Timestamp>)]
    pub expires_at: Option<Time>,
    /// The lease, for a lease token.
    pub lease_id: Option<Uuid>,
}

/// Makes an organization.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationCreate {
    /// Unique in the deployment.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub name: String,
}

impl Checked for OrganizationCreate {}

/// A tenant.
#[derive(Debug, Serialize, ToSchema)]
pub struct Organization {
    /// The organization's id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// When it was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
}

/// Makes an API key.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyCreate {
    /// For people.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub name: String,
    /// What it may do; none that its maker lacks.
    #[schema(value_type = Vec<words::KeyScope>, min_items = 1, max_items = 4)]
    pub scopes: Vec<key::Scope>,
    /// When it stops working; never when absent.
    #[schema(value_type = Option<words::Timestamp>)]
    pub expires_at: Option<Time>,
    /// The organization it is for; an operator's key only. The maker's own when absent.
    pub organization_id: Option<Uuid>,
}

impl Checked for ApiKeyCreate {}

/// An API key with its secret, shown this once and never stored.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApiKeySecret {
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
    /// The key itself; keep it safe. Null when the answer is a replay, since it is stored nowhere.
    pub secret: Option<String>,
}

impl ApiKeySecret {
    /// The key with its secret.
    pub fn of(key: ApiKey, secret: Option<String>) -> Self {
        Self {
            id: key.id,
            organization_id: key.organization_id,
            name: key.name,
            scopes: key.scopes,
            expires_at: key.expires_at,
            created_at: key.created_at,
            secret,
        }
    }
}

/// One of the nine things a sandbox may or may not be able to do.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProviderCapability {
    /// Which.
    pub key: String,
    /// Whether this provider's sandboxes can.
    pub granted: bool,
}

/// Who makes, finds, runs and ends instances.
#[derive(Debug, Serialize, ToSchema)]
pub struct Provider {
    /// Its name in environments.
    pub kind: String,
    /// JSON Schema of an environment's `config`.
    #[schema(value_type = words::ConfigSchema)]
    pub config_schema: Value,
    /// The nine, in a fixed order.
    pub capabilities: Vec<ProviderCapability>,
    /// What stands between a command and the machine.
    #[schema(value_type = words::IsolationKind)]
    pub isolation: String,
    /// Whether the provider itself refuses a lower generation; else Berth's rows alone fence.
    pub fencing: bool,
    /// Whether it answers now.
    pub ready: bool,
    /// Why it does not.
    pub not_ready_reason: Option<String>,
}

impl From<ProviderView> for Provider {
    fn from(view: ProviderView) -> Self {
        Self {
            kind: view.kind,
            config_schema: view.config_schema,
            capabilities: view.capabilities.into_iter().map(|(key, granted)| ProviderCapability { key, granted }).collect(),
            isolation: view.isolation,
            fencing: view.fencing,
            ready: view.ready,
            not_ready_reason: view.not_ready_reason,
        }
    }
}

/// The providers of this deployment.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProviderPage {
    /// All of them.
    pub items: Vec<Provider>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
}
