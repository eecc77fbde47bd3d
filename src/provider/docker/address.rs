//! Where an engine is: a unix socket, or TCP, plain or under TLS.

use std::path::{Path, PathBuf};

use crate::provider::{Kind, ProviderError, Result};

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `unix:///path`.
    Unix(PathBuf),
    /// `tcp://host:port`.
    Tcp(String),
}

impl Address {
    /// Reads an address as `DOCKER_HOST` has it.
    pub fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("unix://") {
            let path = Path::new(path);
            return if path.is_absolute() { Ok(Self::Unix(path.to_owned())) } else { Err("a unix socket needs an absolute path") };
        }
        let host = ["tcp://", "http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let host = host.ok_or("an engine's address begins with unix:// or tcp://")?.trim_end_matches('/');
        let well_formed = host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
        if !well_formed || host.contains(['/', '@', '?', '#']) {
            return Err("an engine's TCP address is tcp://host:port");
        }
        Ok(Self::Tcp(host.to_owned()))
    }
}

/// The client certificates of a TLS connection: `ca.pem`, `cert.pem` and `key.pem` in a directory, as Docker's own client has them.
#[derive(Clone, Debug)]
pub struct Certificates(pub PathBuf);

impl Certificates {
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        std::fs::read(self.0.join(name))
            .map_err(|e| ProviderError::new(Kind::Invalid, "a certificate of the engine cannot be read").because(e))
    }

    /// Teaches a client to show its certificate, and to trust nobody but this authority.
    pub(super) fn apply(&self, builder: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder> {
        let wrong = |e: reqwest::Error| ProviderError::new(Kind::Invalid, "a certificate of the engine is malformed").because(e);
        let authority = reqwest::Certificate::from_pem_bundle(&self.read("ca.pem")?).map_err(wrong)?;
        // A file without any is no error to the library, and would be an engine that nobody ever reaches.
        if authority.is_empty() {
            return Err(ProviderError::new(Kind::Invalid, "the engine's ca.pem has no certificate"));
        }
        let own = [self.read("cert.pem")?, self.read("key.pem")?].concat();
        Ok(builder.tls_certs_only(authority).identity(reqwest::Identity::from_pem(&own).map_err(wrong)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sockets_or_hosts() {
        assert_eq!(Address::parse("unix:///run/docker.sock"), Ok(Address::Unix("/run/docker.sock".into())));
        assert_eq!(Address::parse("tcp://engine:2376"), Ok(Address::Tcp("engine:2376".to_owned())));
        for wrong in
            ["", "unix://docker.sock", "engine:2376", "tcp://engine", "tcp://:1", "tcp://user@engine:1", "tcp://engine:1/x", "ssh://a:1"]
        {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
