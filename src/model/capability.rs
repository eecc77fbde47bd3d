//! The nine things a sandbox may or may not be able to do, and the one function that decides them for a plugin's.

use std::collections::{BTreeMap, BTreeSet};

/// Every capability key, in the contract's order.
pub const KEYS: [&str; 9] = [
    "reusable_leases",
    "native_sync_in",
    "native_sync_out",
    "persistent_process_sessions",
    "independent_control_commands",
    "incremental_session_output",
    "concurrent_sync_operations",
    "duplex_command_stream",
    "runner_websocket_ingress",
];

/// The key that lets an instance outlive a lease and be given to the next.
pub const REUSABLE_LEASES: &str = KEYS[0];
/// The key that lets a command's output be followed while it runs.
pub const INCREMENTAL_SESSION_OUTPUT: &str = KEYS[5];

/// The keys as plugins write them, in the same order.
pub const WIRE_KEYS: [&str; 9] = [
    "reusableLeases",
    "nativeSyncIn",
    "nativeSyncOut",
    "persistentProcessSessions",
    "independentControlCommands",
    "incrementalSessionOutput",
    "concurrentSyncOperations",
    "duplexCommandStream",
    "runnerWebSocketIngress",
];

/// The methods a worker must have for each key, all of them.
pub const PREREQUISITES: [&[&str]; 9] = [
    &["environmentResumeLease", "environmentReleaseLease", "environmentDestroyLease"],
    &["environmentSyncIn"],
    &["environmentSyncOut"],
    &["environmentExecute"],
    &["environmentExecute"],
    &["environmentExecute"],
    &["environmentSyncIn", "environmentSyncOut"],
    &["duplexChannelOpen"],
    &["environmentRunnerIngressEndpoint"],
];

/// The keys that are denied unless a worker declares them.
const OPT_IN: [bool; 9] = [false, false, false, false, false, true, true, true, true];
/// The keys that a configuration which cannot be resolved takes away.
const NEEDS_CONFIG: [bool; 9] = [false, false, false, true, false, true, false, true, false];

/// What a driver declares of the nine; what it does not mention is absent.
pub type Declared = BTreeMap<&'static str, bool>;

/// What takes capabilities away from one lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Narrowing {
    /// The lease's policy reuses nothing.
    pub reuses_nothing: bool,
    /// The sandbox's own metadata says that files cannot be synced natively.
    pub no_native_sync: bool,
    /// The configuration's secrets cannot be resolved.
    pub unresolved: bool,
}

/// Whether each of the nine is granted, in the contract's order, and why not: static support, then what the live worker verifiably
/// has, then its declaration, then the narrowing; everything fails closed. `support`: the keys the driver's kind can have at all;
/// all of them when absent.
pub fn effective(
    support: Option<&[&str]>,
    methods: &BTreeSet<String>,
    declared: &Declared,
    narrowing: Narrowing,
) -> [Result<(), &'static str>; 9] {
    std::array::from_fn(|at| {
        let key = KEYS[at];
        let narrowed = (key == REUSABLE_LEASES && narrowing.reuses_nothing)
            || (matches!(at, 1 | 2) && narrowing.no_native_sync)
            || (NEEDS_CONFIG[at] && narrowing.unresolved);
        if support.is_some_and(|keys| !keys.contains(&key)) {
            Err("the provider does not have it")
        } else if !PREREQUISITES[at].iter().all(|method| methods.contains(*method)) {
            Err("the worker does not offer the methods that it needs")
        } else if declared.get(key) == Some(&false) {
            Err("the driver declares that it does not have it")
        } else if OPT_IN[at] && declared.get(key) != Some(&true) {
            Err("the driver does not declare it")
        } else if narrowed {
            Err("this sandbox or its lease takes it away")
        } else {
            Ok(())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule once more, as the design says it: static support ∧ verified ∧ declared ∧ not narrowed.
    fn expected(at: usize, supported: bool, verified: bool, declared: Option<bool>, narrowed: bool) -> bool {
        let opt_in = ["incremental_session_output", "concurrent_sync_operations", "duplex_command_stream", "runner_websocket_ingress"];
        let by_declaration = declared.unwrap_or(!opt_in.contains(&KEYS[at]));
        supported && verified && by_declaration && !narrowed
    }

    fn takes_away(key: &str, narrowing: Narrowing) -> bool {
        match key {
            "reusable_leases" => narrowing.reuses_nothing,
            "native_sync_in" | "native_sync_out" => narrowing.no_native_sync,
            "persistent_process_sessions" | "incremental_session_output" | "duplex_command_stream" => narrowing.unresolved,
            _ => false,
        }
    }

    #[test]
    fn the_whole_truth_table() {
        let mut rows = 0;
        for (at, key) in KEYS.iter().enumerate() {
            for supported in [None, Some(true), Some(false)] {
                for verified in [true, false] {
                    for said in [None, Some(true), Some(false)] {
                        for bits in 0..8 {
                            let narrowing =
                                Narrowing { reuses_nothing: bits & 1 != 0, no_native_sync: bits & 2 != 0, unresolved: bits & 4 != 0 };
                            let support: Option<&[&str]> = supported.map(|yes| if yes { &KEYS[..] } else { &[] });
                            let all: BTreeSet<String> = PREREQUISITES.concat().into_iter().map(str::to_owned).collect();
                            let methods = if verified { all } else { BTreeSet::new() };
                            let declared: Declared = said.into_iter().map(|yes| (*key, yes)).collect();
                            let found = effective(support, &methods, &declared, narrowing);
                            let want = expected(at, supported != Some(false), verified, said, takes_away(key, narrowing));
                            assert_eq!(found[at].is_ok(), want, "{key} {supported:?} {verified} {said:?} {narrowing:?}");
                            rows += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(rows, 9 * 3 * 2 * 3 * 8);
    }

    #[test]
    fn removing_a_method_takes_exactly_what_needs_it() {
        let all: BTreeSet<String> = PREREQUISITES.concat().into_iter().map(str::to_owned).collect();
        let declared: Declared = KEYS.iter().map(|key| (*key, true)).collect();
        for method in &all {
            let mut methods = all.clone();
            methods.remove(method);
            let found = effective(None, &methods, &declared, Narrowing::default());
            for (at, granted) in found.iter().enumerate() {
                assert_eq!(granted.is_ok(), !PREREQUISITES[at].contains(&method.as_str()), "{method} {}", KEYS[at]);
            }
        }
        assert!(effective(None, &BTreeSet::new(), &declared, Narrowing::default()).iter().all(Result::is_err));
    }
}
