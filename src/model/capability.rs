//! The nine things a sandbox may or may not be able to do.

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
