//! How fast one credential may ask: a bucket for each, refilled steadily, so that one caller's loop does not become everybody's wait.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::error::{Code, Error, Result};

/// From how many buckets on the full ones are forgotten; a full bucket is as good as none.
const MANY: usize = 4096;

/// Buckets by credential. What a bucket stores is the moment at which it is full again.
#[derive(Debug)]
pub struct Rate {
    per_second: u32,
    burst: u32,
    full_at: Mutex<HashMap<Uuid, Instant>>,
}

impl Rate {
    /// So many requests a second, and so many at once after a rest; a rate of 0 refuses nothing.
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second, burst: burst.max(1), full_at: Mutex::default() }
    }

    /// Takes one request from a credential's bucket, or says when the next one will do.
    pub fn admit(&self, credential: Uuid, now: Instant) -> Result<()> {
        if self.per_second == 0 {
            return Ok(());
        }
        let each = Duration::from_secs(1) / self.per_second;
        let whole = each * self.burst;
        let mut buckets = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MANY {
            buckets.retain(|_, full_at| *full_at > now);
        }
        let full_at = buckets.entry(credential).or_insert(now);
        let next = (*full_at).max(now) + each;
        let wait = (next - now).saturating_sub(whole);
        if !wait.is_zero() {
            return Err(Error::new(Code::RateLimited, "This credential sends more requests than it may. Slow down.")
                .fact("limit", "requests_per_second")
                .fact("value", self.per_second)
                .retry_after(wait));
        }
        *full_at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (rate, now) = (Rate::new(2, 3), Instant::now());
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for _ in 0..3 {
            rate.admit(one, now).unwrap();
        }
        assert_eq!(rate.admit(one, now).unwrap_err().retry_after, Some(Duration::from_millis(500)));
        rate.admit(other, now).unwrap();
        rate.admit(one, now + Duration::from_millis(500)).unwrap();
        assert!(rate.admit(one, now + Duration::from_millis(600)).is_err());
        for _ in 0..3 {
            rate.admit(one, now + Duration::from_secs(60)).unwrap();
        }
        assert!(rate.admit(one, now + Duration::from_secs(60)).is_err());
    }

    #[test]
    fn a_rate_of_nothing_refuses_nothing() {
        let rate = Rate::new(0, 1);
        assert!((0..100).all(|_| rate.admit(Uuid::nil(), Instant::now()).is_ok()));
    }
}
