//! How many streams one credential follows at once, so that one caller's forgotten readers do not become everybody's wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::error::{Code, Error, Result};

/// The most streams one credential follows at once on one server.
pub const MOST: usize = 16;

/// Open streams by credential.
#[derive(Clone, Debug, Default)]
pub struct Streams(Arc<Mutex<HashMap<Uuid, usize>>>);

/// One open stream; dropping it closes it.
#[derive(Debug)]
pub struct Open {
    streams: Streams,
    credential: Uuid,
}

impl Streams {
    /// Opens one more stream of this credential. 429 `quota_exceeded` if it follows as many as it may.
    pub fn open(&self, credential: Uuid) -> Result<Open> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(credential).or_default();
        if *count >= MOST {
            return Err(Error::new(Code::QuotaExceeded, "This credential follows as many streams as it may. Close one.")
                .fact("limit", "streams")
                .fact("value", MOST)
                .fact("usage", *count));
        }
        *count += 1;
        Ok(Open { streams: self.clone(), credential })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.credential) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.credential);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventeenth_waits_for_one_to_close_and_nobody_else_does() {
        let (streams, one, other) = (Streams::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        let mut open: Vec<_> = (0..MOST).map(|_| streams.open(one).unwrap()).collect();
        assert_eq!(streams.open(one).unwrap_err().code, Code::QuotaExceeded);
        drop(streams.open(other).unwrap());
        open.pop();
        open.push(streams.open(one).unwrap());
        drop(open);
        assert!(streams.0.lock().unwrap().is_empty(), "nothing is remembered of who follows nothing");
    }
}
