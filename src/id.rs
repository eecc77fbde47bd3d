//! Identifiers: `UUIDv7`, so that they sort by the moment they were made.

use uuid::Uuid;

/// Makes a new identifier.
pub fn new() -> Uuid {
    Uuid::now_v7()
}
