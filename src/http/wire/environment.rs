//! Environments on the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{check_metadata, metadata_or_empty, page, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::model::environment::{self, CheckpointPolicy, OnIdle};
use crate::model::lease::{Policy, Save};
use crate::ops::input::NewEnvironment;

/// When and how checkpoints are taken and kept.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRules {
    /// At a release that names none; `auto` for scoped leases, `none` for anonymous ones.
    #[schema(value_type = Option<words::Save>)]
    pub on_release: Option<Save>,
    /// At an expiry; the same defaults.
    #[schema(value_type = Option<words::Save>)]
    pub on_expiry: Option<Save>,
    /// How many revisions are kept; 10 when absent.
    #[schema(minimum = 2, maximum = 100_000)]
    pub keep_last: Option<i64>,
    /// A revision younger than this is never collected.
    #[schema(minimum = 0, maximum = 2_147_483_647i64)]
    pub keep_for_seconds: Option<i64>,
    /// Replacement and destroy need a verified portable checkpoint that is not behind.
    pub required: Option<bool>,
    /// Paths left out of captures.
    #[schema(max_items = 1000)]
    pub exclude: Option<Vec<String>>,
}

/// Where the files of an environment's sandboxes are to be.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRules {
    /// An absolute path inside the sandbox; the provider decides when absent.
    #[schema(min_length = 1, max_length = 4096, examples("/workspace"))]
    pub path: Option<String>,
}

/// How much an environment may use.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentQuotas {
    /// How many instances may live at once; unlimited when absent.
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_live_instances: Option<i64>,
}

/// Makes an environment: a named provider configuration with the defaults of its leases.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentCreate {
    /// Unique in the organization.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub name: String,
    /// A provider of this deployment, see `GET /v1/providers`.
    #[schema(min_length = 1, max_length = 63)]
    pub provider: String,
    /// Checked against the provider's `config_schema`.
    #[schema(value_type = words::ProviderConfig)]
    pub config: Value,
    /// Default policy of leases with a scope.
    #[schema(value_type = Option<words::Policy>)]
    pub policy: Option<Policy>,
    /// Default time to live of a lease; 3600 when absent.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    pub ttl_seconds: Option<i64>,
    /// The most a grant may ask for; 86400 when absent.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    pub max_ttl_seconds: Option<i64>,
    /// After how long without lease and process an instance is idle; 300 when absent.
    #[schema(minimum = 0, maximum = 2_147_483_647i64)]
    pub idle_timeout_seconds: Option<i64>,
    /// What an idle instance becomes; `stop` when absent.
    #[schema(value_type = Option<words::OnIdle>)]
    pub on_idle: Option<OnIdle>,
    /// How long an unused stopped instance is kept; 604800 when absent.
    #[schema(minimum = 0, maximum = 2_147_483_647i64)]
    pub retain_seconds: Option<i64>,
    /// When and how checkpoints are taken and kept.
    pub checkpoint_policy: Option<CheckpointRules>,
    /// Where the files are to be.
    pub workspace: Option<WorkspaceRules>,
    /// How much it may use.
    pub quotas: Option<EnvironmentQuotas>,
    /// Anything the caller wants to find again.
    #[schema(value_type = Option<words::Metadata>)]
    pub metadata: Option<Value>,
}

impl Checked for EnvironmentCreate {
    fn check(&self, errors: &mut Vec<FieldError>) {
        check_metadata(self.metadata.as_ref(), errors);
        if let (Some(ttl), Some(most)) = (self.ttl_seconds, self.max_ttl_seconds)
            && ttl > most
        {
            errors.push(FieldError { pointer: "/ttl_seconds".to_owned(), message: "is more than max_ttl_seconds".to_owned() });
        }
        if self.workspace.iter().filter_map(|w| w.path.as_deref()).any(|path| !path.starts_with('/') || path.contains('\0')) {
            errors.push(FieldError { pointer: "/workspace/path".to_owned(), message: "must be an absolute path".to_owned() });
        }
    }
}

impl EnvironmentCreate {
    /// What the verb is asked.
    pub fn input(self) -> NewEnvironment {
        let rules = self.checkpoint_policy.unwrap_or_default();
        NewEnvironment {
            name: self.name,
            provider: self.provider,
            config: self.config,
            policy: self.policy,
            ttl_seconds: self.ttl_seconds,
            max_ttl_seconds: self.max_ttl_seconds,
            idle_timeout_seconds: self.idle_timeout_seconds,
            on_idle: self.on_idle,
            retain_seconds: self.retain_seconds,
            checkpoint_policy: CheckpointPolicy {
                on_release: rules.on_release,
                on_expiry: rules.on_expiry,
                keep_last: rules.keep_last,
                keep_for_seconds: rules.keep_for_seconds,
                required: rules.required,
                exclude: rules.exclude,
            },
            workspace_path: self.workspace.and_then(|w| w.path),
            max_live_instances: self.quotas.and_then(|q| q.max_live_instances),
            metadata: metadata_or_empty(self.metadata),
        }
    }
}

