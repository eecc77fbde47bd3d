//! The map of Berth.

pub mod clock;
pub mod error;
pub mod id;
pub mod model;
pub mod ops;
pub mod provider;
#[macro_use]
pub mod store;
