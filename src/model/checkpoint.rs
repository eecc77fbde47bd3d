//! A checkpoint is what must not be lost: one revision of a workspace, and the artifact behind it.

use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use uuid::Uuid;

use super::IllegalStep;
use super::sandbox::Sandbox;
use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// What a checkpoint is made of.
    pub enum Kind {
        /// The provider's own snapshot: fast, dies with the provider's resource.
        ProviderNative => "provider_native",
        /// Our verified archive: the recovery path, on any provider.
        PortableWorkspace => "portable_workspace",
    }
}

text_enum! {
    /// Where a checkpoint stands.
    pub enum Status {
        /// Its bytes are being taken.
        Capturing => "capturing",
        /// It can be restored; it was never the pointer.
        Recorded => "recorded",
        /// It is, or was, the pointer's and may be it again.
        Attached => "attached",
        /// Rejected; still there to be fetched until collected.
        Detached => "detached",
        /// Its capture failed.
        Failed => "failed",
        /// A later capture was published before it.
        Superseded => "superseded",
    }
}

/// What may happen to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its bytes are stored and verified.
    Record,
    /// The pointer moves to it.
    Attach,
    /// It is rejected, or falls out of retention.
    Detach,
    /// Its capture failed.
    Fail,
    /// A later one was published first.
    Supersede,
}

impl Status {
    /// The one place that says which step is legal.
    pub fn on(self, event: Event) -> Result<Self, IllegalStep> {
        use Status::{Attached, Capturing, Detached, Failed, Recorded, Superseded};
        match (self, event) {
            (Capturing, Event::Record) => Ok(Recorded),
            (Capturing | Recorded | Attached | Detached | Superseded, Event::Attach) if self != Capturing => Ok(Attached),
            (Attached, Event::Detach) => Ok(Detached),
            (Capturing, Event::Fail) => Ok(Failed),
            (Capturing | Recorded, Event::Supersede) => Ok(Superseded),
            (from, event) => Err(IllegalStep { noun: "checkpoint", from: from.as_str(), event: format!("{event:?}") }),
        }
    }
}

text_enum! {
    /// Whether anything could have written while the bytes were taken.
    pub enum Consistency {
        /// Nothing could.
        Quiescent => "quiescent",
        /// The instance was paused.
        Paused => "paused",
        /// Background processes ran on; it does not make a sandbox clean.
        Live => "live",
    }
}

/// Something a reader of the checkpoint should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Which.
    pub code: String,
    /// How often.
    pub count: i64,
    /// The first place, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What a portable archive contains, independent of tar order, times and owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// How the digest is computed.
    pub algorithm: String,
    /// Lower-case hex.
    pub digest: String,
    /// Entries, the root not counted.
    pub entries: i64,
    /// Regular files.
    pub files: i64,
    /// Bytes of file content.
    pub bytes: i64,
}

/// A checkpoint as stored, with what its artifact says and whether the pointer names it.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the fields are the contract's, api §5 and domain §10")]
pub struct Checkpoint {
    pub id: Uuid,
    pub organization_id: Uuid,
    pub sandbox_id: Uuid,
    pub instance_id: Option<Uuid>,
    pub generation: i64,
    pub workspace_seq: Option<i64>,
    pub kind: Kind,
    pub status: Status,
    pub artifact_id: Option<Uuid>,
    pub parent_id: Option<Uuid>,
    pub provider_ref: Option<String>,
    pub workspace_revision: Option<String>,
    pub consistency: Option<Consistency>,
    pub warnings: Json<Vec<Warning>>,
    pub source_turn_id: Option<String>,
    pub source_tool_call_id: Option<String>,
    pub failure_code: Option<String>,
    pub attached_at: Option<Time>,
    pub detached_at: Option<Time>,
    pub superseded_by: Option<Uuid>,
    pub expires_at: Option<Time>,
    pub created_at: Time,
    pub size_bytes: Option<i64>,
    pub archive_sha256: Option<String>,
    pub tree: Option<Json<Tree>>,
    pub object_key: Option<String>,
    pub current: bool,
}

impl Checkpoint {
    /// A row of which nothing is known yet but what it is.
    pub fn begun(id: Uuid, sandbox: &Sandbox, kind: Kind, generation: i64, status: Status, now: Time) -> Self {
        Self {
            id,
            organization_id: sandbox.organization_id,
            sandbox_id: sandbox.id,
            instance_id: None,
            generation,
            workspace_seq: None,
            kind,
            status,
            artifact_id: None,
            parent_id: None,
            provider_ref: None,
            workspace_revision: None,
            consistency: None,
            warnings: Json(Vec::new()),
            source_turn_id: None,
            source_tool_call_id: None,
            failure_code: None,
            attached_at: None,
            detached_at: None,
            superseded_by: None,
            expires_at: None,
            created_at: now,
            size_bytes: None,
            archive_sha256: None,
            tree: None,
            object_key: None,
            current: false,
        }
    }
}

/// The revision of these bytes: what they are, when they were captured and their SHA-256.
pub fn revision(kind: Kind, captured_at: Time, archive_sha256: &str) -> String {
    format!("{}:{:013}:{archive_sha256}", prefix(kind), captured_at.0)
}

fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::PortableWorkspace => "wa1",
        Kind::ProviderNative => "wa2",
    }
}

/// Whether a revision is well formed and of this kind: `wa1:` portable, `wa2:` native, 13 digits, 64 hex digits.
pub fn revision_is(revision: &str, kind: Kind) -> bool {
    let mut parts = revision.split(':');
    let hex64 = |s: &str| s.len() == 64 && s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    parts.next() == Some(prefix(kind))
        && parts.next().is_some_and(|ms| ms.len() == 13 && ms.bytes().all(|b| b.is_ascii_digit()))
        && parts.next().is_some_and(hex64)
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_and_event_is_decided() {
        use Status::*;
        let expected: &[(Status, &[(Event, Status)])] = &[
            (Capturing, &[(Event::Record, Recorded), (Event::Fail, Failed), (Event::Supersede, Superseded)]),
            (Recorded, &[(Event::Attach, Attached), (Event::Supersede, Superseded)]),
            (Attached, &[(Event::Attach, Attached), (Event::Detach, Detached)]),
            (Detached, &[(Event::Attach, Attached)]),
            (Failed, &[]),
            (Superseded, &[(Event::Attach, Attached)]),
        ];
        assert_eq!(expected.len(), Status::ALL.len());
        for (status, legal) in expected {
            for event in [Event::Record, Event::Attach, Event::Detach, Event::Fail, Event::Supersede] {
                let want = legal.iter().find(|(e, _)| *e == event).map(|(_, to)| *to);
                assert_eq!(status.on(event).ok(), want, "{status} {event:?}");
            }
        }
    }

    #[test]
    fn revisions_are_strict() {
        let sha = "a".repeat(64);
        let revision = revision(Kind::PortableWorkspace, Time(1_764_000_000_000), &sha);
        assert!(revision_is(&revision, Kind::PortableWorkspace) && !revision_is(&revision, Kind::ProviderNative));
        for bad in ["", "wa1:1:a", &format!("wa1:1764000000000:{}", "A".repeat(64)), &format!("{revision}:x")] {
            assert!(!revision_is(bad, Kind::PortableWorkspace), "{bad}");
        }
    }
}
