//! Probing an environment: an instance is made, runs `true` and is destroyed, like any other in the ledger.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::input::{Acquire, Carried, Exec, Waiting};
use super::view::{Answered, LeaseView};
use super::{Berth, Caller, acquire, exec, release};
use crate::error::{Code, Error, Result};
use crate::model::environment::Environment;
use crate::model::key::Scope;
use crate::model::lease::{Access, OnSameHolder, Policy};
use crate::model::operation::Status as OperationStatus;

/// A probe nobody finishes ends by itself after this long.
const TTL_SECONDS: i64 = 300;
/// How long `true` may take.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// One step of a probe.
#[derive(Clone, Debug)]
pub struct Step {
    /// `create`, `run` or `destroy`.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// What went wrong, if something did.
    pub problem: Option<Error>,
}

/// Probes an environment. Whoever leaves cancels nothing: what was made is destroyed.
pub async fn probe(berth: &Arc<Berth>, caller: &Caller, id_or_name: &str) -> Result<Vec<Step>> {
    caller.require(Scope::Write)?;
    berth.refuse_while_draining().await?;
    let environment = super::environment::find(berth, caller.organization, id_or_name).await?;
    if environment.archived_at.is_some() {
        return Err(Error::new(Code::EnvironmentArchived, "This environment is archived; nothing new is made in it."));
    }
    let (sender, receiver) = oneshot::channel();
    let (task, caller) = (Arc::clone(berth), caller.clone());
    berth.work.spawn(async move {
        sender.send(steps(&task, &caller, &environment).await).ok();
    });
    receiver.await.map_err(|_| Error::new(Code::Internal, "The probe's task was lost."))
}

async fn steps(berth: &Arc<Berth>, caller: &Caller, environment: &Environment) -> Vec<Step> {
    let mut steps = Vec::new();
    let began = Instant::now();
    let created = acquire::acquire(berth, caller, wish(environment)).await;
    let late = || Error::new(Code::ProviderTimeout, "The instance was not ready within the provision wait.");
    let (lease, problem) = match created {
        Ok((view, Answered::Pending)) => (Some(view), Some(late())),
        Ok((view, _)) => (Some(view), None),
        Err(error) => (None, Some(error)),
    };
    let runs = problem.is_none();
    steps.push(Step { name: "create", took: began.elapsed(), problem });
    let Some(lease) = lease else { return steps };
    if runs {
        let began = Instant::now();
        let problem = run_true(berth, caller, &lease).await.err();
        steps.push(Step { name: "run", took: began.elapsed(), problem });
    }
    let began = Instant::now();
    let problem = match release::delete(berth, caller, lease.lease.id, true).await {
        Ok((_, Answered::Pending)) => {
            Some(Error::new(Code::ProviderTimeout, "The provider has not confirmed the end yet; the cleaner goes on with it."))
        }
        other => other.err(),
    };
    steps.push(Step { name: "destroy", took: began.elapsed(), problem });
    steps
}

fn wish(environment: &Environment) -> Acquire {
    Acquire {
        environment: environment.id.to_string(),
        holder: "probe".to_owned(),
        scope: None,
        access: Access::ReadWrite,
        ttl_seconds: Some(TTL_SECONDS.min(environment.max_ttl_ms / 1000)),
        policy: Some(Policy::Ephemeral),
        harness: None,
        on_same_holder: OnSameHolder::Refuse,
        requested_expires_at: None,
        require_provider_expiry: false,
        restore_checkpoint_id: None,
        on_unavailable: None,
        discard_workspace: false,
        metadata: json!({ "probe": true }),
        waiting: Waiting { others: Duration::ZERO, respond_async: false },
    }
}

async fn run_true(berth: &Arc<Berth>, caller: &Caller, lease: &LeaseView) -> Result<()> {
    let command = Exec {
        carried: Carried { generation: Some(lease.lease.generation), epoch: None },
        argv: vec!["true".to_owned()],
        cwd: None,
        env: std::collections::BTreeMap::new(),
        user: None,
        stdin: Vec::new(),
        timeout: RUN_TIMEOUT,
        max_output_bytes: 1024,
        base64: false,
        keep_on_disconnect: false,
        wait: None,
    };
    let (view, _) = exec::run(berth, caller, lease.lease.id, command).await?;
    match (view.operation.status, view.operation.exit_code) {
        (OperationStatus::Exited, Some(0)) => Ok(()),
        (status, code) => Err(Error::new(Code::ProviderError, "The command `true` did not succeed in the new instance.")
            .fact("exec_status", status.as_str())
            .fact("exit_code", code)),
    }
}
