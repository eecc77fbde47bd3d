//! What retention would do, on the wire.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::words;
use crate::ops::retain::{Reason, Verdict};

/// What would become of one revision.
#[derive(Debug, Serialize, ToSchema)]
pub struct RetentionVerdict {
    /// Which checkpoint.
    pub checkpoint_id: Uuid,
    /// Whether it would leave now.
    pub leaves: bool,
    /// Why.
    #[schema(value_type = words::RetentionReason)]
    pub reason: &'static str,
}

/// What would become of every revision of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct Retention {
    /// Newest first.
    pub items: Vec<RetentionVerdict>,
}

impl From<Vec<Verdict>> for Retention {
    fn from(found: Vec<Verdict>) -> Self {
        let verdict =
            |v: Verdict| RetentionVerdict { checkpoint_id: v.checkpoint, leaves: v.reason == Reason::Surplus, reason: v.reason.as_str() };
        Self { items: found.into_iter().map(verdict).collect() }
    }
}
