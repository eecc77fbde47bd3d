//! What is said of a provider's own snapshots.

use serde::Serialize;

use crate::clock::Time;

/// What a provider's own snapshots are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshots {
    /// What taking one does to the live object.
    pub effect: CaptureEffect,
    /// How a capturer that died may be taken over.
    pub takeover: Takeover,
}

/// What taking a snapshot does to the live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureEffect {
    /// Nothing: its processes write on meanwhile.
    None,
    /// Everything in it stands still meanwhile, and goes on afterwards by itself, also when the caller is gone.
    Pauses,
    /// It is over afterwards.
    Ends,
}

/// How a capturer that died may be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Takeover {
    /// The same request under the same id finds the same snapshot.
    SameRequest,
    /// Another snapshot may be taken beside one that is still being taken.
    ParallelRead,
    /// Not before the former one has surely ended.
    Exclusive,
}

/// A snapshot, as its provider names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The provider's name of it; means something under this binding only.
    pub snapshot_ref: String,
    /// Bytes, if the provider tells.
    pub size_bytes: Option<u64>,
    /// When the provider itself will delete it, if it attests that.
    pub expires_at: Option<Time>,
}

/// One snapshot of ours in the provider's inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSnapshot {
    /// The provider's name of it.
    pub snapshot_ref: String,
    /// When it was taken, if the provider tells.
    pub created_at: Option<Time>,
}
