//! All SQL lives here: one text for both databases, one file per noun. Nothing in this room calls a provider.
//!
//! Doctrine: the sandbox row is the lock of everything below it. A transaction that writes a lease, an instance, a checkpoint
//! or an operation first takes it with [`Tx::lock_sandbox`]; what it then reads is current, the time it then reads is later
//! than the lock, and each write names the state it expects in its WHERE clause and counts its rows.

#[macro_use]
mod backend;
pub mod artifact;
mod batch;
pub mod checkpoint;
pub mod claim;
mod contact;
pub mod counts;
pub mod due;
pub mod environment;
pub mod error;
pub mod event;
pub mod fence;
pub mod idempotency;
pub mod instance;
pub mod invariant;
pub mod key;
pub mod lease;
mod log;
pub mod operation;
pub mod organization;
pub mod page;
pub mod plugin;
mod readers;
pub mod sandbox;
pub mod secret;

pub use backend::{Store, Tx};
pub use claim::{ClaimKind, Claimed};
pub use fence::{Carried, Fenced};
pub use page::{Cursor, Filters};

/// A statement's result, before it is told in the contract's words.
pub type Result<T> = std::result::Result<T, error::StoreError>;
