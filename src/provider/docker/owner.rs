//! Who a container belongs to, as its name and labels say it. Ours is what carries our seal under its own name: labels alone
//! travel with images that were made of our containers, and anybody may write them.

use std::collections::HashMap;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::provider::OwnerTag;

/// The label by which the engine lists what belongs to a deployment.
pub(super) const DEPLOYMENT: &str = "berth.deployment";
/// The label that holds the working directory.
pub(super) const WORKSPACE: &str = "berth.workspace";
/// The label that holds uid and gid of what Berth writes.
pub(super) const USER: &str = "berth.user";
/// The label that says of which data root an engine is, see `binding`.
pub(super) const ENGINE: &str = "berth.engine";
const ORGANIZATION: &str = "berth.organization";
const SANDBOX: &str = "berth.sandbox";
const INSTANCE: &str = "berth.instance";
const GENERATION: &str = "berth.generation";
const SEAL: &str = "berth.seal";

/// Labels as the engine has them.
pub(super) type Labels = HashMap<String, String>;

/// The key by which a deployment knows its own containers.
#[derive(Clone)]
pub struct Seal(pub [u8; 32]);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

/// The name of an instance's container.
pub(super) fn name(instance: Uuid) -> String {
    format!("berth-{instance}")
}

impl Seal {
    /// A key of a deployment's own, for this purpose alone.
    pub fn of(key: &[u8]) -> Self {
        Self(mac(key, b"berth docker seal").finalize().into_bytes().into())
    }

    fn mac_of(&self, tag: &OwnerTag) -> Hmac<Sha256> {
        let OwnerTag { deployment, organization, sandbox, instance, generation } = tag;
        mac(&self.0, format!("{deployment} {organization} {sandbox} {instance} {generation}").as_bytes())
    }

    /// What a snapshot of this deployment carries.
    pub(super) fn of_snapshot(&self, id: Uuid) -> String {
        hex::encode(mac(&self.0, format!("snapshot {id}").as_bytes()).finalize().into_bytes())
    }

    /// The labels of a container of this tag.
    pub(super) fn labels(&self, tag: &OwnerTag) -> Labels {
        let seal = hex::encode(self.mac_of(tag).finalize().into_bytes());
        let labels = [
            (DEPLOYMENT, tag.deployment.to_string()),
            (ORGANIZATION, tag.organization.to_string()),
            (SANDBOX, tag.sandbox.to_string()),
            (INSTANCE, tag.instance.to_string()),
            (GENERATION, tag.generation.to_string()),
            (SEAL, seal),
        ];
        labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The tag of what has this name and these labels; none unless it is ours.
    pub(super) fn tag_of(&self, container: &str, labels: &Labels) -> Option<OwnerTag> {
        let id = |key| Uuid::parse_str(labels.get(key)?).ok();
        let tag = OwnerTag {
            deployment: id(DEPLOYMENT)?,
            organization: id(ORGANIZATION)?,
            sandbox: id(SANDBOX)?,
            instance: id(INSTANCE)?,
            generation: labels.get(GENERATION)?.parse().ok()?,
        };
        let seal = hex::decode(labels.get(SEAL)?).ok()?;
        let sealed = self.mac_of(&tag).verify_slice(&seal).is_ok();
        (sealed && container.trim_start_matches('/') == name(tag.instance)).then_some(tag)
    }
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("any length of key will do"));
    mac.update(text);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::conformance::tag;

    #[test]
    fn only_what_is_sealed_under_its_own_name_is_ours() {
        let (seal, tag) = (Seal::of(b"key"), tag());
        let labels = seal.labels(&tag);
        let own = format!("/{}", name(tag.instance));
        assert_eq!(seal.tag_of(&own, &labels), Some(tag.clone()));
        assert_eq!(seal.tag_of("/another", &labels), None, "labels that travelled with an image");
        assert_eq!(Seal::of(b"other").tag_of(&own, &labels), None, "another deployment's");
        for key in labels.keys() {
            let mut fewer = labels.clone();
            fewer.remove(key);
            assert_eq!(seal.tag_of(&own, &fewer), None, "without {key}");
        }
        let mut forged = labels;
        forged.insert(GENERATION.to_owned(), "7".to_owned());
        assert_eq!(seal.tag_of(&own, &forged), None);
    }
}
