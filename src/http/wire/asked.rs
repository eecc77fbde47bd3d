//! What is asked of leases.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{check_metadata, check_scope, metadata_or_empty, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::http::extract::Fence;
use crate::model::lease::{Access, Disposition, OnSameHolder, OnUnavailable, Outcome, Policy, Save};
use crate::model::scope::Scope;
use crate::ops::input::{Acquire, Recover, ReleaseRequest, Renew, Waiting};

/// What to put into the workspace.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreRules {
    /// The revision to put back. One of another sandbox of the organization starts a fork; absent, the current one is used.
    pub checkpoint_id: Option<Uuid>,
    /// What to do when it cannot be had.
    #[schema(value_type = Option<words::OnUnavailable>)]
    pub on_unavailable: Option<OnUnavailable>,
}

/// Asks for a lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseAcquire {
    /// Id or name of the environment.
    #[schema(min_length = 1, max_length = 200)]
    pub environment: String,
    /// The caller's run: the same holder gets its lease again.
    #[schema(min_length = 1, max_length = 200)]
    pub holder: String,
    /// The caller's own name for the sandbox. Without one the sandbox is anonymous: new, and never reused.
    #[schema(value_type = Option<words::Scope>)]
    pub scope: Option<Scope>,
    /// `read_write` when absent.
    #[schema(value_type = Option<words::Access>)]
    pub access: Option<Access>,
    /// Seconds until the lease expires unless renewed; the environment's default when absent.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    pub ttl_seconds: Option<i64>,
    /// The environment's default when absent, else `reuse_by_environment` with a scope and `ephemeral` without.
    #[schema(value_type = Option<words::Policy>)]
    pub policy: Option<Policy>,
    /// What drives the run; part of what makes an instance reusable.
    #[schema(min_length = 1, max_length = 200)]
    pub harness: Option<String>,
    /// `attach` when absent.
    #[schema(value_type = Option<words::OnSameHolder>)]
    pub on_same_holder: Option<OnSameHolder>,
    /// When the run would like the provider to end the instance at the latest; forwarded, never echoed as fact.
    #[schema(value_type = Option<words::Timestamp>)]
    pub requested_expires_at: Option<Time>,
    /// Fail unless the provider attests an expiry.
    pub require_provider_expiry: Option<bool>,
    /// How long to wait for another holder, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
    /// What to put into the workspace.
    pub restore: Option<RestoreRules>,
    /// Consent to lose unsaved work that stands in the way.
    pub discard_workspace: Option<bool>,
    /// Anything the caller wants to find again.
    #[schema(value_type = Option<words::Metadata>)]
    pub metadata: Option<Value>,
}

impl Checked for LeaseAcquire {
    fn check(&self, errors: &mut Vec<FieldError>) {
        check_scope(self.scope.as_ref(), errors);
        check_metadata(self.metadata.as_ref(), errors);
    }
}

/// How long a request waits: `wait_seconds` for others, and not at all for providers under `respond-async`.
pub fn waiting(wait_seconds: Option<u64>, respond_async: bool) -> Waiting {
    let others = wait_seconds.map_or(Waiting::default().others, Duration::from_secs);
    Waiting { others, respond_async }
}

impl LeaseAcquire {
    /// What the verb is asked.
    pub fn input(self, respond_async: bool) -> Acquire {
        let restore = self.restore.unwrap_or_default();
        Acquire {
            environment: self.environment,
            holder: self.holder,
            scope: self.scope,
            access: self.access.unwrap_or(Access::ReadWrite),
            ttl_seconds: self.ttl_seconds,
            policy: self.policy,
            harness: self.harness,
            on_same_holder: self.on_same_holder.unwrap_or(OnSameHolder::Attach),
            requested_expires_at: self.requested_expires_at,
            require_provider_expiry: self.require_provider_expiry.unwrap_or(false),
            restore_checkpoint_id: restore.checkpoint_id,
            on_unavailable: restore.on_unavailable,
            discard_workspace: self.discard_workspace.unwrap_or(false),
            metadata: metadata_or_empty(self.metadata),
            waiting: waiting(self.wait_seconds, respond_async),
        }
    }
}

/// Extends a lease.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRenew {
    /// Seconds from now; the remembered ones when absent.
    #[schema(minimum = 1, maximum = 2_147_483_647i64)]
    pub ttl_seconds: Option<i64>,
    /// Also shorten; otherwise a renew never does.
    pub exact: Option<bool>,
}

impl Checked for LeaseRenew {}

impl LeaseRenew {
    /// What the verb is asked.
    pub fn input(self) -> Renew {
        Renew { ttl_seconds: self.ttl_seconds, exact: self.exact.unwrap_or(false) }
    }
}

/// Ends a lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRelease {
    /// How the run went; `succeeded` when absent.
    #[schema(value_type = Option<words::Outcome>)]
    pub outcome: Option<Outcome>,
    /// What becomes of the instance; by the lease's policy when absent.
    #[schema(value_type = Option<words::Disposition>)]
    pub disposition: Option<Disposition>,
    /// How the workspace is saved first; by the environment's checkpoint policy when absent.
    #[schema(value_type = Option<words::Save>)]
    pub checkpoint: Option<Save>,
    /// Consent to lose what cannot be saved.
    pub discard_workspace: Option<bool>,
    /// Kill running commands instead of waiting for them.
    pub cancel_active_work: Option<bool>,
    /// Why, for the history.
    #[schema(max_length = 1000)]
    pub reason: Option<String>,
    /// How long to wait for running operations and captures, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl Checked for LeaseRelease {}

impl LeaseRelease {
    /// What the verb is asked.
    pub fn input(self, respond_async: bool) -> ReleaseRequest {
        ReleaseRequest {
            outcome: self.outcome,
            disposition: self.disposition,
            checkpoint: self.checkpoint,
            discard_workspace: self.discard_workspace.unwrap_or(false),
            cancel_active_work: self.cancel_active_work.unwrap_or(false),
            reason: self.reason,
            waiting: waiting(self.wait_seconds, respond_async),
        }
    }
}

/// Brings a lease whose instance is gone back to life.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRecover {
    /// What to put into the new workspace; the current checkpoint when absent.
    pub restore: Option<RestoreRules>,
    /// How long to wait for others, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl Checked for LeaseRecover {}

impl LeaseRecover {
    /// What the verb is asked.
    pub fn input(self, fence: Fence, respond_async: bool) -> Recover {
        let restore = self.restore.unwrap_or_default();
        Recover {
            carried: fence.carried(),
            restore_checkpoint_id: restore.checkpoint_id,
            on_unavailable: restore.on_unavailable,
            waiting: waiting(self.wait_seconds, respond_async),
        }
    }
}

/// Starts exactly the stopped instance of a lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseResume {
    /// How long to wait for others, 30 when absent.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_seconds: Option<u64>,
}

impl Checked for LeaseResume {}
