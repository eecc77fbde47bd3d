//! Secrets on the wire: a value goes in and never comes out.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{page, words};
use crate::clock::Time;
use crate::error::FieldError;
use crate::http::body::Checked;
use crate::model::secret::{self, LARGEST};

/// Stores a value as the next version of a secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretPut {
    /// The value, at most 64 KiB as UTF-8; never shown again.
    #[schema(min_length = 1, max_length = 65536, write_only)]
    pub value: String,
}

impl fmt::Debug for SecretPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretPut([hidden])")
    }
}

impl Checked for SecretPut {
    fn check(&self, errors: &mut Vec<FieldError>) {
        if self.value.len() > LARGEST {
            errors.push(FieldError { pointer: "/value".to_owned(), message: format!("must have at most {LARGEST} bytes as UTF-8") });
        }
    }
}

/// A named value that configurations refer to as `{"secret_ref": {"name": …, "version"?: …}}`; shown without the value.
#[derive(Debug, Serialize, ToSchema)]
pub struct Secret {
    /// The secret's id; another one after it was deleted and put again.
    pub id: Uuid,
    /// Unique in the organization.
    pub name: String,
    /// The latest version, which a reference without one means.
    pub version: i64,
    /// When the first version was put.
    #[schema(value_type = words::Timestamp)]
    pub created_at: Time,
    /// When the latest version was put.
    #[schema(value_type = words::Timestamp)]
    pub updated_at: Time,
}

impl Secret {
    /// The secret as its reader sees it.
    pub fn of(row: &secret::Secret) -> Self {
        Self { id: row.id, name: row.name.clone(), version: row.version, created_at: row.created_at, updated_at: row.updated_at }
    }
}

page!(
    /// A page of secrets, newest first, without their values.
    SecretPage,
    Secret,
    secret::Secret
);
