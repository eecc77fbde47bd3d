//! Bytes between a command and a caller who takes their time.

use berth::provider::conformance::{bounded, command, outcome};
use berth::provider::{ExecEnd, ExecEvent, Provider};

use super::{Place, eventually, sh};

in_both_modes!(
    a_slow_reader_slows_the_command_and_fills_no_memory
    what_was_written_before_the_end_is_all_delivered
    a_fence_waits_for_no_reader
    input_to_a_command_that_does_not_read_waits
);

/// A field of `/proc/<pid>/status`, in KiB.
fn kib(pid: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap()
}

async fn a_slow_reader_slows_the_command_and_fills_no_memory(place: Place) {
    const MIB: usize = 1 << 20;
    let sandbox = place.subject().sandbox().await;
    let script = "i=0; while [ $i -lt 100 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i > progress; done";
    let mut running = sandbox.start(command(sh(script))).await;
    let instance = place.root.path().join("instances").join(&sandbox.name);
    let progress = instance.join("workspace/progress");
    let written = || std::fs::read_to_string(&progress).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    // Nobody reads: pipes and queues fill, and the command must stand still long before its end.
    let (mut last, mut still) = (0, 0);
    eventually(
        || {
            let now = written();
            still = if now == last { still + 1 } else { 0 };
            last = now;
            still > 40
        },
        "the command does not wait for its reader",
    )
    .await;
    assert!(last < 4, "{last} MiB went nowhere");
    let entry = std::fs::read_dir(instance.join("run")).unwrap().next().unwrap().unwrap().path();
    let entry: serde_json::Value = serde_json::from_slice(&std::fs::read(entry).unwrap()).unwrap();
    let shim = entry["pid"].to_string();
    let before = kib("self", "VmRSS:");
    let mut read = 0;
    bounded(async {
        loop {
            match running.events.recv().await {
                Some(ExecEvent::Stdout(bytes)) => {
                    assert!(bytes.iter().all(|byte| *byte == 0));
                    let passed_mark = read < 90 * MIB && read + bytes.len() >= 90 * MIB;
                    read += bytes.len();
                    if passed_mark {
                        assert!(kib(&shim, "VmHWM:") < 40 << 10, "the shim grew");
                        assert!(kib("self", "VmRSS:") < before + (48 << 10), "the server grew");
                    }
                }
                Some(ExecEvent::Exit(exit)) => break assert_eq!(exit.end, ExecEnd::Exited(0)),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    assert_eq!(read, 100 * MIB);
    sandbox.end().await;
}

async fn what_was_written_before_the_end_is_all_delivered(place: Place) {
    let sandbox = place.subject().sandbox().await;
    // More than the queues hold and less than the pipe: all of it is there, unread, when the command ends.
    let mut running = sandbox.start(command(sh("head -c 60000 /dev/zero; head -c 30000 /dev/zero >&2; : > done"))).await;
    let done = place.root.path().join("instances").join(&sandbox.name).join("workspace/done");
    eventually(|| done.exists(), "never done").await;
    let (mut stdout, mut stderr) = (0, 0);
    while let Some(event) = running.events.recv().await {
        match event {
            ExecEvent::Stdout(bytes) => stdout += bytes.len(),
            ExecEvent::Stderr(bytes) => stderr += bytes.len(),
            ExecEvent::Exit(exit) => assert_eq!(exit.end, ExecEnd::Exited(0)),
        }
    }
    assert_eq!((stdout, stderr), (60_000, 30_000));
    sandbox.end().await;
}

async fn a_fence_waits_for_no_reader(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let running = sandbox.start(command(sh("cat /dev/zero & cat /dev/zero"))).await;
    bounded(place.provider.fence(&sandbox.name, 2)).await.unwrap();
    assert_eq!(sandbox.processes().await, 0);
    drop(running);
    sandbox.end().await;
}

async fn input_to_a_command_that_does_not_read_waits(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let running = sandbox.start(command(sh("sleep 60"))).await;
    let mut sent = 0;
    while running.stdin.try_send(vec![0; 65536].into()).is_ok() || sent < 20 {
        sent += 1;
        tokio::task::yield_now().await;
        assert!(sent < 200, "standard input has no bound");
    }
    running.cancel.cancel();
    assert_eq!(outcome(running).await.exit.end, ExecEnd::Cancelled);
    sandbox.end().await;
}
