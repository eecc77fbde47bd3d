//! The program: a shim over one command, or (in time) the server.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a shim is started for every command, and must cost little and never fail for the server's reasons.
    if std::env::args_os().nth(1).is_some_and(|first| first == "shim") {
        return berth::provider::local::shim::run();
    }
    ExitCode::SUCCESS
}
