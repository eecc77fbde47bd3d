//! Many at once on the wire: scoped destroy, and the leases of a holder.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::lease::Lease;
use super::{check_scope, problem, words};
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::http::extract::Asked;
use crate::model::lease::{self, Disposition, Outcome};
use crate::model::scope::Scope;
use crate::ops::destroy::{Fate, Item, Selection};
use crate::ops::input::ReleaseRequest;
use crate::ops::many;

/// Destroys the instances of the selected sandboxes; at least one selector, and all must hold.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxesDestroy {
    /// Id or name of the environment.
    #[schema(min_length = 1, max_length = 200)]
    pub environment: Option<String>,
    /// Sandboxes whose scope has these pairs.
    #[schema(value_type = Option<words::Scope>)]
    pub scope: Option<Scope>,
    /// Exactly these sandboxes.
    #[schema(min_items = 1, max_items = 500)]
    pub sandbox_ids: Option<Vec<Uuid>>,
    /// Consent to lose what is not saved and cannot be.
    pub discard_workspace: Option<bool>,
    /// Change nothing; say what would be destroyed.
    pub dry_run: Option<bool>,
}

impl Checked for SandboxesDestroy {
    fn check(&self, errors: &mut Vec<FieldError>) {
        check_scope(self.scope.as_ref(), errors);
        if self.environment.is_none() && self.scope.is_none() && self.sandbox_ids.is_none() {
            let message = "or scope or sandbox_ids is required".to_owned();
            errors.push(FieldError { pointer: "/environment".to_owned(), message });
        }
    }
}

impl SandboxesDestroy {
    /// What the verb is asked.
    pub fn selection(self) -> Selection {
        Selection {
            environment: self.environment,
            scope: self.scope,
            sandbox_ids: self.sandbox_ids,
            discard_workspace: self.discard_workspace.unwrap_or(false),
            dry_run: self.dry_run.unwrap_or(false),
        }
    }
}

/// What became of one sandbox's instance.
#[derive(Debug, Serialize, ToSchema)]
pub struct DestroyedSandbox {
    /// The sandbox.
    pub sandbox_id: Uuid,
    /// Its instance; null for a sandbox that is not there.
    pub instance_id: Option<Uuid>,
    /// In one word; in a dry run what it would be.
    #[schema(value_type = words::DestroyStatus)]
    pub status: &'static str,
    /// Why it failed; null when it did not.
    #[schema(value_type = Option<problem::Problem>)]
    pub problem: Option<Value>,
}

/// What became of the selected sandboxes' instances.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct SandboxesDestroyed {
    /// How many ends the provider confirmed; in a dry run, how many instances would be ended.
    pub destroyed: usize,
    /// How many ends are decided and not confirmed yet.
    pub pending: usize,
    /// How many live on although they should not.
    pub failed: usize,
    /// How many a live lease holds.
    pub skipped_live: usize,
    /// Each of them.
    pub items: Vec<DestroyedSandbox>,
}

impl SandboxesDestroyed {
    /// The report as its reader sees it.
    pub fn of(items: Vec<Item>, asked: &Asked) -> Self {
        let mut told = Self::default();
        for item in items {
            let (count, status, error) = match item.fate {
                Fate::Destroyed => (&mut told.destroyed, "destroyed", None),
                Fate::Pending => (&mut told.pending, "pending", None),
                Fate::SkippedLive => (&mut told.skipped_live, "skipped_live", None),
                Fate::Failed(error) => (&mut told.failed, "failed", Some(error)),
            };
            *count += 1;
            let problem = error.map(|error| asked.problem(error));
            told.items.push(DestroyedSandbox { sandbox_id: item.sandbox, instance_id: item.instance, status, problem });
        }
        told
    }
}

/// Releases every live lease of a holder.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeasesRelease {
    /// Whose leases.
    #[schema(min_length = 1, max_length = 200)]
    pub holder: String,
    /// How the run went; `succeeded` when absent.
    #[schema(value_type = Option<words::Outcome>)]
    pub outcome: Option<Outcome>,
    /// What becomes of the instances; by each lease's policy when absent.
    #[schema(value_type = Option<words::Disposition>)]
    pub disposition: Option<Disposition>,
}

impl Checked for LeasesRelease {}

impl LeasesRelease {
    /// What each release is asked.
    pub fn input(&self) -> ReleaseRequest {
        ReleaseRequest { outcome: self.outcome, disposition: self.disposition, ..ReleaseRequest::default() }
    }
}

/// What became of one lease of several.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReleasedLease {
    /// The lease.
    pub lease_id: Uuid,
    /// Where it stands now; null when that is not known.
    #[schema(value_type = Option<words::LeaseStatus>)]
    pub status: Option<lease::Status>,
    /// Why it was not released; null when it was.
    #[schema(value_type = Option<problem::Problem>)]
    pub problem: Option<Value>,
}

/// What became of a holder's leases.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeasesReleased {
    /// Each of them.
    pub items: Vec<ReleasedLease>,
}

impl LeasesReleased {
    /// The report as its reader sees it.
    pub fn of(items: Vec<many::Item>, asked: &Asked) -> Self {
        let told = |(lease_id, answer): many::Item| match answer {
            Ok(view) => ReleasedLease { lease_id, status: Some(view.lease.status), problem: None },
            Err(error) => ReleasedLease { lease_id, status: None, problem: Some(asked.problem(error)) },
        };
        Self { items: items.into_iter().map(told).collect() }
    }
}

/// Renews several leases, each by the time to live it remembers.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeasesRenew {
    /// Which.
    #[schema(min_items = 1, max_items = 500)]
    pub lease_ids: Vec<Uuid>,
}

impl Checked for LeasesRenew {
    fn check(&self, errors: &mut Vec<FieldError>) {
        let mut seen = HashSet::new();
        for (index, id) in self.lease_ids.iter().enumerate() {
            if !seen.insert(id) {
                errors.push(FieldError { pointer: format!("/lease_ids/{index}"), message: "is named twice".to_owned() });
            }
        }
    }
}

/// What became of one lease of several.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenewedLease {
    /// The lease.
    pub lease_id: Uuid,
    /// The lease with its granted `expires_at` and present token; null when it was not renewed.
    pub lease: Option<Lease>,
    /// Why it was not renewed; null when it was.
    #[schema(value_type = Option<problem::Problem>)]
    pub problem: Option<Value>,
}

/// What became of the named leases.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeasesRenewed {
    /// Each of them, in the order they were named.
    pub items: Vec<RenewedLease>,
}

impl LeasesRenewed {
    /// The report as its reader sees it.
    pub fn of(items: Vec<many::Item>, asked: &Asked) -> Self {
        let told = |(lease_id, answer): many::Item| match answer {
            Ok(view) => RenewedLease { lease_id, lease: Some(Lease::of(&view)), problem: None },
            Err(error) => RenewedLease { lease_id, lease: None, problem: Some(asked.problem(error)) },
        };
        Self { items: items.into_iter().map(told).collect() }
    }
}
