//! Every promise of Berth as a test, on both databases: one binary, one file a promise.
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on has failed, and owns what it spawns")]

mod harness;

mod checkpoints;
mod counterexamples;
mod exclusivity;
mod house;
mod lease_life;
mod local;
mod object_store;
mod release;
mod renew_and_expiry;
mod resume_and_provision;
