//! The map of Berth.

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod error;
pub mod http;
pub mod id;
pub mod model;
pub mod ops;
pub mod provider;
pub mod shutdown;
#[macro_use]
pub mod store;
pub mod telemetry;