/// When and how checkpoints are taken and kept, as set; null means the default.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnvironmentCheckpointPolicy {
    /// At a release that names none.
    #[schema(value_type = Option<words::SavePolicy>)]
    pub on_release: Option<Save>,
    /// At an expiry.
    #[schema(value_type = Option<words::SavePolicy>)]
    pub on_expiry: Option<Save>,
    /// How many revisions are kept.
    pub keep_last: Option<i64>,
    /// A revision younger than this is never collected.
    pub keep_for_seconds: Option<i64>,
    /// Whether replacement and destroy need a verified portable checkpoint.
    pub required: Option<bool>,
    /// Paths left out of captures.
    pub exclude: Option<Vec<String>>,
}

/// Where the files of an environment's sandboxes are.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnvironmentWorkspace {
    /// The configured path; null when the provider decides.
    pub path: Option<String>,
}

/// How much an environment may use.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnvironmentLimits {
    /// How many instances may live at once; null for no limit.
    pub max_live_instances: Option<i64>,
}

/// A named, versioned provider configuration with the defaults of its leases.
#[derive(Debug, Serialize, ToSchema)]
pub struct Environment {
    /// The environment's id.
    pub id: Uuid,
    /// Unique in the organization.
    pub name: String,
    /// Who makes its instances.
    pub provider: String,
    /// The provider's configuration.
    #[schema(value_type = words::ProviderConfig)]
    pub config: Value,
    /// Default policy of leases with a scope.
    #[schema(value_type = Option<words::GrantedPolicy>)]
    pub policy: Option<Policy>,
    /// Default time to live of a lease.
    pub ttl_seconds: i64,
    /// The most a grant may ask for.
    pub max_ttl_seconds: i64,
    /// After how long an instance is idle.
    pub idle_timeout_seconds: i64,
    /// What an idle instance becomes.
    #[schema(value_type = words::IdleAction)]
    pub on_idle: OnIdle,
    /// How long an unused stopped instance is kept.
    pub retain_seconds: i64,
    /// When and how checkpoints are taken and kept.
    pub checkpoint_policy: EnvironmentCheckpointPolicy,
    /// Where the files are.
    pub workspace: EnvironmentWorkspace,
    /// How much it may use.
    pub quotas: EnvironmentLimits,
    /// Anything the caller wanted to find again.
    #[schema(value_type = words::Metadata)]
    pub metadata: Value,
    /// Counts its changes.
    pub version: i64,
    /// When it was archived; nothing new starts in it since.
    #[schema(value_type = Option<words::Timestamp>)]
    pub archived_at: Option<Time>,
    /// When it was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When it last changed.
    #[schema(value_type = words::Timestamp)]
    pub updated_at: Time,
}

impl Environment {
    /// The environment as its reader sees it.
    pub fn of(row: &environment::Environment) -> Self {
        let rules = &row.checkpoint_policy.0;
        Self {
            id: row.id,
            name: row.name.clone(),
            provider: row.provider.clone(),
            config: row.config.0.clone(),
            policy: row.policy,
            ttl_seconds: row.ttl_ms / 1000,
            max_ttl_seconds: row.max_ttl_ms / 1000,
            idle_timeout_seconds: row.idle_timeout_ms / 1000,
            on_idle: row.on_idle,
            retain_seconds: row.retain_ms / 1000,
            checkpoint_policy: EnvironmentCheckpointPolicy {
                on_release: rules.on_release,
                on_expiry: rules.on_expiry,
                keep_last: rules.keep_last,
                keep_for_seconds: rules.keep_for_seconds,
                required: rules.required,
                exclude: rules.exclude.clone(),
            },
            workspace: EnvironmentWorkspace { path: row.workspace_path.clone() },
            quotas: EnvironmentLimits { max_live_instances: row.max_live_instances },
            metadata: row.metadata.0.clone(),
            version: row.version,
            archived_at: row.archived_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

page!(
    /// A page of environments, newest first.
    EnvironmentPage,
    Environment,
    environment::Environment
);
