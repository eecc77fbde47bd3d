//! Stopping: the first signal asks, the second one insists.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that was told twice.
const INSISTED: i32 = 130;

/// Listens for SIGTERM and SIGINT; the token is cancelled at the first, and the second ends the process at once.
pub fn listen() -> io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let asked = CancellationToken::new();
    let told = asked.clone();
    let watch = async move {
        for count in 1.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if count > 1 {
                std::process::exit(INSISTED);
            }
            told.cancel();
        }
    };
    detach(watch);
    Ok(asked)
}

#[expect(clippy::disallowed_methods, reason = "it lives as long as the process and owns nothing")]
fn detach(watch: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(watch));
}
