//! The map of Berth.

pub mod app;
pub mod archive;
pub mod background;
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
pub mod store;
pub mod telemetry;
pub mod trace;
