//! Native snapshot receipts: a prefix line and compact JSON that stand where an archive's bytes would. A receipt is told from a tar by
//! its content alone; what is not exactly one is treated as a tar.

use serde_json::{Map, Value};

/// More than any receipt has; what is longer is a tar.
pub const MOST_BYTES: usize = 64 << 10;

/// Which provider's snapshot, as its prefix line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A snapshot of E2B.
    E2b,
    /// A directory snapshot of Modal.
    ModalDirectory,
    /// A file-system snapshot of Modal.
    ModalFilesystem,
    /// A snapshot of Runloop.
    Runloop,
    /// A snapshot of Vercel.
    Vercel,
}

impl Origin {
    const ALL: [Self; 5] = [Self::E2b, Self::ModalDirectory, Self::ModalFilesystem, Self::Runloop, Self::Vercel];

    fn prefix(self) -> &'static str {
        match self {
            Self::E2b => "E2B_SANDBOX_SNAPSHOT_V1\n",
            Self::ModalDirectory => "MODAL_SANDBOX_DIR_SNAPSHOT_V1\n",
            Self::ModalFilesystem => "MODAL_SANDBOX_FS_SNAPSHOT_V1\n",
            Self::Runloop => "RUNLOOP_SANDBOX_SNAPSHOT_V1\n",
            Self::Vercel => "UC_VERCEL_SNAPSHOT_V1\n",
        }
    }

    /// The name descriptors use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::E2b => "e2b",
            Self::ModalDirectory => "modal_snapshot_directory",
            Self::ModalFilesystem => "modal_snapshot_filesystem",
            Self::Runloop => "runloop",
            Self::Vercel => "vercel",
        }
    }

    /// By the name descriptors use.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.as_str() == name)
    }

    /// The provider whose account holds the snapshot.
    pub fn provider(self) -> &'static str {
        match self {
            Self::ModalDirectory | Self::ModalFilesystem => "modal",
            other => other.as_str(),
        }
    }

    /// Whether a stated persistence does not contradict the prefix.
    pub fn agrees(self, persistence: Option<&str>) -> bool {
        match (self, persistence) {
            (Self::ModalDirectory, Some(told)) => told == "snapshot_directory",
            (Self::ModalFilesystem, Some(told)) => told == "snapshot_filesystem",
            _ => true,
        }
    }
}

/// What a receipt says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Whose snapshot.
    pub origin: Origin,
    /// The provider's name of it.
    pub snapshot_id: String,
    /// How the workspace was persisted, if it says.
    pub workspace_persistence: Option<String>,
}

impl Receipt {
    /// Whether bytes that begin like this may still turn out to be a receipt.
    pub fn may_begin(bytes: &[u8]) -> bool {
        Origin::ALL.iter().any(|origin| {
            let prefix = origin.prefix().as_bytes();
            let length = prefix.len().min(bytes.len());
            bytes[..length] == prefix[..length]
        })
    }

    /// Reads a receipt; `None` for everything that is not exactly one. Keys it does not know are tolerated.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MOST_BYTES {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let (origin, json) = Origin::ALL.into_iter().find_map(|origin| Some((origin, text.strip_prefix(origin.prefix())?)))?;
        let fields: Map<String, Value> = serde_json::from_str(json).ok()?;
        let snapshot_id = fields.get("snapshot_id")?.as_str().filter(|id| !id.is_empty())?.to_owned();
        let workspace_persistence = match fields.get("workspace_persistence") {
            None => None,
            Some(told) => Some(told.as_str()?.to_owned()),
        };
        Some(Self { origin, snapshot_id, workspace_persistence })
    }

    /// The bytes of this receipt: the prefix line and compact JSON, without a newline at the end.
    pub fn to_bytes(&self) -> Vec<u8> {
        let id = Value::from(self.snapshot_id.as_str());
        let persistence =
            self.workspace_persistence.as_ref().map(|told| format!(",\"workspace_persistence\":{}", Value::from(told.as_str())));
        format!("{}{{\"snapshot_id\":{id}{}}}", self.origin.prefix(), persistence.unwrap_or_default()).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_form_is_read_and_made() {
        let forms = [
            ("E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"s-1\"}", Origin::E2b, "e2b", "s-1", None),
            (
                "MODAL_SANDBOX_DIR_SNAPSHOT_V1\n{\"snapshot_id\":\"im-1\",\"workspace_persistence\":\"snapshot_directory\"}",
                Origin::ModalDirectory,
                "modal",
                "im-1",
                Some("snapshot_directory"),
            ),
            (
                "MODAL_SANDBOX_FS_SNAPSHOT_V1\n{\"snapshot_id\":\"im-2\",\"workspace_persistence\":\"snapshot_filesystem\"}",
                Origin::ModalFilesystem,
                "modal",
                "im-2",
                Some("snapshot_filesystem"),
            ),
            ("RUNLOOP_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"rl\"}", Origin::Runloop, "runloop", "rl", None),
            ("UC_VERCEL_SNAPSHOT_V1\n{\"snapshot_id\":\"a\\\"b\\u0001é\"}", Origin::Vercel, "vercel", "a\"b\u{1}é", None),
        ];
        for (text, origin, provider, id, persistence) in forms {
            let receipt = Receipt::parse(text.as_bytes()).expect(text);
            assert_eq!((receipt.origin, receipt.origin.provider(), receipt.snapshot_id.as_str()), (origin, provider, id));
            assert_eq!(receipt.workspace_persistence.as_deref(), persistence);
            assert_eq!(String::from_utf8(receipt.to_bytes()).unwrap(), text, "made as it was published");
            assert!(origin.agrees(persistence) && Origin::named(origin.as_str()) == Some(origin));
            for length in 0..text.len() {
                assert!(Receipt::may_begin(&text.as_bytes()[..length]));
            }
        }
        assert!(!Origin::ModalDirectory.agrees(Some("snapshot_filesystem")) && !Origin::ModalFilesystem.agrees(Some("tar")));
    }

    #[test]
    fn unknown_keys_are_tolerated_and_nothing_else_is() {
        assert!(Receipt::parse(b"E2B_SANDBOX_SNAPSHOT_V1\n{ \"more\": [1], \"snapshot_id\": \"s\" }").is_some());
        let malformed: [&[u8]; 14] = [
            b"",
            b"{\"snapshot_id\":\"s\"}",
            b"E2B_SANDBOX_SNAPSHOT_V1",
            b"E2B_SANDBOX_SNAPSHOT_V1\n",
            b"E2B_SANDBOX_SNAPSHOT_V1 \n{\"snapshot_id\":\"s\"}",
            b"E2B_SANDBOX_SNAPSHOT_V1\r\n{\"snapshot_id\":\"s\"}",
            b"E2B_SANDBOX_SNAPSHOT_V2\n{\"snapshot_id\":\"s\"}",
            b" E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"s\"}",
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"\"}",
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":7}",
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"s\",\"workspace_persistence\":7}",
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"s\"} trailing",
            b"E2B_SANDBOX_SNAPSHOT_V1\n[\"snapshot_id\"]",
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"\xff\"}",
        ];
        for bytes in malformed {
            assert_eq!(Receipt::parse(bytes), None, "{}", bytes.escape_ascii());
        }
        let long = format!("E2B_SANDBOX_SNAPSHOT_V1\n{{\"snapshot_id\":\"{}\"}}", "s".repeat(MOST_BYTES));
        assert_eq!(Receipt::parse(long.as_bytes()), None);
        assert!(!Receipt::may_begin(b"E2C") && !Receipt::may_begin(&[0x28, 0xb5, 0x2f, 0xfd]));
    }
}
