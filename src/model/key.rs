//! API keys: who they belong to and what they may do.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::Time;
use crate::text_enum;

text_enum! {
    /// What a key may do. `Admin` includes `Write`, which includes `Read`; `Operator` stands alone and sees no tenant content.
    pub enum Scope {
        /// Look at things.
        Read => "read",
        /// Use sandboxes.
        Write => "write",
        /// Environments, secrets, plugins, keys, the organization's own instances.
        Admin => "admin",
        /// The deployment: organizations, limits, maintenance, background, metrics.
        Operator => "operator",
    }
}

impl Scope {
    /// Whether holding `self` grants `wanted`.
    pub fn grants(self, wanted: Self) -> bool {
        match self {
            Self::Operator => wanted == Self::Operator,
            _ => wanted != Self::Operator && self >= wanted,
        }
    }
}

/// A stored key; the secret itself is never stored.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// Its id, safe to show and log.
    pub id: Uuid,
    /// The tenant it belongs to.
    pub organization_id: Uuid,
    /// What a person calls it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// From when it no longer works.
    pub expires_at: Option<Time>,
    /// When it was made.
    pub created_at: Time,
}

impl ApiKey {
    /// Whether this key grants the scope.
    pub fn grants(&self, wanted: Scope) -> bool {
        self.scopes.iter().any(|held| held.grants(wanted))
    }
}

/// What is stored of a secret. Keys are random, so a plain hash is enough.
pub fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_contains_write_and_read_and_operator_stands_alone() {
        assert!(Scope::Admin.grants(Scope::Read) && Scope::Admin.grants(Scope::Write) && Scope::Write.grants(Scope::Read));
        assert!(!Scope::Write.grants(Scope::Admin) && !Scope::Read.grants(Scope::Write));
        assert!(!Scope::Admin.grants(Scope::Operator) && !Scope::Operator.grants(Scope::Read) && Scope::Operator.grants(Scope::Operator));
    }
}
