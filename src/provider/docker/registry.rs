//! Who pulls an image from its registry, as the engine wants to be told it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use reqwest::header::HeaderValue;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The registry of a name that says none.
const DEFAULT: &str = "https://index.docker.io/v1/";

/// A name and a password, or a token; shown by nothing.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegistryAuth {
    username: String,
    password: String,
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistryAuth")
    }
}

impl RegistryAuth {
    /// The value of `X-Registry-Auth` for a pull of this image.
    pub(super) fn header(&self, image: &str) -> Option<HeaderValue> {
        let told = json!({ "username": self.username, "password": self.password, "serveraddress": registry(image) });
        let mut header = HeaderValue::try_from(URL_SAFE.encode(told.to_string())).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// Tells one from another without showing it.
    pub(super) fn mark(&self) -> [u8; 32] {
        Sha256::digest(json!([self.username, self.password]).to_string()).into()
    }
}

/// The registry that an image's name says; what looks like a host before the first slash is one.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_the_host_of_the_name() {
        assert_eq!(registry("debian:12"), DEFAULT);
        assert_eq!(registry("team/image:1"), DEFAULT);
        assert_eq!(registry("registry.example:5000/team/image@sha256:00"), "registry.example:5000");
        assert_eq!(registry("localhost/image"), "localhost");
    }

    #[test]
    fn it_is_shown_by_nothing() {
        let auth: RegistryAuth = serde_json::from_value(json!({ "username": "u", "password": "canary" })).unwrap();
        let header = auth.header("a").unwrap();
        assert!(!format!("{auth:?} {header:?}").contains("canary"));
        let told: serde_json::Value = serde_json::from_slice(&URL_SAFE.decode(header.as_bytes()).unwrap()).unwrap();
        assert_eq!(told, json!({ "username": "u", "password": "canary", "serveraddress": DEFAULT }));
    }
}
