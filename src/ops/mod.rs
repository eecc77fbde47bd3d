//! Verbs: one file a verb, a story from top to bottom. The only room that knows the store and the providers.

pub mod input;
mod stubs;
pub mod view;

pub use stubs::*;
