//! The change of an environment on the wire: every member may be left out, and null means its default.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::environment::{CheckpointRules, Environment, EnvironmentQuotas, WorkspaceRules};
use super::words;
use crate::model::environment;

/// Changes an environment: members replace, null brings the default back, objects are merged (RFC 7396). What comes out is checked
/// as a new environment would be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what is merged as JSON")]
pub struct EnvironmentPatch {
    /// Unique in the organization.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", nullable = false)]
    name: Option<String>,
    /// A provider of this deployment, see `GET /v1/providers`.
    #[schema(min_length = 1, max_length = 63, nullable = false)]
    provider: Option<String>,
    /// Merged into the present configuration; the whole is checked against the provider's `config_schema`.
    #[schema(value_type = Option<words::ProviderConfig>, nullable = false)]
    config: Option<Value>,
    /// Default policy of leases with a scope.
    #[schema(value_type = Option<words::Policy>)]
    policy: Option<String>,
    /// Default time to live of a lease.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    ttl_seconds: Option<i64>,
    /// The most a grant may ask for.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    max_ttl_seconds: Option<i64>,
    /// After how long without lease and process an instance is idle.
    #[schema(minimum = 0, maximum = 2_147_483_647i64)]
    idle_timeout_seconds: Option<i64>,
    /// What an idle instance becomes.
    #[schema(value_type = Option<words::OnIdle>)]
    on_idle: Option<String>,
    /// How long an unused stopped instance is kept.
    #[schema(minimum = 0, maximum = 2_147_483_647i64)]
    retain_seconds: Option<i64>,
    /// When and how checkpoints are taken and kept.
    checkpoint_policy: Option<CheckpointRules>,
    /// Where the files are to be.
    workspace: Option<WorkspaceRules>,
    /// How much it may use.
    quotas: Option<EnvironmentQuotas>,
    /// Merged into the present metadata.
    #[schema(value_type = Option<words::Metadata>)]
    metadata: Option<Value>,
}

/// What an environment would be asked for as, to be patched: its changeable members alone.
pub fn as_asked(row: &environment::Environment) -> Value {
    let mut members = serde_json::json!(Environment::of(row));
    if let Some(members) = members.as_object_mut() {
        for fixed in ["id", "version", "archived_at", "created_at", "updated_at"] {
            members.remove(fixed);
        }
    }
    members
}
