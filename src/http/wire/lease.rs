//! Leases as they are answered; `asked` is what is asked of them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::instance::Cleanup;
use super::{Next, page, words};
use crate::clock::Time;
use crate::model::lease::{Access, Acquisition, Policy, RestoredFrom, Status};
use crate::model::scope::Scope;
use crate::ops::view::LeaseView;

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

page!(
    /// A page of leases, newest first.
    LeasePage,
    Lease,
    LeaseView
);
