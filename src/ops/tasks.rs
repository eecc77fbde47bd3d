//! What the background tasks of this process did last, and when they are due again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Error, Result};
use crate::model::key::Scope;

/// A task as its passes left it.
#[derive(Clone, Debug)]
struct Kept {
    period: Duration,
    began: Instant,
    took: Option<Duration>,
    report: Value,
    failure: Option<String>,
    runs: u64,
}

impl Kept {
    /// How long after its beginning the last pass is to be followed by the next one; `None` while it goes on.
    fn due(&self) -> Option<Duration> {
        self.took.map(|took| took + self.period)
    }

    /// A pass that goes on for longer than a period keeps the next one waiting.
    fn lag(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.due().unwrap_or(self.period))
    }
}

/// The tasks of this process.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<BTreeMap<&'static str, Kept>>);

impl Tasks {
    /// A pass begins.
    pub fn begin(&self, task: &'static str, period: Duration) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Kept { period, began: Instant::now(), took: None, report: Value::Null, failure: None, runs: 0 };
        let kept = tasks.entry(task).or_insert(fresh);
        (kept.began, kept.took) = (Instant::now(), None);
    }

    /// How much later than it was due each task is.
    pub fn lags(&self) -> Vec<(&'static str, Duration)> {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().map(|(name, kept)| (*name, kept.lag())).collect()
    }

    /// A pass ended, with its report or its failure.
    pub fn end(&self, task: &'static str, ended: &Result<Value>) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = tasks.get_mut(task) else { return };
        kept.took = Some(kept.began.elapsed());
        kept.runs += 1;
        match ended {
            Ok(report) => (kept.report, kept.failure) = (report.clone(), None),
            Err(Error { code, .. }) => kept.failure = Some(code.as_str()),
        }
    }
}

/// A task as an operator sees it.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// Its name.
    pub name: &'static str,
    /// How long it rests between two passes.
    pub period: Duration,
    /// When its last pass began.
    pub last_run_at: Time,
    /// How long that took; `None` while it goes on.
    pub took: Option<Duration>,
    /// What the last pass that went well reported.
    pub report: Value,
    /// What the last pass failed with, if it did.
    pub failure: Option<String>,
    /// When it is due again; `None` while it runs.
    pub next_run_at: Option<Time>,
    /// How much later than it was due it is.
    pub lag: Duration,
    /// How many passes ended.
    pub runs: u64,
}

/// Every task of this server.
pub async fn list(berth: &Berth, caller: &Caller) -> Result<Vec<TaskView>> {
    caller.require(Scope::Operator)?;
    let now = berth.store.read().await?.now().await?;
    let tasks = berth.tasks.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(tasks.into_iter().map(|(name, kept)| view(name, kept, now)).collect())
}

fn view(name: &'static str, kept: Kept, now: Time) -> TaskView {
    let last_run_at = now.before(kept.began.elapsed());
    let (due, lag) = (kept.due(), kept.lag());
    TaskView {
        name,
        period: kept.period,
        last_run_at,
        took: kept.took,
        report: kept.report,
        failure: kept.failure,
        next_run_at: due.map(|due| last_run_at.after(due)),
        lag,
        runs: kept.runs,
    }
}
