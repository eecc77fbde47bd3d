//! Instances on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{page, words};
use crate::clock::Time;
use crate::http::body::Checked;
use crate::model::instance::{self, Status};
use crate::model::lease;

/// A person's word on an instance.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InstanceWord {
    /// Why, for the history.
    #[schema(min_length = 1, max_length = 1000)]
    pub reason: String,
}

impl Checked for InstanceWord {}

/// How the teardown of an instance goes.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cleanup {
    /// In one word.
    #[schema(value_type = words::CleanupStatus)]
    pub status: &'static str,
    /// What the lease will be when the teardown is confirmed.
    #[schema(value_type = Option<words::LeaseStatus>)]
    pub ends_as: Option<lease::Status>,
    /// How often it was tried.
    pub attempts: i64,
    /// When it is tried next.
    #[schema(value_type = Option<words::Timestamp>)]
    pub next_attempt_at: Option<Time>,
    /// What kind of error the last attempt met.
    pub last_error_kind: Option<String>,
}

impl Cleanup {
    /// The teardown of this instance; `failed` means that the last attempt failed and another one is due.
    pub fn of(instance: Option<&instance::Glance>, ends_as: Option<lease::Status>) -> Self {
        let status = match instance {
            Some(i) if i.is_quarantined() => "quarantined",
            Some(i) if i.status == Status::PendingCleanup && i.cleanup_error_kind.is_some() => "failed",
            Some(i) if i.status == Status::PendingCleanup => "pending",
            Some(i) if i.status == Status::Destroyed => "succeeded",
            _ => "none",
        };
        Self {
            status,
            ends_as,
            attempts: instance.map_or(0, |i| i.cleanup_attempts),
            next_attempt_at: instance.and_then(|i| i.cleanup_next_at),
            last_error_kind: instance.and_then(|i| i.cleanup_error_kind.clone()),
        }
    }
}

/// One physical incarnation of a sandbox: a row of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub struct Instance {
    /// The instance's id.
    pub id: Uuid,
    /// The logical sandbox.
    pub sandbox_id: Uuid,
    /// The environment it was made from.
    pub environment_id: Uuid,
    /// The incarnation.
    pub generation: i64,
    /// Who made it.
    pub provider: String,
    /// The provider's name of it, once known.
    pub provider_ref: Option<String>,
    /// Where it stands.
    #[schema(value_type = words::InstanceStatus)]
    pub status: Status,
    /// Why it was retired.
    pub retire_reason: Option<String>,
    /// How its teardown goes.
    pub cleanup: Cleanup,
    /// When the provider will end it, if it attests that.
    #[schema(value_type = Option<words::Timestamp>)]
    pub provider_expires_at: Option<Time>,
    /// When the provider was last looked at.
    #[schema(value_type = Option<words::Timestamp>)]
    pub observed_at: Option<Time>,
    /// When its row was made, before the provider was asked.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When it first ran.
    #[schema(value_type = Option<words::Timestamp>)]
    pub running_at: Option<Time>,
    /// When it was last stopped.
    #[schema(value_type = Option<words::Timestamp>)]
    pub stopped_at: Option<Time>,
    /// When its end was decided, or its loss proven.
    #[schema(value_type = Option<words::Timestamp>)]
    pub retired_at: Option<Time>,
    /// When the provider confirmed that it is gone.
    #[schema(value_type = Option<words::Timestamp>)]
    pub destroyed_at: Option<Time>,
}

impl Instance {
    /// The instance as its reader sees it.
    pub fn of(row: &instance::Instance) -> Self {
        Self {
            id: row.id,
            sandbox_id: row.sandbox_id,
            environment_id: row.environment_id,
            generation: row.generation,
            provider: row.provider.clone(),
            provider_ref: row.provider_ref.clone(),
            status: row.status,
            retire_reason: row.retire_reason.clone(),
            cleanup: Cleanup::of(Some(&row.glance()), None),
            provider_expires_at: row.provider_expires_at,
            observed_at: row.observed_at,
            created_at: row.created_at,
            running_at: row.running_at,
            stopped_at: row.stopped_at,
            retired_at: row.retired_at,
            destroyed_at: row.destroyed_at,
        }
    }
}

page!(
    /// A page of instances, newest first.
    InstancePage,
    Instance,
    instance::Instance
);
