//! A claim is the one way to own unfinished work: it lapses unless renewed, a lapsed one may be taken over, and every effect of
//! its former owner is compared with its token.

use std::time::Duration;

use uuid::Uuid;

use super::error::StoreError;
use super::{Result, Tx};
use crate::clock::Time;
use crate::text_enum;

/// How long a claim lasts without a renewal.
pub const TERM: Duration = Duration::from_secs(30);

text_enum! {
    /// What kind of unfinished work.
    pub enum ClaimKind {
        /// Making a pending lease's instance ready; the subject is the lease.
        Provision => "provision",
        /// Capture, drain, rotation: excludes operations; the subject is the sandbox.
        Gate => "gate",
        /// Settling a stop, a start or a teardown; the subject is the instance.
        Cleanup => "cleanup",
        /// Bringing back a lost sandbox; the subject is the sandbox.
        Recover => "recover",
        /// An admitted operation; the subject is the operation.
        Operation => "operation",
        /// A request under an idempotency key.
        Idempotency => "idempotency",
    }
}

/// A claim we hold, or held: only a statement that compares its token knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// What is owned.
    pub subject: Uuid,
    /// Which work on it.
    pub kind: ClaimKind,
    /// Proof of ownership.
    pub token: Uuid,
    /// When the work itself must be over.
    pub deadline: Time,
}

/// A claim as stored.
#[derive(Clone, Debug, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct ClaimRow {
    pub token: Uuid,
    pub owner: Uuid,
    pub detail: String,
    pub claimed_until: Time,
    pub deadline: Time,
}

impl Tx {
    /// Takes the claim if it is free or lapsed. `None`: somebody else holds it.
    pub async fn claim(
        &mut self,
        subject: Uuid,
        kind: ClaimKind,
        owner: Uuid,
        detail: &str,
        now: Time,
        deadline: Duration,
    ) -> Result<Option<Claimed>> {
        let claimed = Claimed { subject, kind, token: crate::id::new(), deadline: now.after(deadline) };
        let taken = on!(self, c => sqlx::query(
            "INSERT INTO claim (subject_id, kind, token, owner, detail, claimed_until, deadline, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (subject_id, kind) DO UPDATE SET token = excluded.token, owner = excluded.owner, detail = excluded.detail,
                 claimed_until = excluded.claimed_until, deadline = excluded.deadline, created_at = excluded.created_at
             WHERE claim.claimed_until <= excluded.created_at")
            .bind(subject).bind(kind).bind(claimed.token).bind(owner).bind(detail)
            .bind(now.after(TERM)).bind(claimed.deadline).bind(now)
            .execute(c).await.map(|done| done.rows_affected()))?;
        Ok((taken == 1).then_some(claimed))
    }

    /// Proves that the claim is still ours; a lapsed one that nobody took over is.
    pub async fn prove(&mut self, claimed: &Claimed) -> Result<()> {
        let held = on!(self, c => sqlx::query("UPDATE claim SET token = token WHERE subject_id = $1 AND kind = $2 AND token = $3")
            .bind(claimed.subject).bind(claimed.kind).bind(claimed.token).execute(c).await.map(|d| d.rows_affected()))?;
        if held == 1 { Ok(()) } else { Err(StoreError::ClaimLost) }
    }

    /// Whether the claim is still ours at this moment, without locking it: for what cannot be in a transaction.
    pub async fn prove_now(&mut self, claimed: &Claimed) -> Result<()> {
        let held = self.claim_of(claimed.subject, claimed.kind).await?.is_some_and(|row| row.token == claimed.token);
        if held { Ok(()) } else { Err(StoreError::ClaimLost) }
    }

    /// Ends the claim; an error if it is no longer ours.
    pub async fn settle(&mut self, claimed: &Claimed) -> Result<()> {
        if self.drop_claim(claimed).await? { Ok(()) } else { Err(StoreError::ClaimLost) }
    }

    /// Ends the claim if it is still ours; says whether it was.
    pub async fn drop_claim(&mut self, claimed: &Claimed) -> Result<bool> {
        let held = on!(self, c => sqlx::query("DELETE FROM claim WHERE subject_id = $1 AND kind = $2 AND token = $3")
            .bind(claimed.subject).bind(claimed.kind).bind(claimed.token).execute(c).await.map(|d| d.rows_affected()))?;
        Ok(held == 1)
    }

    /// The claim on this work, lapsed or not.
    pub async fn claim_of(&mut self, subject: Uuid, kind: ClaimKind) -> Result<Option<ClaimRow>> {
        Ok(
            on!(self, c => sqlx::query_as("SELECT * FROM claim WHERE subject_id = $1 AND kind = $2").bind(subject).bind(kind).fetch_optional(c).await)?,
        )
    }

    /// Whether somebody holds this work now.
    pub async fn is_claimed(&mut self, subject: Uuid, kind: ClaimKind, now: Time) -> Result<bool> {
        Ok(self.claim_of(subject, kind).await?.is_some_and(|row| row.claimed_until > now))
    }

    /// Takes a lapsed claim away, so that no effect of its former owner passes any more.
    pub async fn clear_lapsed(&mut self, subject: Uuid, kind: ClaimKind, now: Time) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM claim WHERE subject_id = $1 AND kind = $2 AND claimed_until <= $3")
            .bind(subject).bind(kind).bind(now).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Takes a claim away whoever holds it: its work was decided to end, and no effect of its owner passes any more.
    pub async fn clear_claim(&mut self, subject: Uuid, kind: ClaimKind) -> Result<()> {
        on!(self, c => sqlx::query("DELETE FROM claim WHERE subject_id = $1 AND kind = $2").bind(subject).bind(kind).execute(c).await.map(|_| ()))?;
        Ok(())
    }

    /// Renews every claim of this process whose work may still go on.
    pub async fn renew_claims(&mut self, owner: Uuid, now: Time) -> Result<u64> {
        Ok(on!(self, c => sqlx::query("UPDATE claim SET claimed_until = $3 WHERE owner = $1 AND deadline > $2")
            .bind(owner).bind(now).bind(now.after(TERM)).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// Drops every claim of a process that stops.
    pub async fn drop_claims_of(&mut self, owner: Uuid) -> Result<u64> {
        Ok(on!(self, c => sqlx::query("DELETE FROM claim WHERE owner = $1").bind(owner).execute(c).await.map(|d| d.rows_affected()))?)
    }

    /// Drops every claim: at the boot of a database's only server nobody else can hold one.
    pub async fn drop_all_claims(&mut self) -> Result<u64> {
        Ok(on!(self, c => sqlx::query("DELETE FROM claim").execute(c).await.map(|d| d.rows_affected()))?)
    }
}
