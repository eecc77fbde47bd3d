//! What a request under an idempotency key may have made, by kind and id.

use uuid::Uuid;

use crate::text_enum;

text_enum! {
    /// Which table the id is of.
    pub enum Kind {
        /// A lease.
        Lease => "lease",
        /// A command.
        Exec => "exec",
        /// A change of files.
        File => "file",
        /// A checkpoint.
        Checkpoint => "checkpoint",
        /// A sandbox.
        Sandbox => "sandbox",
        /// An environment.
        Environment => "environment",
        /// An organization.
        Organization => "organization",
        /// An API key.
        ApiKey => "api_key",
        /// A plugin.
        Plugin => "plugin",
    }
}

/// A resource that an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What it is.
    pub kind: Kind,
    /// Its id.
    pub id: Uuid,
}
