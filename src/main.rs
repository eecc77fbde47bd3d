//! Arguments, then the command, then an exit code.

use std::process::ExitCode;

use berth::cli;

fn main() -> ExitCode {
    // The shim runs inside sandboxes, once for each command: it comes before everything else and shares nothing with it.
    if std::env::args_os().nth(1).is_some_and(|first| first == "shim") {
        return berth::provider::local::shim::run();
    }
    // One TLS stack; a second installation would be a defect here, so a failure changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(cli::run()),
        Err(error) => {
            eprintln!("berth: {error}");
            ExitCode::FAILURE
        }
    }
}
