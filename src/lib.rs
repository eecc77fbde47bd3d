//! The map of Berth.

pub mod archive;
pub mod clock;
pub mod error;
pub mod id;
pub mod provider;
