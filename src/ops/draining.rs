//! Draining: an operator stops new work for the whole deployment; what runs goes on, and renew, release and DELETE go on.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Berth, Caller};
use crate::clock::Time;
use crate::error::{Code, Error, Result};
use crate::model::key::Scope;
use crate::store::event::NewEvent;

/// How long one look at the deployment's row answers for all acquires of this process.
const LOOK_LASTS: Duration = Duration::from_secs(1);
/// When a refused caller may come back.
const COME_BACK: Duration = Duration::from_secs(5);

/// Since when new work is refused, and why; `None` while it is taken.
pub type Draining = Option<(Time, String)>;

/// The last look.
#[derive(Debug, Default)]
pub struct LastLook(Mutex<Option<(Instant, Draining)>>);

impl Berth {
    /// 503 `draining` while new work is refused; every process knows within a second.
    pub(super) async fn refuse_while_draining(&self) -> Result<()> {
        let last = self.draining.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let draining = match last {
            Some((at, draining)) if at.elapsed() < LOOK_LASTS => draining,
            _ => self.note_draining(self.store.read().await?.draining().await?),
        };
        match draining {
            None => Ok(()),
            Some((since, reason)) => Err(Error::new(Code::Draining, "An operator has stopped new work; renew, release and delete go on.")
                .fact("since", since.to_string())
                .fact("reason", reason)
                .retry_after(COME_BACK)),
        }
    }

    fn note_draining(&self, draining: Draining) -> Draining {
        *self.draining.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), draining.clone()));
        draining
    }
}

/// Stops new work, or takes it again.
pub async fn set(berth: &Berth, caller: &Caller, enabled: bool, reason: &str) -> Result<Draining> {
    caller.require(Scope::Operator)?;
    let mut tx = berth.store.begin().await?;
    let now = tx.now().await?;
    tx.set_draining(enabled.then_some((now, reason))).await?;
    let event = NewEvent {
        organization: caller.organization,
        type_: if enabled { "deployment.draining" } else { "deployment.resumed" },
        subject_kind: "deployment",
        subject: berth.deployment.id,
        generation: None,
        actor: &caller.actor(),
        data: json!({ "reason": reason }),
    };
    tx.tell(event, now).await?;
    let draining = tx.draining().await?;
    tx.commit().await?;
    tracing::warn!(enabled, "an operator has changed whether new work is taken");
    Ok(berth.note_draining(draining))
}
