//! The map of Berth.

pub mod archive;
pub mod background;
pub mod clock;
pub mod error;
pub mod id;
pub mod model;
pub mod ops;
pub mod provider;
pub mod store;
