//! Lease tokens: an HMAC over lease, epoch and generation, so that a token is its own fence and is never stored.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

/// How every lease token begins.
pub const PREFIX: &str = "berth_lt_";

/// What a lease token says; trusted only after its signature was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The lease it is for.
    pub lease: Uuid,
    /// The grant it was handed out under.
    pub epoch: i64,
    /// The incarnation it was handed out under.
    pub generation: i64,
}

impl Claims {
    fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(self.lease.as_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[24..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }

    /// The token; signing the same claims again gives the same token.
    pub fn sign(&self, key: &[u8]) -> String {
        let claims = self.bytes();
        let mut token = claims.to_vec();
        token.extend_from_slice(&mac(key, &claims).finalize().into_bytes());
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(token))
    }

    /// Reads a token; `None` unless its signature is ours. Compared in constant time.
    pub fn verify(token: &str, key: &[u8]) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
        let (claims, signature) = bytes.split_at_checked(32)?;
        mac(key, claims).verify_slice(signature).ok()?;
        let number = |range: std::ops::Range<usize>| claims.get(range)?.try_into().ok().map(i64::from_be_bytes);
        Some(Self { lease: Uuid::from_slice(claims.get(..16)?).ok()?, epoch: number(16..24)?, generation: number(24..32)? })
    }
}

fn mac(key: &[u8], claims: &[u8]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    mac.update(b"berth lease token v1");
    mac.update(claims);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_claims_and_nothing_else_passes() {
        let claims = Claims { lease: Uuid::from_u128(7), epoch: 2, generation: 3 };
        let token = claims.sign(b"key");
        assert_eq!(Claims::verify(&token, b"key"), Some(claims));
        assert_eq!(Claims::verify(&token, b"other"), None);
        assert_eq!(Claims::verify(&token[..token.len() - 2], b"key"), None);
        for at in PREFIX.len()..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let read = Claims::verify(std::str::from_utf8(&forged).unwrap(), b"key");
            assert!(read.is_none(), "position {at}");
        }
    }
}
