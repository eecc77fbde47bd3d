//! A lease says who may use a sandbox and until when: a holder's time-bounded, fenced claim.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::IllegalStep;
use super::checkpoint::Kind as CheckpointKind;
use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// Where a lease stands. Live: `Pending` and `Active`. Nothing leaves `Released`, `Expired`, `Failed`.
    pub enum Status {
        /// The row is the exclusivity claim; its instance is being made ready.
        Pending => "pending",
        /// The holder may write.
        Active => "active",
        /// Over for its holder; its instance is kept running until `retain_until`.
        Retained => "retained",
        /// Over, but a teardown it requires is not confirmed yet; `ends_as` says what it will be.
        PendingCleanup => "pending_cleanup",
        /// Ended by its holder or by DELETE.
        Released => "released",
        /// Ended by time.
        Expired => "expired",
        /// Ended without success.
        Failed => "failed",
    }
}

/// What may happen to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The instance is ready; the time to live starts.
    Activate,
    /// A resume failed or a create surely did not happen: nothing to tear down.
    FailUntouched,
    /// The holder extends, or another process of the same holder takes over.
    Extend,
    /// The end, with nothing left to tear down.
    End(Status),
    /// Over for its holder while its instance runs on.
    Retain,
    /// The end, with a teardown that is not confirmed yet.
    AwaitTeardown,
}

impl Status {
    /// Live leases are exclusive and in the unique indexes.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Active)
    }

    /// Whether nothing leaves this status.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Released | Self::Expired | Self::Failed)
    }

    /// The one place that says which step is legal.
    pub fn on(self, event: Event) -> Result<Self, IllegalStep> {
        use Status::{Active, Failed, Pending, PendingCleanup, Retained};
        match (self, event) {
            (Pending, Event::Activate) | (Active, Event::Extend) => Ok(Active),
            (Pending, Event::FailUntouched) => Ok(Failed),
            (Pending | Active | Retained | PendingCleanup, Event::End(end)) if end.is_end() => Ok(end),
            (Active, Event::Retain) => Ok(Retained),
            (Pending | Active | Retained, Event::AwaitTeardown) => Ok(PendingCleanup),
            (from, event) => Err(IllegalStep { noun: "lease", from: from.as_str(), event: format!("{event:?}") }),
        }
    }
}

text_enum! {
    /// What happens to the instance when its lease ends.
    pub enum Policy {
        /// Destroyed.
        Ephemeral => "ephemeral",
        /// Stopped and kept for the next lease of the scope.
        ReuseByEnvironment => "reuse_by_environment",
        /// Destroyed, but kept as evidence when the run failed.
        RetainOnFailure => "retain_on_failure",
    }
}

text_enum! {
    /// What a holder may do.
    pub enum Access {
        /// The one writer.
        ReadWrite => "read_write",
        /// Looks on; runs nothing.
        ReadOnly => "read_only",
    }
}

text_enum! {
    /// How the run went, in its holder's words.
    pub enum Outcome {
        /// Well.
        Succeeded => "succeeded",
        /// Badly.
        Failed => "failed",
    }
}

text_enum! {
    /// What becomes of the instance; the strongest of several wins, so the order matters.
    pub enum Disposition {
        /// It runs on until `retain_until`.
        KeepRunning => "keep_running",
        /// It is stopped and kept.
        StopAndRetain => "stop_and_retain",
        /// It is torn down.
        Destroy => "destroy",
    }
}

text_enum! {
    /// Whether the workspace is saved before its instance is stopped or destroyed.
    pub enum Save {
        /// Consent to lose what is unsaved.
        None => "none",
        /// Nothing if clean, else a portable archive.
        Auto => "auto",
        /// A provider's snapshot.
        ProviderNative => "provider_native",
        /// A portable archive.
        PortableWorkspace => "portable_workspace",
    }
}

text_enum! {
    /// What an acquire does when its holder has a live lease already.
    pub enum OnSameHolder {
        /// Gives that lease.
        Attach => "attach",
        /// Gives that lease at the next epoch; the former process is fenced off.
        TakeOver => "take_over",
        /// Refuses.
        Refuse => "refuse",
    }
}

text_enum! {
    /// What to do when the selected checkpoint cannot be had.
    pub enum OnUnavailable {
        /// Refuse; nothing is created.
        Fail => "fail",
        /// Use the newest older portable revision that can be had.
        OlderRevision => "older_revision",
        /// Start with an empty workspace, knowingly.
        Empty => "empty",
    }
}

text_enum! {
    /// How an acquire came by its instance.
    pub enum How {
        /// Made new, empty.
        Created => "created",
        /// Exactly the stopped one was started.
        Resumed => "resumed",
        /// A running one was there.
        Attached => "attached",
        /// Made new, with the current checkpoint's content.
        Restored => "restored",
        /// Made new because the former one could not be used; `reason` says why.
        Replacement => "replacement",
    }
}

/// What was put back into a workspace, and how far that was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredFrom {
    /// The checkpoint.
    pub checkpoint_id: Uuid,
    /// Its revision.
    pub workspace_revision: String,
    /// Its kind.
    pub kind: CheckpointKind,
    /// `content` (hash, size and tree digest equal) or `receipt`.
    pub verification: String,
    /// Entries in the tree; zero when the kind does not tell.
    pub entries: i64,
    /// Bytes of file content.
    pub bytes: i64,
}

/// How an acquire was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquisition {
    /// In one word.
    pub outcome: How,
    /// Why the former instance could not be used, for a replacement.
    pub reason: Option<String>,
    /// The instance this one follows.
    pub previous_instance_id: Option<Uuid>,
    /// What is in the workspace, if it was put back.
    pub restored_from: Option<RestoredFrom>,
}

