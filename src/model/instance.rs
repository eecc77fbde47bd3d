//! An instance is what really exists and must one day be cleaned up: one row per incarnation, written before the provider is asked.

use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::IllegalStep;
use super::lease::Disposition;
use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// Where an instance stands.
    pub enum Status {
        /// Its row is there; the provider may or may not have made it.
        Creating => "creating",
        /// Commands can run.
        Running => "running",
        /// A durable intent to stop, settled by a receipt or an observation, never by destroy.
        Stopping => "stopping",
        /// Preserved at the provider.
        Stopped => "stopped",
        /// A durable intent to start exactly it.
        Starting => "starting",
        /// Being made quiet and captured before its end or its rest.
        Draining => "draining",
        /// Its end was decided and is not confirmed yet.
        PendingCleanup => "pending_cleanup",
        /// Confirmed gone, or surely never made.
        Destroyed => "destroyed",
        /// Its loss was proven.
        Lost => "lost",
    }
}

/// What may happen to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is made, or started, and ready.
    Ready,
    /// The provider surely did not make it.
    Refused,
    /// Its end was decided.
    Retire,
    /// Its loss was proven.
    Lose,
    /// It is to be made quiet and captured.
    Drain,
    /// The capture failed: back to where it was.
    Undrain(Status),
    /// The intent to stop it.
    Stop,
    /// The stop is confirmed.
    Stopped,
    /// The intent to start exactly it.
    Start,
    /// The start did not happen; it is preserved.
    StartFailed,
    /// It was seen running although we thought otherwise.
    SeenRunning,
    /// It was seen stopped although we thought otherwise.
    SeenStopped,
    /// The provider confirmed its end, or proved its absence.
    Gone,
    /// A ref arrived for a row that was thought gone.
    LateRef,
}

impl Status {
    /// Live instances may be used again; exactly one of a sandbox is current.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::PendingCleanup | Self::Destroyed | Self::Lost)
    }

    /// Whether something is being done with it that ends by itself.
    pub fn is_in_transition(self) -> bool {
        matches!(self, Self::Creating | Self::Starting | Self::Stopping | Self::Draining | Self::PendingCleanup)
    }

    /// The one place that says which step is legal.
    pub fn on(self, event: Event) -> Result<Self, IllegalStep> {
        use Status::{Creating, Destroyed, Draining, Lost, PendingCleanup, Running, Starting, Stopped, Stopping};
        match (self, event) {
            (Creating | Starting, Event::Ready) | (Stopping | Stopped, Event::SeenRunning) | (Draining, Event::Undrain(Running)) => {
                Ok(Running)
            }
            (Creating, Event::Refused) | (PendingCleanup, Event::Gone) => Ok(Destroyed),
            (from, Event::Retire) if from.is_live() => Ok(PendingCleanup),
            (from, Event::Lose) if from.is_live() => Ok(Lost),
            (Running | Stopped, Event::Drain) => Ok(Draining),
            (Running | Draining, Event::Stop) => Ok(Stopping),
            (Stopping, Event::Stopped)
            | (Starting, Event::StartFailed)
            | (Draining, Event::Undrain(Stopped))
            | (Running, Event::SeenStopped) => Ok(Stopped),
            (Stopped, Event::Start) => Ok(Starting),
            (Destroyed | Lost, Event::LateRef) => Ok(PendingCleanup),
            (from, event) => Err(IllegalStep { noun: "instance", from: from.as_str(), event: format!("{event:?}") }),
        }
    }
}

text_enum! {
    /// Whose place an instance has in its sandbox; a constraint allows one live row for each of the first two.
    pub enum Role {
        /// The one the pointer names.
        Current => "current",
        /// Being made beside the current one, to take its place.
        Successor => "successor",
        /// No longer live.
        Retired => "retired",
    }
}

text_enum! {
    /// Why a live, current instance is kept out of every cleaner's hands.
    pub enum HoldReason {
        /// Its unsaved work could not be saved.
        CaptureFailed => "capture_failed",
    }
}

/// An instance as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5 and domain §1")]
pub struct Instance {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub environment_id: Uuid,
    pub sandbox_id: Uuid,
    pub generation: i64,
    pub role: Role,
    pub provider: String,
    pub binding: Option<String>,
    pub provider_ref: Option<String>,
    pub config: Json<Value>,
    pub configured_path: Option<String>,
    pub fingerprint: String,
    pub status: Status,
    pub quiet: bool,
    /// A take-over's grant whose kill is owed: nothing is admitted before everything under a lower grant is confirmed dead.
    pub owed_fence: Option<i64>,
    pub hold_reason: Option<HoldReason>,
    pub retire_reason: Option<String>,
    pub disposition: Option<Disposition>,
    pub workspace_path: Option<String>,
    pub provider_expires_at: Option<Time>,
    pub observed_at: Option<Time>,
    pub create_called_at: Option<Time>,
    pub provision_deadline: Time,
    pub cleanup_attempts: i64,
    pub cleanup_next_at: Option<Time>,
    pub cleanup_error_kind: Option<String>,
    pub quarantine_reason: Option<String>,
    pub used_at: Time,
    pub created_at: Time,
    pub running_at: Option<Time>,
    pub stopped_at: Option<Time>,
    pub retired_at: Option<Time>,
    pub destroyed_at: Option<Time>,
    pub updated_at: Time,
    /// The plugin that makes it, if it is a plugin's.
    pub plugin_id: Option<Uuid>,
    /// What the provider said of its object, to be told again with every call.
    pub provider_metadata: Option<Json<Value>>,
}

