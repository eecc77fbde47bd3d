//! Berth's nouns: what they are, which states they have, which steps are legal. Pure: nothing here asks or tells the world.

pub mod capability;
pub mod checkpoint;
pub mod environment;
pub mod event;
pub mod fingerprint;
pub mod instance;
pub mod key;
pub mod lease;
pub mod operation;
pub mod plugin;
pub mod resource;
pub mod sandbox;
pub mod scope;
pub mod secret;
pub mod text;
pub mod token;

/// A step that a state machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{noun} cannot take {event} while {from}")]
pub struct IllegalStep {
    /// Which noun's machine.
    pub noun: &'static str,
    /// The state it is in.
    pub from: &'static str,
    /// What was tried.
    pub event: String,
}
