//! Leases on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::instance::Cleanup;
use super::{Next, check_metadata, check_scope, metadata_or_empty, page, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::http::extract::Fence;
use crate::model::lease::{Access, Acquisition, Disposition, OnSameHolder, OnUnavailable, Outcome, Policy, RestoredFrom, Save, Status};
use crate::model::scope::Scope;
use crate::ops::input::{Acquire, Recover, ReleaseRequest, Renew, Waiting};
use crate::ops::view::LeaseView;

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

/// What was put back into the workspace, and how far that was verified.
#[derive(Debug, Serialize, ToSchema)]
pub struct RestoredWorkspace {
    /// The checkpoint.
    pub checkpoint_id: Uuid,
    /// Its revision.
    pub workspace_revision: String,
    /// Its kind.
    #[schema(value_type = words::CheckpointKind)]
    pub kind: crate::model::checkpoint::Kind,
    /// `content`: hash, size and tree digest are equal. `receipt`: the provider's own word.
    pub verification: String,
    /// Entries in the tree.
    pub entries: i64,
    /// Bytes of file content.
    pub bytes: i64,
}

impl RestoredWorkspace {
    fn of(from: &RestoredFrom) -> Self {
        Self {
            checkpoint_id: from.checkpoint_id,
            workspace_revision: from.workspace_revision.clone(),
            kind: from.kind,
            verification: from.verification.clone(),
            entries: from.entries,
            bytes: from.bytes,
        }
    }
}

/// How the acquire was answered.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseAcquisition {
    /// How the lease came by its instance.
    #[schema(value_type = words::AcquisitionOutcome)]
    pub outcome: crate::model::lease::How,
    /// Why the former instance was not used, for a replacement.
    pub reason: Option<String>,
    /// The instance this one follows.
    pub previous_instance_id: Option<Uuid>,
    /// What is in the workspace, if it was put back.
    pub restored_from: Option<RestoredWorkspace>,
}

impl LeaseAcquisition {
    fn of(acquisition: &Acquisition) -> Self {
        Self {
            outcome: acquisition.outcome,
            reason: acquisition.reason.clone(),
            previous_instance_id: acquisition.previous_instance_id,
            restored_from: acquisition.restored_from.as_ref().map(RestoredWorkspace::of),
        }
    }
}

/// Where the files are.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseWorkspace {
    /// The absolute path inside the sandbox; null until the instance is ready.
    pub path: Option<String>,
}

/// A holder's time-bounded, fenced claim on a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct Lease {
    /// The lease's id.
    pub id: Uuid,
    /// The logical sandbox; it outlives lease and instance.
    pub sandbox_id: Uuid,
    /// The instance behind it; null while none was made.
    pub instance_id: Option<Uuid>,
    /// The incarnation. Send it as `Berth-Generation` with every write.
    pub generation: i64,
    /// Counts take-overs of this lease.
    pub epoch: i64,
    /// The environment's id.
    pub environment_id: Uuid,
    /// The environment's name.
    pub environment_name: String,
    /// The environment's provider.
    pub provider: String,
    /// Where the lease stands.
    #[schema(value_type = words::LeaseStatus)]
    pub status: Status,
    /// What happens to the instance at the end, as granted.
    #[schema(value_type = words::GrantedPolicy)]
    pub policy: Policy,
    /// What the holder may do.
    #[schema(value_type = words::GrantedAccess)]
    pub access: Access,
    /// The caller's run.
    pub holder: String,
    /// What drives the run.
    pub harness: Option<String>,
    /// The sandbox's scope; null for an anonymous one.
    #[schema(value_type = Option<words::Scope>)]
    pub scope: Option<Scope>,
    /// Seconds a renew without its own extends.
    pub ttl_seconds: i64,
    /// When it expires unless renewed; null while pending.
    #[schema(value_type = Option<words::Timestamp>)]
    pub expires_at: Option<Time>,
    /// When it expires however often it is renewed.
    #[schema(value_type = Option<words::Timestamp>)]
    pub max_expires_at: Option<Time>,
    /// When the provider will end the instance, if it attests that.
    #[schema(value_type = Option<words::Timestamp>)]
    pub provider_expires_at: Option<Time>,
    /// Until when a retained instance is kept.
    #[schema(value_type = Option<words::Timestamp>)]
    pub retain_until: Option<Time>,
    /// When it became active.
    #[schema(value_type = Option<words::Timestamp>)]
    pub acquired_at: Option<Time>,
    /// When it was renewed last.
    #[schema(value_type = Option<words::Timestamp>)]
    pub renewed_at: Option<Time>,
    /// When it ended.
    #[schema(value_type = Option<words::Timestamp>)]
    pub released_at: Option<Time>,
    /// The service's time now; compare `expires_at` with it and not with your own clock.
    #[schema(value_type = words::Timestamp)]
    pub server_time: Time,
    /// How the acquire was answered; null while pending.
    pub acquisition: Option<LeaseAcquisition>,
    /// How the teardown of the instance goes.
    pub cleanup: Cleanup,
    /// Why it failed.
    pub failure_reason: Option<String>,
    /// Where the files are.
    pub workspace: LeaseWorkspace,
    /// What will happen by itself.
    pub next: Next,
    /// Anything the caller wanted to find again.
    #[schema(value_type = words::Metadata)]
    pub metadata: Value,
    /// A lease token: the credential for one run in one sandbox. Answered by acquire, renew, recover and resume; else null.
    pub token: Option<String>,
    /// When the row was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When it last changed.
    #[schema(value_type = words::Timestamp)]
    pub updated_at: Time,
}

impl Lease {
    /// The lease as its reader sees it.
    pub fn of(view: &LeaseView) -> Self {
        let (lease, instance) = (&view.lease, view.instance.as_ref());
        Self {
            id: lease.id,
            sandbox_id: lease.sandbox_id,
            instance_id: lease.instance_id,
            generation: lease.generation,
            epoch: lease.epoch,
            environment_id: lease.environment_id,
            environment_name: view.environment_name.clone(),
            provider: view.provider.clone(),
            status: lease.status,
            policy: lease.policy,
            access: lease.access,
            holder: lease.holder.clone(),
            harness: lease.harness.clone(),
            scope: view.scope.clone(),
            ttl_seconds: lease.ttl_ms / 1000,
            expires_at: lease.expires_at,
            max_expires_at: lease.max_expires_at,
            provider_expires_at: instance.and_then(|i| i.provider_expires_at),
            retain_until: lease.retain_until,
            acquired_at: lease.acquired_at,
            renewed_at: lease.renewed_at,
            released_at: lease.released_at,
            server_time: view.server_time,
            acquisition: lease.acquisition.as_ref().map(|a| LeaseAcquisition::of(a)),
            cleanup: Cleanup::of(instance, lease.ends_as),
            failure_reason: lease.failure_reason.clone(),
            workspace: LeaseWorkspace { path: instance.and_then(|i| i.workspace_path.clone()) },
            next: view.next.clone().into(),
            metadata: lease.metadata.0.clone(),
            token: view.token.clone(),
            created_at: lease.created_at,
            updated_at: lease.updated_at,
        }
    }
}

page!(LeasePage, Lease, LeaseView);
