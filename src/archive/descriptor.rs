//! Descriptors: what another system wrote down about an archive or a receipt, read strictly, so that nothing is believed of bytes that
//! was not said about exactly them.

use serde_json::{Value, json};

use super::receipt::{Origin, Receipt};
use crate::clock::Time;

/// The largest whole number that every reader of JSON keeps.
const MOST: u64 = (1 << 53) - 1;

/// How a tar's tree was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// GNU tar of the tree; the form without a name.
    GnuTarV1,
    /// The JSON archive of a local sandbox.
    SdkLocalArchiveV1,
}

/// What a descriptor says its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Version 1: a tar.
    Tar {
        /// SHA-256 of the tree's projection, lower-case hex.
        sha256: String,
        /// Entries, the root not counted.
        entries: u64,
        /// Regular files.
        files: u64,
        /// Bytes of content.
        bytes: u64,
        /// How it was measured.
        projection: Projection,
    },
    /// Version 2: a provider's snapshot, by its receipt.
    Snapshot(Receipt),
}

/// A descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// SHA-256 of the archive's or the receipt's bytes, lower-case hex.
    pub archive_sha256: String,
    /// Their number.
    pub archive_bytes: u64,
    /// When they were taken.
    pub captured_at: Time,
    /// What they are.
    pub content: Content,
}

impl Descriptor {
    /// Reads a descriptor; `None` (`archive_metadata_invalid`) unless every field is there, of its form, and agrees with the others.
    pub fn parse(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key)?.as_str();
        let archive_sha256 = hex64(text("archiveSha256")?)?;
        let archive_bytes = value.get("archiveBytes")?.as_u64().filter(|n| (1..=MOST).contains(n))?;
        let captured_at = Time::parse(text("capturedAt")?)?;
        let (prefix, content) = match value.get("version")?.as_u64()? {
            1 => ("wa1", tar(value.get("workspace")?)?),
            2 if text("kind")? == "provider_snapshot" => ("wa2", Content::Snapshot(snapshot(value)?)),
            _ => return None,
        };
        let made = Self { archive_sha256, archive_bytes, captured_at, content };
        (text("revision")? == made.revision_as(prefix)).then_some(made)
    }

    /// The revision these bytes are recorded as.
    pub fn revision(&self) -> String {
        self.revision_as(match self.content {
            Content::Tar { .. } => "wa1",
            Content::Snapshot(_) => "wa2",
        })
    }

    /// The published form.
    pub fn to_json(&self) -> Value {
        let mut made = json!({
            "version": 1,
            "revision": self.revision(),
            "archiveSha256": self.archive_sha256,
            "archiveBytes": self.archive_bytes,
            "capturedAt": self.captured_at.to_string(),
        });
        match &self.content {
            Content::Tar { sha256, entries, files, bytes, projection } => {
                made["workspace"] =
                    json!({ "algorithm": "sha256", "sha256": sha256, "entryCount": entries, "fileCount": files, "totalFileBytes": bytes });
                if *projection == Projection::SdkLocalArchiveV1 {
                    made["workspace"]["projection"] = Value::from("sdk_local_archive_v1");
                }
            }
            Content::Snapshot(receipt) => {
                made["version"] = Value::from(2);
                made["kind"] = Value::from("provider_snapshot");
                made["provider"] = Value::from(receipt.origin.as_str());
                made["snapshotId"] = Value::from(receipt.snapshot_id.as_str());
                if let Some(told) = &receipt.workspace_persistence {
                    made["workspacePersistence"] = Value::from(told.as_str());
                }
            }
        }
        made
    }

    fn revision_as(&self, prefix: &str) -> String {
        format!("{prefix}:{:013}:{}", self.captured_at.0, self.archive_sha256)
    }
}

fn hex64(text: &str) -> Option<String> {
    let good = text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    good.then(|| text.to_owned())
}

fn tar(workspace: &Value) -> Option<Content> {
    let count = |key: &str| workspace.get(key)?.as_u64().filter(|n| *n <= MOST);
    if workspace.get("algorithm")?.as_str()? != "sha256" {
        return None;
    }
    let projection = match workspace.get("projection") {
        None => Projection::GnuTarV1,
        Some(named) if named == "sdk_local_archive_v1" => Projection::SdkLocalArchiveV1,
        Some(_) => return None,
    };
    let (entries, files, bytes) = (count("entryCount")?, count("fileCount")?, count("totalFileBytes")?);
    Some(Content::Tar { sha256: hex64(workspace.get("sha256")?.as_str()?)?, entries, files, bytes, projection })
}

