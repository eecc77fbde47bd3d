//! The outcome of probing an environment on the wire.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{problem, words};
use crate::http::extract::Asked;
use crate::ops::probe::Step;

/// One step of a probe.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProbeStep {
    /// Which step.
    #[schema(value_type = words::ProbeStepName)]
    pub name: &'static str,
    /// Whether it went well.
    pub ok: bool,
    /// How long it took.
    pub duration_ms: u64,
    /// What went wrong; null when nothing did.
    #[schema(value_type = Option<problem::Problem>)]
    pub problem: Option<Value>,
}

/// How an environment's probe went.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnvironmentProbe {
    /// Whether every step went well.
    pub ok: bool,
    /// The steps that were made, in order.
    pub steps: Vec<ProbeStep>,
}

impl EnvironmentProbe {
    /// The probe as its reader sees it.
    pub fn of(steps: Vec<Step>, asked: &Asked) -> Self {
        let steps: Vec<_> = steps
            .into_iter()
            .map(|step| ProbeStep {
                name: step.name,
                ok: step.problem.is_none(),
                duration_ms: u64::try_from(step.took.as_millis()).unwrap_or(u64::MAX),
                problem: step.problem.map(|error| asked.problem(error)),
            })
            .collect();
        Self { ok: steps.iter().all(|step| step.ok), steps }
    }
}
