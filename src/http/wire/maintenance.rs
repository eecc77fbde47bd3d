//! What an operator sees and steers, on the wire: limits, background tasks, maintenance.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::words;
use crate::clock::Time;
use crate::http::body::Checked;
use crate::ops::tasks::TaskView;
use crate::ops::{limits, maintenance};

/// A limit the caller meets.
#[derive(Debug, Serialize, ToSchema)]
pub struct Limit {
    /// What is limited.
    #[schema(examples("requests_per_second"))]
    pub name: String,
    /// The most there may be; null for no limit.
    pub value: Option<i64>,
    /// How much there is; null where it is not counted.
    pub usage: Option<i64>,
    /// Who set it.
    #[schema(value_type = words::LimitSource)]
    pub source: &'static str,
}

/// Every limit the caller meets.
#[derive(Debug, Serialize, ToSchema)]
pub struct Limits {
    /// Each of them.
    pub items: Vec<Limit>,
}

impl From<Vec<limits::Limit>> for Limits {
    fn from(found: Vec<limits::Limit>) -> Self {
        let limit = |l: limits::Limit| Limit { name: l.name, value: l.value, usage: l.usage, source: l.source };
        Self { items: found.into_iter().map(limit).collect() }
    }
}

/// What goes on without a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct BackgroundTask {
    /// Which task.
    pub name: String,
    /// How long it rests between two passes.
    pub period_ms: u64,
    /// When its last pass began.
    #[schema(value_type = words::Timestamp)]
    pub last_run_at: Time,
    /// How long that took; null while it goes on.
    pub last_duration_ms: Option<u64>,
    /// What the last pass that went well reported.
    #[schema(value_type = words::TaskReport)]
    pub report: Value,
    /// What the last pass failed with; null when it went well.
    #[schema(value_type = Option<words::ErrorCode>)]
    pub last_error_code: Option<String>,
    /// When it is due again; null while it runs.
    #[schema(value_type = Option<words::Timestamp>)]
    pub next_run_at: Option<Time>,
    /// How much later than it was due it is.
    pub lag_ms: u64,
    /// How many passes ended since the server started.
    pub runs: u64,
}

/// The background tasks of the server that answered.
#[derive(Debug, Serialize, ToSchema)]
pub struct BackgroundTasks {
    /// Each of them.
    pub items: Vec<BackgroundTask>,
}

impl From<Vec<TaskView>> for BackgroundTasks {
    fn from(tasks: Vec<TaskView>) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let task = |t: TaskView| BackgroundTask {
            name: t.name.to_owned(),
            period_ms: millis(t.period),
            last_run_at: t.last_run_at,
            last_duration_ms: t.took.map(millis),
            report: if t.report.is_object() { t.report } else { json!({}) },
            last_error_code: t.failure,
            next_run_at: t.next_run_at,
            lag_ms: millis(t.lag),
            runs: t.runs,
        };
        Self { items: tasks.into_iter().map(task).collect() }
    }
}

/// Asks for a pass.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceRun {
    /// Change nothing and say what would be done; true when absent.
    pub dry_run: Option<bool>,
}

impl Checked for MaintenanceRun {}

/// One thing a pass looked at.
#[derive(Debug, Serialize, ToSchema)]
pub struct MaintenanceItem {
    /// What it is.
    #[schema(value_type = words::MaintenanceKind)]
    pub kind: &'static str,
    /// Its id, or the provider's name of it; null for an inventory that could not be had.
    pub id: Option<String>,
    /// What is done with it, or would be.
    #[schema(value_type = words::MaintenanceAction)]
    pub action: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What a pass did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub struct MaintenanceReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Each thing with its reason.
    pub items: Vec<MaintenanceItem>,
}

impl MaintenanceReport {
    /// The report as its reader sees it.
    pub fn of(dry_run: bool, items: Vec<maintenance::Item>) -> Self {
        let item = |i: maintenance::Item| MaintenanceItem { kind: i.kind, id: i.id, action: i.action, reason: i.reason };
        Self { dry_run, items: items.into_iter().map(item).collect() }
    }
}

/// Stops new work, or takes it again.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceDrain {
    /// Whether new work is refused.
    pub enabled: bool,
    /// Why; every refused caller reads it.
    #[schema(min_length = 1, max_length = 1000)]
    pub reason: String,
}

impl Checked for MaintenanceDrain {}

/// Whether new work is refused.
#[derive(Debug, Serialize, ToSchema)]
pub struct Draining {
    /// Whether it is.
    pub enabled: bool,
    /// Since when; null when it is not.
    #[schema(value_type = Option<words::Timestamp>)]
    pub since: Option<Time>,
    /// Why; null when it is not.
    pub reason: Option<String>,
}

impl From<Option<(Time, String)>> for Draining {
    fn from(draining: Option<(Time, String)>) -> Self {
        let (since, reason) = draining.unzip();
        Self { enabled: since.is_some(), since, reason }
    }
}
