//! How a plugin's calls fail: what may be concluded from an error, and the one kind of error that names what was left behind.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::provider::{Kind, ProviderError};

/// Why a call did not give its result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The transport's word.
    Transport(ProviderError),
    /// The worker's own word; its text goes no further than this room.
    Said {
        /// JSON-RPC's number.
        code: i64,
        /// For classifying alone.
        text: String,
        /// Typed, or worth nothing.
        data: Value,
    },
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self::Transport(error)
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        let (code, text, data) = match failure {
            Failure::Transport(error) => return error,
            Failure::Said { code, text, data } => (code, text, data),
        };
        let (kind, message) = match code {
            -32_601 | -32_004 => (Kind::Unsupported, "the plugin has no such method"),
            -32_602 | -32_006 => (Kind::Invalid, "the plugin does not take these parameters"),
            -32_000 => (Kind::Transient, "the plugin's worker does not run"),
            -32_003 => (Kind::Indeterminate, "the plugin's worker did not answer in time"),
            _ if is_transient(&text, &data) => (Kind::Transient, "the plugin says that it may work later"),
            _ => (Kind::Failed, "the plugin failed"),
        };
        Self::new(kind, message)
    }
}

/// Whether an error is one that passes: by its typed status or network code, or by whole words of its text.
fn is_transient(text: &str, data: &Value) -> bool {
    let status = ["status", "statusCode"].iter().find_map(|key| data[key].as_u64());
    if status.is_some_and(|status| status == 429 || (500..600).contains(&status)) {
        return true;
    }
    let network = ["ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "EAI_AGAIN", "ENETUNREACH"];
    if data["code"].as_str().is_some_and(|code| network.contains(&code)) {
        return true;
    }
    let words: Vec<String> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    let phrases: [&[&str]; 8] = [
        &["timeout"],
        &["timed", "out"],
        &["rate", "limit"],
        &["network"],
        &["connection", "reset"],
        &["service", "unavailable"],
        &["temporarily", "unavailable"],
        &["temporary"],
    ];
    phrases.iter().any(|phrase| words.windows(phrase.len()).any(|window| window == *phrase))
}

/// The typed error that says what a creation may have left behind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cleanup {
    provider_lease_id: String,
    company_id: String,
    environment_id: String,
    run_id: Option<String>,
    attempt_id: String,
    account_fingerprint: String,
    labels: BTreeMap<String, String>,
}

/// Whose creation it must have been to be believed.
#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) organization: Uuid,
    pub(super) environment: Uuid,
    pub(super) run: String,
}

/// The name of what this very creation left behind, if the error says so in its typed form; anything malformed is no word at all.
pub(super) fn left_behind(failure: &Failure, creation: &Creation) -> Option<String> {
    let Failure::Said { data, .. } = failure else { return None };
    if data["schema"] != "paperclip/environment-creation-cleanup/v1" {
        return None;
    }
    let cleanup = Cleanup::deserialize(&data["cleanup"]).ok()?;
    let is_id = |text: &str| (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let is_label = |key: &str| {
        key.strip_prefix("paperclip-").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
    };
    let ids = [&cleanup.provider_lease_id, &cleanup.company_id, &cleanup.environment_id, &cleanup.attempt_id];
    let fingerprint = &cleanup.account_fingerprint;
    let well_formed = ids.into_iter().chain(&cleanup.run_id).chain(cleanup.labels.values()).all(|id| is_id(id))
        && fingerprint.len() == 64
        && fingerprint.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        && cleanup.labels.len() <= 16
        && cleanup.labels.keys().all(|key| is_label(key));
    let ours = cleanup.company_id == creation.organization.to_string()
        && cleanup.environment_id == creation.environment.to_string()
        && cleanup.run_id.as_ref() == Some(&creation.run);
    (well_formed && ours).then_some(cleanup.provider_lease_id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_passes_is_told_by_codes_and_whole_words() {
        for (text, data) in [
            ("Request timed out", json!(null)),
            ("hit the rate limit", json!(null)),
            ("temporarily unavailable", json!(null)),
            ("x", json!({ "status": 503 })),
            ("x", json!({ "statusCode": 429 })),
            ("x", json!({ "code": "ECONNRESET" })),
        ] {
            assert!(is_transient(text, &data), "{text} {data}");
        }
        for (text, data) in
            [("sandbox is stale", json!(null)), ("timeouts", json!(null)), ("x", json!({ "status": 404 })), ("rate limited", json!({}))]
        {
            assert!(!is_transient(text, &data), "{text} {data}");
        }
    }

    #[test]
    fn what_a_creation_left_is_believed_only_whole_and_only_of_that_creation() {
        let creation = Creation { organization: Uuid::from_u128(1), environment: Uuid::from_u128(2), run: Uuid::from_u128(3).to_string() };
        let data = json!({
            "schema": "paperclip/environment-creation-cleanup/v1",
            "cleanup": {
                "providerLeaseId": "box-1", "companyId": Uuid::from_u128(1), "environmentId": Uuid::from_u128(2), "runId": Uuid::from_u128(3),
                "attemptId": "a-1", "accountFingerprint": "ab".repeat(32), "labels": { "paperclip-run": "r" }, "token": "never crosses"
            }
        });
        let told = |data: Value| left_behind(&Failure::Said { code: -32_002, text: String::new(), data }, &creation);
        assert_eq!(told(data.clone()).as_deref(), Some("box-1"));
        let many: serde_json::Map<String, Value> = (1..18).map(|i| (format!("paperclip-{}", "a".repeat(i)), json!("v"))).collect();
        for (pointer, wrong) in [
            ("/schema", json!("another/v1")),
            ("/cleanup/companyId", json!(Uuid::from_u128(9))),
            ("/cleanup/environmentId", json!(Uuid::from_u128(9))),
            ("/cleanup/runId", json!(Uuid::from_u128(9))),
            ("/cleanup/runId", json!(null)),
            ("/cleanup/providerLeaseId", json!("../x")),
            ("/cleanup/providerLeaseId", json!("")),
            ("/cleanup/accountFingerprint", json!("AB".repeat(32))),
            ("/cleanup/labels", json!({ "other": "r" })),
            ("/cleanup/labels", json!(many)),
            ("/cleanup/attemptId", json!(7)),
        ] {
            let mut data = data.clone();
            *data.pointer_mut(pointer).unwrap() = wrong;
            assert_eq!(told(data), None, "{pointer}");
        }
    }
}
