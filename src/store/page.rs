//! Pages: newest first, walked by an opaque cursor over (`created_at`, id) that is bound to its filters, so that a walk never
//! repeats or loses what existed throughout.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use sqlx::types::Json;
use uuid::Uuid;

use crate::clock::Time;

/// Where a page begins: strictly older than this row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The last row's time.
    pub created_at: Time,
    /// The last row's id.
    pub id: Uuid,
}

impl Cursor {
    /// The opaque text, bound to the filters it was made under.
    pub fn encode(&self, filters: &str) -> String {
        let mut bytes = self.created_at.0.to_be_bytes().to_vec();
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(&Sha256::digest(filters)[..8]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads the text; `None` if it is not ours or was made under other filters.
    pub fn decode(text: &str, filters: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (time, rest) = bytes.split_at_checked(8)?;
        let (id, bound) = rest.split_at_checked(16)?;
        let same = bound == &Sha256::digest(filters)[..8];
        same.then_some(Self { created_at: Time(i64::from_be_bytes(time.try_into().ok()?)), id: Uuid::from_slice(id).ok()? })
    }
}

/// What a list may be narrowed by; each noun uses what it has. All must hold.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// One of these words.
    pub status: Vec<String>,
    /// Of this environment.
    pub environment: Option<Uuid>,
    /// Of this holder.
    pub holder: Option<String>,
    /// Of this sandbox.
    pub sandbox: Option<Uuid>,
    /// Whose scope has these pairs.
    pub scope: BTreeMap<String, String>,
    /// Whose metadata has these pairs.
    pub metadata: BTreeMap<String, String>,
    /// Quarantined ones only, or none of them.
    pub quarantined: Option<bool>,
    /// Of this turn.
    pub source_turn: Option<String>,
    /// Of this tool call.
    pub source_tool_call: Option<String>,
}

impl Filters {
    /// `,a,b,` for a `LIKE` on both databases; `None` when any status will do. The words come from enums.
    pub(super) fn status_list(&self) -> Option<String> {
        (!self.status.is_empty()).then(|| format!(",{},", self.status.join(",")))
    }

    pub(super) fn pairs(pairs: &BTreeMap<String, String>) -> Option<Json<&BTreeMap<String, String>>> {
        (!pairs.is_empty()).then_some(Json(pairs))
    }
}

/// What stands for "from the newest".
pub(super) fn start(cursor: Option<Cursor>) -> (i64, Uuid) {
    cursor.map_or((i64::MAX, Uuid::max()), |c| (c.created_at.0, c.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_its_filters() {
        let cursor = Cursor { created_at: Time(5), id: Uuid::from_u128(9) };
        let text = cursor.encode("leases|status=active");
        assert_eq!(Cursor::decode(&text, "leases|status=active"), Some(cursor));
        assert_eq!(Cursor::decode(&text, "leases|"), None);
        for garbage in ["", "garbage", "AAAA", &text[1..]] {
            assert_eq!(Cursor::decode(garbage, "leases|status=active"), None);
        }
    }
}
