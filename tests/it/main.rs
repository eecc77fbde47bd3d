//! Every promise of Berth as a test, on both databases: one binary, one file a promise.
#![cfg(feature = "testing")]

mod harness;

mod counterexamples;
mod dirty_gate;
mod exclusivity;
mod lease_life;
mod release;
mod renew_and_expiry;
mod resume_and_provision;