fn snapshot(value: &Value) -> Option<Receipt> {
    let origin = Origin::named(value.get("provider")?.as_str()?)?;
    let snapshot_id = value.get("snapshotId")?.as_str().filter(|id| !id.is_empty())?.to_owned();
    let workspace_persistence = match value.get("workspacePersistence") {
        None => None,
        Some(told) => Some(told.as_str()?.to_owned()),
    };
    origin.agrees(workspace_persistence.as_deref()).then_some(Receipt { origin, snapshot_id, workspace_persistence })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn tar_form() -> Value {
        json!({ "version": 1, "revision": format!("wa1:1764000000123:{SHA}"), "archiveSha256": SHA, "archiveBytes": 10240,
            "capturedAt": "2025-11-24T16:00:00.123Z",
            "workspace": { "algorithm": "sha256", "sha256": SHA, "entryCount": 3, "fileCount": 2, "totalFileBytes": 0 } })
    }

    fn snapshot_form() -> Value {
        json!({ "version": 2, "kind": "provider_snapshot", "revision": format!("wa2:1764000000123:{SHA}"), "archiveSha256": SHA,
            "archiveBytes": 90, "capturedAt": "2025-11-24T16:00:00.123Z", "provider": "modal_snapshot_filesystem", "snapshotId": "im-1",
            "workspacePersistence": "snapshot_filesystem" })
    }

    #[test]
    fn both_versions_are_read_and_made() {
        for form in [tar_form(), snapshot_form()] {
            let read = Descriptor::parse(&form).expect("a descriptor");
            assert_eq!(read.to_json(), form);
            assert_eq!(form["revision"], read.revision());
        }
        let mut local = tar_form();
        local["workspace"]["projection"] = Value::from("sdk_local_archive_v1");
        let read = Descriptor::parse(&local).unwrap();
        assert!(matches!(read.content, Content::Tar { projection: Projection::SdkLocalArchiveV1, .. }) && read.to_json() == local);
    }

    #[test]
    fn every_other_form_is_invalid() {
        let wrong: &[(&str, Value)] = &[
            ("/version", json!(3)),
            ("/version", json!("1")),
            ("/version", json!(2)),
            ("/revision", json!(format!("wa2:1764000000123:{SHA}"))),
            ("/revision", json!(format!("wa1:1764000000124:{SHA}"))),
            ("/revision", json!(format!("wa1:1764000000123:{}", "0".repeat(64)))),
            ("/archiveSha256", json!(SHA.to_uppercase())),
            ("/archiveSha256", json!("abc")),
            ("/archiveBytes", json!(0)),
            ("/archiveBytes", json!(-1)),
            ("/archiveBytes", json!(1.5)),
            ("/archiveBytes", json!(9_007_199_254_740_992_u64)),
            ("/capturedAt", json!("yesterday")),
            ("/capturedAt", json!("2025-11-24T16:00:00.124Z")),
            ("/workspace/algorithm", json!("sha1")),
            ("/workspace/sha256", json!("")),
            ("/workspace/entryCount", json!(-1)),
            ("/workspace/fileCount", json!("2")),
            ("/workspace/totalFileBytes", Value::Null),
            ("/workspace/projection", json!("gnu_tar_v2")),
        ];
        for (pointer, value) in wrong {
            let mut form = tar_form();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            form.pointer_mut(parent).unwrap()[key] = value.clone();
            assert_eq!(Descriptor::parse(&form), None, "{pointer} = {value}");
        }
        let wrong: &[(&str, Value)] = &[
            ("kind", json!("snapshot")),
            ("provider", json!("modal")),
            ("snapshotId", json!("")),
            ("workspacePersistence", json!("snapshot_directory")),
            ("workspacePersistence", Value::Null),
            ("revision", json!(format!("wa1:1764000000123:{SHA}"))),
        ];
        for (key, value) in wrong {
            let mut form = snapshot_form();
            form[*key] = value.clone();
            assert_eq!(Descriptor::parse(&form), None, "{key} = {value}");
        }
        for key in ["version", "revision", "archiveSha256", "archiveBytes", "capturedAt", "workspace"] {
            let mut form = tar_form();
            form.as_object_mut().unwrap().remove(key);
            assert_eq!(Descriptor::parse(&form), None, "without {key}");
        }
    }
}