/// From this many failed attempts on, a teardown is listed as quarantined, and still retried.
pub const QUARANTINE_ATTEMPTS: i64 = 5;

/// What the reader of a lease is told of its instance; the columns of the table.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Glance {
    pub status: Status,
    pub disposition: Option<Disposition>,
    pub workspace_path: Option<String>,
    pub provider_expires_at: Option<Time>,
    pub cleanup_attempts: i64,
    pub cleanup_next_at: Option<Time>,
    pub cleanup_error_kind: Option<String>,
    pub quarantine_reason: Option<String>,
    pub used_at: Time,
}

impl Glance {
    /// Whether its teardown needs a person's eye; it is still retried.
    pub fn is_quarantined(&self) -> bool {
        self.status == Status::PendingCleanup && (self.cleanup_attempts >= QUARANTINE_ATTEMPTS || self.quarantine_reason.is_some())
    }
}

impl Instance {
    /// What the reader of a lease is told of it.
    pub fn glance(&self) -> Glance {
        Glance {
            status: self.status,
            disposition: self.disposition,
            workspace_path: self.workspace_path.clone(),
            provider_expires_at: self.provider_expires_at,
            cleanup_attempts: self.cleanup_attempts,
            cleanup_next_at: self.cleanup_next_at,
            cleanup_error_kind: self.cleanup_error_kind.clone(),
            quarantine_reason: self.quarantine_reason.clone(),
            used_at: self.used_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_and_event_is_decided() {
        use Status::*;
        let events = [
            Event::Ready,
            Event::Refused,
            Event::Retire,
            Event::Lose,
            Event::Drain,
            Event::Undrain(Running),
            Event::Undrain(Stopped),
            Event::Undrain(Creating),
            Event::Stop,
            Event::Stopped,
            Event::Start,
            Event::StartFailed,
            Event::SeenRunning,
            Event::SeenStopped,
            Event::Gone,
            Event::LateRef,
        ];
        let expected: &[(Status, &[(Event, Status)])] = &[
            (Creating, &[(Event::Ready, Running), (Event::Refused, Destroyed), (Event::Retire, PendingCleanup), (Event::Lose, Lost)]),
            (
                Running,
                &[
                    (Event::Retire, PendingCleanup),
                    (Event::Lose, Lost),
                    (Event::Drain, Draining),
                    (Event::Stop, Stopping),
                    (Event::SeenStopped, Stopped),
                ],
            ),
            (Stopping, &[(Event::Retire, PendingCleanup), (Event::Lose, Lost), (Event::Stopped, Stopped), (Event::SeenRunning, Running)]),
            (
                Stopped,
                &[
                    (Event::Retire, PendingCleanup),
                    (Event::Lose, Lost),
                    (Event::Drain, Draining),
                    (Event::Start, Starting),
                    (Event::SeenRunning, Running),
                ],
            ),
            (Starting, &[(Event::Ready, Running), (Event::Retire, PendingCleanup), (Event::Lose, Lost), (Event::StartFailed, Stopped)]),
            (
                Draining,
                &[
                    (Event::Retire, PendingCleanup),
                    (Event::Lose, Lost),
                    (Event::Undrain(Running), Running),
                    (Event::Undrain(Stopped), Stopped),
                    (Event::Stop, Stopping),
                ],
            ),
            (PendingCleanup, &[(Event::Gone, Destroyed)]),
            (Destroyed, &[(Event::LateRef, PendingCleanup)]),
            (Lost, &[(Event::LateRef, PendingCleanup)]),
        ];
        assert_eq!(expected.len(), Status::ALL.len());
        for (status, legal) in expected {
            for event in events {
                let want = legal.iter().find(|(e, _)| *e == event).map(|(_, to)| *to);
                assert_eq!(status.on(event).ok(), want, "{status} {event:?}");
            }
        }
    }

    #[test]
    fn no_intent_to_stop_or_start_is_settled_by_destroy() {
        for status in [Status::Stopping, Status::Starting] {
            assert!(status.on(Event::Gone).is_err());
        }
    }
}
