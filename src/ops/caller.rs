//! Who calls, and what they may do.

use uuid::Uuid;

use super::Berth;
use crate::error::{Code, Error, Result};
use crate::model::event::Actor;
use crate::model::key::{self, ApiKey, Scope};
use crate::model::lease::Lease;
use crate::model::token::{self, Claims};
use crate::store::Carried;

/// What the caller showed.
#[derive(Clone, Debug)]
pub enum Credential {
    /// An API key.
    Key(ApiKey),
    /// A lease token, its signature checked.
    Token(Claims),
}

impl Credential {
    /// The key's id, or the lease's.
    pub fn id(&self) -> Uuid {
        match self {
            Self::Key(key) => key.id,
            Self::Token(claims) => claims.lease,
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant everything is resolved under.
    pub organization: Uuid,
    /// What the caller showed.
    pub credential: Credential,
    /// The id that the first resource of this request is made under, if that was decided before: so a request that is sent again
    /// under its idempotency key finds what its first call made.
    pub named: Option<Uuid>,
}

/// Finds out who calls. 401 `unauthorized` for an unknown key, `invalid_token` for a token whose signature is not ours.
pub async fn identify(berth: &Berth, bearer: &str) -> Result<Caller> {
    if bearer.starts_with(token::PREFIX) {
        let claims = Claims::verify(bearer, &berth.deployment.signing_key)
            .ok_or_else(|| Error::new(Code::InvalidToken, "This lease token was not issued here."))?;
        let organization = berth.store.read().await?.organization_of_lease(claims.lease).await?;
        let organization = organization.ok_or_else(|| Error::new(Code::InvalidToken, "This lease token's lease does not exist."))?;
        return Ok(Caller { organization, credential: Credential::Token(claims), named: None });
    }
    let hash = key::hash(bearer);
    let unknown = || Error::new(Code::Unauthorized, "This API key is unknown, revoked or expired.");
    let key = if let Some(key) = berth.keys.get(&hash).await {
        key
    } else {
        let key = berth.store.read().await?.key_by_hash(&hash).await?.ok_or_else(unknown)?;
        berth.keys.insert(hash, key.clone()).await;
        key
    };
    Ok(Caller { organization: key.organization_id, credential: Credential::Key(key), named: None })
}

impl Caller {
    /// 403 unless an API key of this scope calls.
    pub fn require(&self, scope: Scope) -> Result<()> {
        match &self.credential {
            Credential::Key(key) if key.grants(scope) => Ok(()),
            Credential::Key(_) => {
                Err(Error::new(Code::Forbidden, format!("This needs a key with the scope {scope}.")).fact("missing_scope", scope.as_str()))
            }
            Credential::Token(_) => {
                Err(Error::new(Code::Forbidden, format!("A lease token may not do this; use an API key with the scope {scope}."))
                    .fact("missing_scope", scope.as_str()))
            }
        }
    }

    /// Whether a lease token calls.
    pub fn is_token(&self) -> bool {
        matches!(self.credential, Credential::Token(_))
    }

    /// 403 unless a key of this scope calls, or the token of this very lease.
    pub fn require_on_lease(&self, scope: Scope, lease: Uuid) -> Result<()> {
        match &self.credential {
            Credential::Token(claims) if claims.lease == lease => Ok(()),
            Credential::Token(_) => Err(Error::new(Code::Forbidden, "A lease token works on its own lease only.")),
            Credential::Key(_) => self.require(scope),
        }
    }

    /// 403 unless a key of this scope calls, or a token of a lease of this very sandbox.
    pub async fn require_on_sandbox(&self, berth: &Berth, scope: Scope, sandbox: Uuid) -> Result<()> {
        let Credential::Token(claims) = &self.credential else { return self.require(scope) };
        let lease = berth.store.read().await?.lease_by_id(claims.lease).await?;
        if lease.is_some_and(|l| l.sandbox_id == sandbox) {
            Ok(())
        } else {
            Err(Error::new(Code::Forbidden, "A lease token works on its own sandbox only."))
        }
    }

    /// What a write carries: a token its own epoch and generation, a key what its headers say.
    pub fn carried(&self, headers: Carried) -> Carried {
        match &self.credential {
            Credential::Token(claims) => Carried { generation: Some(claims.generation), epoch: Some(claims.epoch) },
            Credential::Key(_) => headers,
        }
    }

    /// The id of the first resource this request makes.
    pub fn first_id(&self) -> Uuid {
        let Some(id) = self.named else { return crate::id::new() };
        id
    }

    /// What an idempotency key belongs to besides its organization: the API key, or the lease of a token.
    pub fn credential_id(&self) -> Uuid {
        match &self.credential {
            Credential::Key(key) => key.id,
            Credential::Token(claims) => claims.lease,
        }
    }

    /// As events name it.
    pub fn actor(&self) -> Actor {
        match &self.credential {
            Credential::Key(key) => Actor::Key { id: key.id, name: key.name.clone() },
            Credential::Token(claims) => Actor::Token { lease: claims.lease },
        }
    }
}

impl Berth {
    /// The lease's token at its present epoch and generation.
    pub fn token_for(&self, lease: &Lease) -> String {
        self.token_at(lease, lease.epoch)
    }

    /// The lease's token at an epoch that was granted once: after a take-over it is a former holder's, and fenced off.
    pub fn token_at(&self, lease: &Lease, epoch: i64) -> String {
        Claims { lease: lease.id, epoch, generation: lease.generation }.sign(&self.deployment.signing_key)
    }
}
