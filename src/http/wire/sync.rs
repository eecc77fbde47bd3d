//! What a sandbox can do, on the wire.

use serde::Serialize;
use utoipa::ToSchema;

/// One of the nine things a sandbox may or may not be able to do.
#[derive(Debug, Serialize, ToSchema)]
pub struct Capability {
    /// Which.
    pub key: &'static str,
    /// Whether this lease has it.
    pub granted: bool,
    /// Why it has not.
    pub reason: Option<&'static str>,
}

/// The capabilities of a lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct CapabilityPage {
    /// All nine.
    pub items: Vec<Capability>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
}
