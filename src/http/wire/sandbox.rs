//! Sandboxes on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::checkpoint::Checkpoint;
use super::instance::Instance;
use super::{Next, check_scope, page, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::model::scope::Scope;
use crate::ops::view::SandboxView;

/// Names a sandbox, so that it exists.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxEnsure {
    /// Id or name of the environment.
    #[schema(min_length = 1, max_length = 200)]
    pub environment: String,
    /// The caller's own name for the sandbox.
    #[schema(value_type = words::Scope)]
    pub scope: Scope,
}

impl Checked for SandboxEnsure {
    fn check(&self, errors: &mut Vec<FieldError>) {
        check_scope(Some(&self.scope), errors);
    }
}

/// A logical sandbox: the durable identity that survives the loss of everything physical.
#[derive(Debug, Serialize, ToSchema)]
pub struct Sandbox {
    /// The sandbox's id.
    pub id: Uuid,
    /// The environment's id.
    pub environment_id: Uuid,
    /// The environment's name.
    pub environment_name: String,
    /// The environment's provider.
    pub provider: String,
    /// The caller's own name for it; null for an anonymous one.
    #[schema(value_type = Option<words::Scope>)]
    pub scope: Option<Scope>,
    /// The incarnation.
    pub generation: i64,
    /// Counts admitted writes, over its whole life.
    pub workspace_seq: i64,
    /// Whether the live instance holds work that the current checkpoint does not.
    pub dirty: bool,
    /// Whether the pointer was moved away from what the live instance holds.
    pub diverged: bool,
    /// The current instance; null when there is none.
    pub instance: Option<Instance>,
    /// What it would be restored from; null when there is none.
    pub current_checkpoint: Option<Checkpoint>,
    /// Its live leases.
    pub lease_ids: Vec<Uuid>,
    /// What will happen by itself.
    pub next: Next,
    /// When it was made.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When it last changed.
    #[schema(value_type = words::Timestamp)]
    pub updated_at: Time,
}

impl Sandbox {
    /// The sandbox as its reader sees it.
    pub fn of(view: &SandboxView) -> Self {
        let row = &view.sandbox;
        Self {
            id: row.id,
            environment_id: row.environment_id,
            environment_name: view.environment_name.clone(),
            provider: view.provider.clone(),
            scope: row.scope.as_ref().map(|scope| scope.0.clone()),
            generation: row.generation,
            workspace_seq: row.workspace_seq,
            dirty: view.is_dirty(),
            diverged: row.diverged,
            instance: view.instance.as_ref().map(Instance::of),
            current_checkpoint: view.current_checkpoint.as_ref().map(Checkpoint::of),
            lease_ids: view.lease_ids.clone(),
            next: view.next.clone().into(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

page!(
    /// A page of sandboxes, newest first.
    SandboxPage,
    Sandbox,
    SandboxView
);
