//! What the contract does not say, and a container has to keep all the same.

use std::collections::BTreeSet;
use std::time::Duration;

use berth::archive::Limits;
use berth::archive::measure::digest_stream;
use berth::id;
use berth::provider::conformance::{Sandbox, command, outcome, tag};
use berth::provider::local::Local;
use berth::provider::stream::from_bytes;
use berth::provider::{ExecEnd, ExecEvent, ExecSpec, Kind, LocalSettings, Observation, Presence, Provider, Spec, WORKSPACE, WriteMode};
use serde_json::json;

use super::engine::{IMAGE, Place, docker, import, make_foreign, said};

fn sh(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

fn name(sandbox: &Sandbox<'_>) -> String {
    format!("berth-{}", sandbox.tag.instance)
}

/// A word that only processes of one test have among their arguments.
fn word() -> String {
    format!("4000.{}", id::new().as_u128() % 1_000_000_000_000_000)
}

/// How many of the machine's processes have the word among their arguments; containers hide nothing from the machine.
fn alive(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(word.len()).any(|part| part == word.as_bytes())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_confined_unasked() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    let shown: serde_json::Value = serde_json::from_str(&said(&["inspect", &sandbox.name])).unwrap();
    let host = &shown[0]["HostConfig"];
    assert_eq!((&host["Privileged"], &host["CapDrop"], &host["CapAdd"]), (&json!(false), &json!(["ALL"]), &json!(null)));
    assert_eq!((&host["SecurityOpt"], &host["NetworkMode"]), (&json!(["no-new-privileges:true"]), &json!("none")));
    assert_eq!(
        (&host["Binds"], &host["Devices"], &host["PidMode"], &host["UTSMode"]),
        (&json!(null), &json!(null), &json!(""), &json!(""))
    );
    assert!(host["Memory"].as_i64() > Some(0) && host["PidsLimit"].as_i64() > Some(0) && host["NanoCpus"].as_i64() > Some(0));
    assert_eq!(shown[0]["Name"], json!(format!("/{}", name(&sandbox))));
    sandbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ours_is_never_touched() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    let provider = &place.provider;
    // An image of our container brings its labels along to whoever runs it.
    let image = format!("travelled:{}", sandbox.tag.instance);
    said(&["commit", &sandbox.name, &image]);
    let stranger = said(&["run", "-d", "--network", "none", "--entrypoint", "sleep", &image, "300"]);
    let listed = provider.list(sandbox.tag.deployment).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.provider_ref.as_str()).collect::<Vec<_>>(), [sandbox.name.as_str()]);
    assert_eq!(provider.destroy(&stranger).await.unwrap_err().kind, Kind::Refused);
    assert_eq!(provider.stop(&stranger).await.unwrap_err().kind, Kind::Refused);
    assert_eq!(provider.exec(&stranger, command(sh("true"))).await.err().map(|e| e.kind), Some(Kind::Refused));
    assert_eq!(provider.observe(&provider.binding().await.unwrap(), &stranger).await, Observation::Unknown);
    // A container that has the name which an instance is to have.
    let taken = tag();
    let squatter = said(&["run", "-d", "--network", "none", "--name", &format!("berth-{}", taken.instance), IMAGE, "sleep", "300"]);
    assert_eq!(provider.ensure(&place.spec, &taken).await.unwrap_err().kind, Kind::Refused);
    assert_eq!(provider.find(&taken).await.unwrap_err().kind, Kind::Refused);
    for one in [&stranger, &squatter] {
        assert_eq!(said(&["inspect", "-f", "{{.State.Running}}", one]), "true");
    }
    said(&["rm", "-f", &stranger, &squatter]);
    sandbox.end().await;
    said(&["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_gets_away_from_a_deadline() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    sandbox.put("kept", b"content").await;
    for script in [
        "nohup sleep WORD & trap '' TERM; sleep WORD",
        "setsid sleep WORD & wait",
        "(setsid sh -c 'setsid sleep WORD & exit' &); sleep WORD",
        "env -i /bin/setsid /bin/sh -c '/bin/sleep WORD & exit' & sleep WORD",
        "c() { setsid sh -c \"$1\" sh \"$1\" & exit; }; (c 'i=0; while [ $i -lt 20 ]; do sleep WORD & i=$((i+1)); done; exec sleep WORD'); sleep WORD",
    ] {
        let word = word();
        let spec = ExecSpec { timeout: Duration::from_millis(700), ..command(sh(&script.replace("WORD", &word))) };
        let exit = sandbox.run(spec).await.exit;
        assert_eq!((exit.end, exit.process_tree_killed), (ExecEnd::TimedOut, true), "{script}");
        assert_eq!(alive(&word), 0, "{script}");
    }
    assert_eq!(sandbox.processes().await, 0);
    assert_eq!(sandbox.get("kept").await, b"content");
    sandbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_ends_and_the_workspace_stays() {
    let place = Place::with(json!({ "image": IMAGE, "pids": 64, "cpus": 0.5 }));
    let sandbox = place.subject().sandbox().await;
    sandbox.put("kept", b"content").await;
    let bomb = ExecSpec { timeout: Duration::from_secs(1), ..command(sh("b() { b | b & }; (b) & while :; do :; done")) };
    let exit = sandbox.run(bomb).await.exit;
    assert_eq!((exit.end, exit.process_tree_killed), (ExecEnd::TimedOut, true));
    // With the container, if nothing else would do: then it is stopped, and starts again with its files.
    let binding = place.provider.binding().await.unwrap();
    let seen = place.provider.observe(&binding, &sandbox.name).await;
    assert!(matches!(seen, Observation::Present(Presence::Running | Presence::Stopped)), "{seen:?}");
    place.provider.start(&sandbox.name).await.unwrap();
    assert_eq!(sandbox.processes().await, 0);
    assert_eq!(sandbox.get("kept").await, b"content");
    sandbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_slows_the_command_and_loses_nothing() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    let lines = 10_000_000_u64;
    let script = format!("seq 1 {lines} & seq 1 1000 >&2; wait");
    let mut running = sandbox.start(ExecSpec { timeout: Duration::from_mins(4), ..command(sh(&script)) }).await;
    let resident = || -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mut next, mut line, mut errors, mut most) = (1_u64, Vec::new(), Vec::new(), 0);
    let exit = loop {
        match running.events.recv().await.expect("an exit") {
            ExecEvent::Stdout(bytes) => {
                for byte in bytes {
                    if byte == b'\n' {
                        assert_eq!(std::str::from_utf8(&line).unwrap().parse::<u64>().unwrap(), next, "order");
                        next += 1;
                        line.clear();
                    } else {
                        line.push(byte);
                    }
                }
                most = most.max(resident().saturating_sub(before));
            }
            ExecEvent::Stderr(bytes) => errors.extend_from_slice(&bytes),
            ExecEvent::Exit(exit) => break exit,
        }
    };
    assert_eq!((exit.end, next), (ExecEnd::Exited(0), lines + 1));
    assert!(errors.ends_with(b"\n999\n1000\n") && errors.starts_with(b"1\n2\n"));
    assert!(most < 24 << 20, "{most} bytes more in memory");
    // A reader that leaves ends the command.
    let word = word();
    drop(sandbox.start(command(sh(&format!("yes {word}")))).await);
    sandbox.becomes_quiet().await;
    assert_eq!(alive(&word), 0);
    sandbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_takes_too_much_memory_is_told_so() {
    let place = Place::with(json!({ "image": IMAGE, "memory_mb": 32 }));
    let sandbox = place.subject().sandbox().await;
    let ran = sandbox.run(command(sh("x=$(yes | head -c 200000000); echo $?"))).await;
    let shown = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(matches!(ran.exit.end, ExecEnd::Signaled(9)), "{:?} {shown}", ran.exit);
    assert!(shown.contains("memory is used up"), "{shown}");
    let killed = sandbox.run(command(sh("kill -9 $$"))).await;
    assert_eq!(killed.exit.end, ExecEnd::Signaled(9));
    assert_eq!(sandbox.run(command(sh("echo on"))).await.stdout, b"on\n");
    sandbox.end().await;
}

/// The head of a program for a processor that this machine has not: 64-bit SPARC.
const FOREIGN_PROGRAM: [u8; 64] = {
    let mut elf = [0; 64];
    let head = *b"\x7fELF\x02\x02\x01\0\0\0\0\0\0\0\0\0\0\x02\0\x2b\0\0\0\x01";
    let mut at = 0;
    while at < head.len() {
        elf[at] = head[at];
        at += 1;
    }
    elf
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_that_cannot_be_used_leave_nothing_behind() {
    let busybox_as = |name: &'static str| {
        move |root: &std::path::Path| {
            std::fs::create_dir(root.join("bin")).unwrap();
            std::fs::copy("/bin/busybox", root.join("bin").join(name)).unwrap();
        }
    };
    let (shell_less, with_shell) = (import("shell-less", busybox_as("true")), busybox_as("sh"));
    for (image, kind) in [(shell_less.as_str(), Kind::Invalid), ("berth-no-such-image:1", Kind::NoImage)] {
        let place = Place::with(json!({ "image": image }));
        let tag = tag();
        let refused = place.provider.ensure(&place.spec, &tag).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{image}: {refused}");
        assert_eq!(place.provider.find(&tag).await.unwrap(), None);
    }
    // Told before a container is made of it, by what the image says of itself.
    let foreign = import("foreign", with_shell);
    make_foreign(&foreign);
    let place = Place::with(json!({ "image": foreign }));
    let of_it = tag();
    let refused = place.provider.ensure(&place.spec, &of_it).await.unwrap_err();
    assert_eq!((refused.kind, refused.message.contains("another processor")), (Kind::Invalid, true), "{refused}");
    assert_eq!(place.provider.find(&of_it).await.unwrap(), None);
    // And one that only says it is for this processor: its shell does not start.
    let liar = import("liar", |root| {
        std::fs::create_dir(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/sh"), FOREIGN_PROGRAM).unwrap();
        std::fs::set_permissions(root.join("bin/sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    });
    let place = Place::with(json!({ "image": liar }));
    let of_it = tag();
    let refused = place.provider.ensure(&place.spec, &of_it).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{refused}");
    assert_eq!(place.provider.find(&of_it).await.unwrap(), None);
    let bad_command = Place::with(json!({ "image": IMAGE, "command": ["/no/such/program"] }));
    let made = bad_command.provider.ensure(&bad_command.spec, &tag()).await;
    if let Ok(made) = made {
        bad_command.provider.destroy(&made.provider_ref).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_tree_has_the_same_digest_as_on_this_machine() {
    let place = Place::new();
    let root = tempfile::tempdir().unwrap();
    let settings = LocalSettings::new(root.path().to_owned(), env!("CARGO_BIN_EXE_berth").into());
    let local = Local::open(&settings).unwrap();
    let empty = Spec { config: json!({}).into(), workspace_path: None };
    let there = local.ensure(&empty, &tag()).await.unwrap().provider_ref;
    let sandbox = place.subject().sandbox().await;
    let made = r"mkdir -p a/b empty; echo x > a/b/f; chmod 640 a/b/f; ln a/b/f hard; ln -s /etc/passwd out; ln -s ../../.. up
        printf y > 'odd name'; chmod 2755 a; chmod 1777 empty; mkdir locked; echo z > locked/z; chmod 500 locked";
    assert_eq!(sandbox.run(command(sh(made))).await.exit.end, ExecEnd::Exited(0));
    let here = digest_stream(place.provider.read_tree(&sandbox.name, WORKSPACE, &[]).await.unwrap().tar, Limits::default()).await.unwrap();
    let tar = place.provider.read_tree(&sandbox.name, WORKSPACE, &[]).await.unwrap().tar;
    local.write_tree(&there, 1, WORKSPACE, tar, WriteMode::Replace).await.unwrap();
    let elsewhere = digest_stream(local.read_tree(&there, WORKSPACE, &[]).await.unwrap().tar, Limits::default()).await.unwrap();
    assert_eq!(here, elsewhere);
    assert_eq!(here.files, 4);
    let back = place.subject().sandbox().await;
    place
        .provider
        .write_tree(&back.name, 1, WORKSPACE, local.read_tree(&there, WORKSPACE, &[]).await.unwrap().tar, WriteMode::Replace)
        .await
        .unwrap();
    let again = digest_stream(place.provider.read_tree(&back.name, WORKSPACE, &[]).await.unwrap().tar, Limits::default()).await.unwrap();
    assert_eq!(again, here);
    local.destroy(&there).await.unwrap();
    sandbox.end().await;
    back.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_and_a_read_only_root_work_as_well() {
    for config in [
        json!({ "image": IMAGE, "user": "1000:1000" }),
        json!({ "image": IMAGE, "read_only_root": true, "tmpfs": { "/tmp": { "size_mb": 8 } } }),
    ] {
        let place = Place::with(config.clone());
        let sandbox = place.subject().sandbox().await;
        assert!(sandbox.put("file", b"1").await);
        let ran = sandbox.run(command(sh("cat file && echo 2 > file && echo 3 > other && (cd /tmp && echo t > t) && id -u"))).await;
        assert_eq!(ran.exit.end, ExecEnd::Exited(0), "{config}: {}", String::from_utf8_lossy(&ran.stderr));
        let timed = ExecSpec { timeout: Duration::from_millis(300), ..command(sh("sleep 300")) };
        assert_eq!(sandbox.run(timed).await.exit.end, ExecEnd::TimedOut);
        place.provider.stop(&sandbox.name).await.unwrap();
        place.provider.start(&sandbox.name).await.unwrap();
        assert_eq!(sandbox.get("file").await, b"2\n");
        place.provider.fence(&sandbox.name, 9).await.unwrap();
        place.provider.write_tree(&sandbox.name, 9, WORKSPACE, from_bytes(vec![0; 1024]), WriteMode::Replace).await.unwrap();
        assert!(place.provider.list_files(&sandbox.name, "", true, None, 10).await.unwrap().is_empty());
        sandbox.end().await;
        let names: BTreeSet<String> = said(&["volume", "ls", "-q", "-f", "dangling=true"]).lines().map(str::to_owned).collect();
        assert!(names.iter().all(|name| name == "berth-engine"), "volumes are left: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_container_is_told_and_thawed() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    said(&["pause", &sandbox.name]);
    let binding = place.provider.binding().await.unwrap();
    assert_eq!(place.provider.observe(&binding, &sandbox.name).await, Observation::Present(Presence::Paused));
    assert_eq!(place.provider.exec(&sandbox.name, command(sh("true"))).await.err().map(|e| e.kind), Some(Kind::Refused));
    place.provider.start(&sandbox.name).await.unwrap();
    assert_eq!(sandbox.run(command(sh("true"))).await.exit.end, ExecEnd::Exited(0));
    assert!(docker(&["rm", "-f", &sandbox.name]).status.success());
    assert_eq!(place.provider.observe(&binding, &sandbox.name).await, Observation::Absent);
    let running = place.provider.exec(&sandbox.name, command(sh("true"))).await;
    assert_eq!(running.err().map(|e| e.kind), Some(Kind::NotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_may_kill_everything_it_can_reach() {
    let place = Place::new();
    let sandbox = place.subject().sandbox().await;
    let ran = outcome(sandbox.start(command(sh("kill -9 -1"))).await).await;
    assert_eq!(ran.exit.end, ExecEnd::Signaled(9));
    sandbox.end().await;
}
