//! Every promise of Berth as a test, on both databases: one binary, one file a promise.
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on has failed, and owns what it spawns")]

mod harness;

mod browsers;
mod canary;
mod checkpoints;
mod counterexamples;
mod crash;
mod dirty_gate;
mod docker;
mod doctor;
mod downloads;
mod environments;
mod events;
mod exclusivity;
mod exec_stream;
mod house;
mod idempotency;
mod keys;
mod lease_life;
mod ledger;
mod local;
mod many;
mod metrics;
mod newcomer;
mod object_store;
mod observer;
mod operator;
mod outage;
mod pages;
mod passes;
mod plugin_conformance;
mod plugin_life;
mod plugins;
mod readme;
mod release;
mod renew_and_expiry;
mod replicas;
mod required;
mod resume_and_provision;
mod rotation;
mod secrets;
mod simulation;
mod spool;
mod sync;
mod waiting;
mod walk;
