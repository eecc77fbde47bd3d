//! A sandbox is the durable identity that survives the loss of everything physical.

use sqlx::types::Json;
use uuid::Uuid;

use super::instance::Instance;
use super::scope::Scope;
use crate::clock::Time;

/// A sandbox as stored. Its row is the lock of everything below it: leases, instances, checkpoints, operations.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5 and domain §1")]
pub struct Sandbox {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub environment_id: Uuid,
    pub scope: Option<Json<Scope>>,
    pub scope_key: Option<String>,
    pub generation: i64,
    pub workspace_seq: i64,
    pub synced_seq: Option<i64>,
    pub grant_seq: i64,
    pub pointer_seq: i64,
    pub instance_id: Option<Uuid>,
    pub current_checkpoint_id: Option<Uuid>,
    pub diverged: bool,
    pub unsaved_loss: bool,
    pub given_up_seq: i64,
    pub process_open: bool,
    pub deleted_at: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Sandbox {
    /// Whether the live instance holds work that the current checkpoint does not.
    pub fn is_dirty(&self, instance: Option<&Instance>) -> bool {
        instance.is_some_and(|i| i.status.is_live()) && (self.synced_seq != Some(self.workspace_seq) || self.process_open)
    }

    /// Whether the pointer is behind what was last written, live or not; a holder who moved it away knows.
    pub fn is_behind(&self) -> bool {
        self.workspace_seq > 0 && self.synced_seq != Some(self.workspace_seq) && !self.diverged
    }

    /// Whether nobody could come back and ask for the work.
    pub fn is_anonymous(&self) -> bool {
        self.scope_key.is_none()
    }
}
