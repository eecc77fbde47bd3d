//! What the holders of one scope were told, held against itself: one writer at a time, and epochs and generations that only grow.

use std::collections::BTreeMap;

use uuid::Uuid;

/// One thing that a holder was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// That the scope is its own, or that it goes on in another incarnation.
    Granted(Grant),
    /// That a write it carried this with was done.
    Accepted(Grant),
}

/// What a holder carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub lease: Uuid,
    pub epoch: i64,
    pub generation: i64,
}

/// Says what cannot be true of these together, in the order in which they were told.
pub fn check(history: &[Told]) -> Result<(), String> {
    let mut last: Option<Grant> = None;
    let mut epochs: BTreeMap<Uuid, i64> = BTreeMap::new();
    for told in history {
        match *told {
            Told::Granted(grant) => {
                if last.is_some_and(|last| grant.generation < last.generation) {
                    return Err(format!("a generation went back: {last:?}, then {grant:?}"));
                }
                if last.is_some_and(|last| grant.lease != last.lease) && epochs.contains_key(&grant.lease) {
                    return Err(format!("a lease that was followed by another came back: {grant:?}"));
                }
                if epochs.insert(grant.lease, grant.epoch).is_some_and(|before| grant.epoch < before) {
                    return Err(format!("an epoch went back: {grant:?}"));
                }
                last = Some(grant);
            }
            Told::Accepted(grant) if Some(grant) != last => {
                return Err(format!("a former writer wrote: {grant:?} although {last:?} was granted"));
            }
            Told::Accepted(_) => {}
        }
    }
    Ok(())
}

#[test]
fn a_history_that_cannot_be_is_told_from_one_that_can() {
    let grant = |lease, epoch, generation| Grant { lease: Uuid::from_u128(lease), epoch, generation };
    let (granted, accepted) = (|l, e, g| Told::Granted(grant(l, e, g)), |l, e, g| Told::Accepted(grant(l, e, g)));
    let fine = [granted(1, 1, 1), accepted(1, 1, 1), granted(1, 2, 1), granted(1, 2, 3), accepted(1, 2, 3), granted(2, 1, 3)];
    assert_eq!(check(&fine), Ok(()));
    for (broken, says) in [
        ([granted(1, 1, 1), granted(2, 1, 1), accepted(1, 1, 1)], "a former writer wrote"),
        ([granted(1, 1, 1), granted(1, 2, 1), accepted(1, 1, 1)], "a former writer wrote"),
        ([granted(1, 1, 1), granted(1, 1, 2), accepted(1, 1, 1)], "a former writer wrote"),
        ([granted(1, 1, 1), granted(2, 1, 1), granted(1, 1, 1)], "came back"),
        ([granted(1, 1, 2), accepted(1, 1, 2), granted(2, 1, 1)], "a generation went back"),
        ([granted(1, 2, 1), accepted(1, 2, 1), granted(1, 1, 1)], "an epoch went back"),
    ] {
        assert!(check(&broken).is_err_and(|found| found.contains(says)), "{broken:?}");
    }
}