/// What a pending lease's provisioning is to do; decided in the acquiring transaction, stored, carried out by whoever owns the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The checkpoint to put back; `None` starts empty.
    pub restore: Option<Uuid>,
    /// Whether the caller named it, and not the pointer: a fork when it is another sandbox's.
    #[serde(default)]
    pub fork: bool,
    /// What to do when it cannot be had.
    pub on_unavailable: Option<OnUnavailable>,
    /// Why the former instance is not used.
    pub reason: Option<String>,
    /// The instance this one follows.
    pub previous_instance_id: Option<Uuid>,
    /// Consent to lose what is unsaved in the former instance.
    #[serde(default)]
    pub discard: bool,
}

/// A release in progress, stored so that a crash cannot forget it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// What the lease will be.
    pub ends_as: Status,
    /// What becomes of the instance.
    pub disposition: Disposition,
    /// Whether the workspace is saved first.
    pub save: Save,
    /// Consent to lose what is unsaved.
    pub discard: bool,
    /// Kill running commands instead of waiting for them.
    pub cancel_active_work: bool,
    /// Nobody waits for the answer: on a failed capture the lease ends all the same and the instance is held.
    pub unattended: bool,
    /// The box was kept as evidence of a failed run.
    pub evidence: bool,
    /// The caller asked for a stop, so its provider has to confirm one.
    #[serde(default)]
    pub confirmed: bool,
}

/// A lease as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §4 and domain §1")]
pub struct Lease {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub sandbox_id: Uuid,
    pub environment_id: Uuid,
    pub instance_id: Option<Uuid>,
    pub generation: i64,
    pub epoch: i64,
    pub grant_seq: i64,
    pub status: Status,
    pub ends_as: Option<Status>,
    pub policy: Policy,
    pub access: Access,
    pub holder: String,
    pub harness: Option<String>,
    pub ttl_ms: i64,
    pub expires_at: Option<Time>,
    pub max_expires_at: Option<Time>,
    pub requested_expires_at: Option<Time>,
    pub require_provider_expiry: bool,
    pub retain_until: Option<Time>,
    pub evidence: bool,
    pub plan: Json<Plan>,
    pub acquisition: Option<Json<Acquisition>>,
    pub release: Option<Json<Release>>,
    pub failure_code: Option<String>,
    pub failure_reason: Option<String>,
    pub failure_facts: Option<Json<Value>>,
    pub metadata: Json<Value>,
    pub acquired_at: Option<Time>,
    pub renewed_at: Option<Time>,
    pub released_at: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Lease {
    /// Whether the time to live has passed at `now`. A pending lease has none yet.
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether this lease may write while it lives.
    pub fn is_writer(&self) -> bool {
        self.access == Access::ReadWrite
    }
}

impl Policy {
    /// The disposition of a release that names none.
    pub fn disposition(self, outcome: Outcome) -> Disposition {
        match (self, outcome) {
            (Self::ReuseByEnvironment, _) => Disposition::StopAndRetain,
            (Self::RetainOnFailure, Outcome::Failed) => Disposition::KeepRunning,
            (Self::Ephemeral | Self::RetainOnFailure, _) => Disposition::Destroy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table: each status with each event, as the design's §2 says it; what is not listed is illegal.
    #[test]
    #[expect(clippy::match_same_arms, reason = "one line for each row of the table")]
    fn every_status_and_event_is_decided() {
        use Status::*;
        let ends = [Event::End(Released), Event::End(Expired), Event::End(Failed)];
        let not_ends = [Event::End(Pending), Event::End(Active), Event::End(Retained), Event::End(PendingCleanup)];
        let legal = |status: Status, event: Event| -> Option<Status> {
            match (status, event) {
                (Pending, Event::Activate) => Some(Active),
                (Pending, Event::FailUntouched) => Some(Failed),
                (Pending, Event::AwaitTeardown) => Some(PendingCleanup),
                (Pending, Event::End(e)) if e.is_end() => Some(e),
                (Active, Event::Extend) => Some(Active),
                (Active, Event::Retain) => Some(Retained),
                (Active, Event::AwaitTeardown) => Some(PendingCleanup),
                (Active, Event::End(e)) if e.is_end() => Some(e),
                (Retained, Event::AwaitTeardown) => Some(PendingCleanup),
                (Retained, Event::End(e)) if e.is_end() => Some(e),
                (PendingCleanup, Event::End(e)) if e.is_end() => Some(e),
                _ => None,
            }
        };
        let mut pairs = 0;
        for status in Status::ALL {
            for event in ends.iter().chain(&not_ends).chain(&[
                Event::Activate,
                Event::FailUntouched,
                Event::Extend,
                Event::Retain,
                Event::AwaitTeardown,
            ]) {
                assert_eq!(status.on(*event).ok(), legal(*status, *event), "{status} {event:?}");
                pairs += 1;
            }
        }
        assert_eq!(pairs, 7 * 12);
    }

    #[test]
    fn nothing_leaves_an_end() {
        for end in Status::ALL.iter().filter(|s| s.is_end()) {
            for event in
                [Event::Activate, Event::FailUntouched, Event::Extend, Event::Retain, Event::AwaitTeardown, Event::End(Status::Released)]
            {
                assert!(end.on(event).is_err());
            }
        }
    }

    #[test]
    fn the_strongest_disposition_wins_by_order() {
        assert!(Disposition::Destroy > Disposition::StopAndRetain && Disposition::StopAndRetain > Disposition::KeepRunning);
        assert_eq!(Policy::RetainOnFailure.disposition(Outcome::Failed), Disposition::KeepRunning);
        assert_eq!(Policy::RetainOnFailure.disposition(Outcome::Succeeded), Disposition::Destroy);
    }
}
