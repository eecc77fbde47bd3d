//! What a command finds where bubblewrap stands around it, and what it does not find.

mod bubblewrap {
    use std::fs;
    use std::process::Command;

    use berth::provider::conformance::{bounded, command};
    use berth::provider::local::Local;
    use berth::provider::{Confinement, ExecEnd, ExecEvent, ExecSpec, Isolation, Kind, LocalSettings, Provider, Wish};

    use crate::local::{Mark, Place, sh};

    /// What a script says that must go well.
    async fn says(place: &Place, sandbox: &berth::provider::conformance::Sandbox<'_>, script: &str) -> String {
        let ran = sandbox.run(command(sh(script))).await;
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.exit.end, ExecEnd::Exited(0), "{script}: {errors} in {:?}", place.root);
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_command_sees_its_workspace_and_nothing_of_anybody_else() {
        let place = Place::new(Wish::Always);
        assert_eq!(place.provider.traits().isolation, Isolation::Bubblewrap);
        let (sandbox, other) = (place.subject().sandbox().await, place.subject().sandbox().await);
        other.put("secret", b"of another").await;
        sandbox.put("own", b"content").await;
        let (workspace, root) = (&sandbox.workspace, place.root.path().to_str().unwrap());
        // Paths mean the same inside and outside.
        assert_eq!(says(&place, &sandbox, &format!("cat {workspace}/own; echo; pwd")).await, format!("content\n{workspace}"));
        let seen = says(&place, &sandbox, &format!("cd {root}; find . -maxdepth 4")).await;
        assert!(!seen.contains("binding") && !seen.contains(&other.name) && !seen.contains("tag.json"), "{seen}");
        assert!(seen.contains(&sandbox.name), "{seen}");
        for hidden in [
            format!("cat {}/secret", other.workspace),
            format!("cat {root}/binding"),
            "cat /etc/shadow".to_owned(),
            "ls /home".to_owned(),
            format!("cat {}", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")),
            "touch /usr/x".to_owned(),
            "touch /x".to_owned(),
            "touch /etc/x".to_owned(),
            "cat /proc/sys/kernel/panic > /proc/sys/kernel/panic".to_owned(),
            "mount -t tmpfs none /usr".to_owned(),
            "chown 1:1 own".to_owned(),
        ] {
            let ran = sandbox.run(command(sh(&hidden))).await;
            assert_ne!(ran.exit.end, ExecEnd::Exited(0), "{hidden}: {}", String::from_utf8_lossy(&ran.stdout));
        }
        assert_eq!(says(&place, &sandbox, "ls -A /root; grep -c : /proc/net/dev").await, "1", "a loopback alone");
        assert_eq!(says(&place, &sandbox, "grep CapEff /proc/self/status").await, "CapEff:\t0000000000000000");
        for sandbox in [sandbox, other] {
            sandbox.end().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn temporary_files_are_the_sandboxs_own_and_stay() {
        let place = Place::new(Wish::Always);
        let (sandbox, other) = (place.subject().sandbox().await, place.subject().sandbox().await);
        says(&place, &sandbox, "echo more > $TMPDIR/more; cd /tmp && echo kept > file").await;
        assert_eq!(says(&place, &sandbox, "cd /tmp && cat file more $TMPDIR/file").await, "kept\nmore\nkept");
        assert_eq!(says(&place, &other, "ls -A /tmp").await, "");
        for sandbox in [sandbox, other] {
            sandbox.end().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_place_below_tmp_works_as_well() {
        let place = Place::of(tempfile::tempdir_in("/tmp").unwrap(), Wish::Always);
        let sandbox = place.subject().sandbox().await;
        says(&place, &sandbox, "echo 1 > file; echo 2 > $TMPDIR/file; cd /tmp && echo 3 > only-inside").await;
        let root = place.root.path().display().to_string();
        let seen = says(&place, &sandbox, &format!("cat file $TMPDIR/file; ls -A /tmp; ls -A {root}/instances")).await;
        assert_eq!(seen, format!("1\n2\n{}\n{}", place.root.path().file_name().unwrap().to_str().unwrap(), sandbox.name));
        assert!(!std::path::Path::new("/tmp").join("only-inside").exists());
        sandbox.end().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_command_reaches_no_process_but_its_own() {
        let place = Place::new(Wish::Always);
        let sandbox = place.subject().sandbox().await;
        let mark = Mark::new();
        let other = sandbox.start(command(sh(&format!("exec sleep {}", mark.0)))).await;
        mark.appears(1).await;
        // Nobody inside can end what stands around it, whatever it sends: the shim inside, which alone says how the command ended.
        let ran = sandbox
            .run(command(sh("kill -9 $PPID; kill -STOP $PPID; kill -9 1; echo $PPID; ls /proc | grep -c '^[0-9]*$'; exit 143")))
            .await;
        let said = String::from_utf8(ran.stdout).unwrap();
        let (parent, seen) = said.trim().split_once('\n').unwrap();
        assert_eq!((parent, ran.exit.end), ("1", ExecEnd::Exited(143)), "{said}");
        assert!(seen.parse::<u32>().unwrap() <= 4, "{said}");
        assert_eq!(mark.alive(), 1, "another command's process");
        drop(other);
        sandbox.becomes_quiet().await;
        sandbox.end().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_killed_from_outside_frees_nothing() {
        let place = Place::new(Wish::Always);
        let sandbox = place.subject().sandbox().await;
        for (whose, end) in [("shim", None), ("bubblewrap", Some(ExecEnd::Cancelled)), ("inner shim", Some(ExecEnd::Signaled(9)))] {
            let mark = Mark::new();
            let span = &mark.0;
            let script = format!("(env -i /usr/bin/setsid /bin/sleep {span} &); (setsid sleep {span} &); sleep {span}");
            let mut running = sandbox.start(command(sh(&script))).await;
            mark.appears(3).await;
            let run = place.root.path().join("instances").join(&sandbox.name).join("run");
            let entry = fs::read_dir(run).unwrap().next().unwrap().unwrap().path();
            let entry: serde_json::Value = serde_json::from_slice(&fs::read(entry).unwrap()).unwrap();
            let child = |of: &str| fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap().trim().to_owned();
            let shim = entry["pid"].to_string();
            let victim = match whose {
                "shim" => shim,
                "bubblewrap" => child(&shim),
                _ => child(&child(&shim)),
            };
            assert!(Command::new("kill").args(["-9", &victim]).status().unwrap().success());
            if whose == "bubblewrap" {
                // What it put up stands without it, and under the shim.
                running.cancel.cancel();
            }
            let mut exit = None;
            bounded(async {
                while let Some(event) = running.events.recv().await {
                    if let ExecEvent::Exit(told) = event {
                        exit = Some(told);
                    }
                }
            })
            .await;
            assert_eq!(mark.alive(), 0, "the stream ends only when nothing is left, {whose}");
            // Without its shim nobody knows how the command ended.
            assert_eq!(exit.map(|exit| exit.end), end, "{whose}");
            assert_eq!(sandbox.processes().await, 0, "{whose}");
        }
        sandbox.end().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_network_is_there_when_it_is_allowed() {
        let root = tempfile::tempdir_in("/var/tmp").unwrap();
        let confinement = Confinement { bubblewrap: Wish::Always, network: true, ..Confinement::default() };
        let settings = LocalSettings { confinement, ..LocalSettings::new(root.path().to_owned(), env!("CARGO_BIN_EXE_berth").into()) };
        let provider = Local::open(&settings).unwrap();
        let spec = berth::provider::Spec { config: serde_json::json!({}).into(), workspace_path: None };
        let subject = berth::provider::conformance::Subject {
            provider: &provider,
            spec: &spec,
            commands: berth::provider::conformance::Commands::Shell,
        };
        let sandbox = subject.sandbox().await;
        let inside = sandbox.run(command(sh("readlink /proc/self/ns/net"))).await.stdout;
        let outside = fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(String::from_utf8(inside).unwrap().trim(), outside.to_str().unwrap());
        sandbox.end().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_program_or_directory_that_is_missing_is_told_as_elsewhere() {
        let place = Place::new(Wish::Always);
        let sandbox = place.subject().sandbox().await;
        for (program, code) in [("/no/such/program", 127), ("/etc/passwd", 126), ("/home/nobody/there", 127)] {
            assert_eq!(sandbox.run(command(vec![program.to_owned()])).await.exit.end, ExecEnd::Exited(code), "{program}");
        }
        let absent = ExecSpec { cwd: Some("absent".to_owned()), ..command(sh("true")) };
        assert_eq!(place.provider.exec(&sandbox.name, absent).await.err().map(|e| e.kind), Some(Kind::FileNotFound));
        sandbox.end().await;
    }
}

use berth::provider::local::Local;
use berth::provider::{Confinement, Isolation, Kind, LocalSettings, Provider, Wish};

/// A program in bubblewrap's place that fails, and none at all.
#[test]
fn a_bubblewrap_that_does_not_work_is_not_used_and_refused_where_it_must() {
    for program in ["/bin/false", "/bin/true/no", "berth-no-such-program"] {
        let root = tempfile::tempdir_in("/var/tmp").unwrap();
        let open = |bubblewrap| {
            let confinement = Confinement { bubblewrap, program: program.into(), network: false };
            Local::open(&LocalSettings { confinement, ..LocalSettings::new(root.path().to_owned(), env!("CARGO_BIN_EXE_berth").into()) })
        };
        assert_eq!(open(Wish::IfItWorks).unwrap().traits().isolation, Isolation::None, "{program}");
        assert_eq!(open(Wish::Never).unwrap().traits().isolation, Isolation::None, "{program}");
        assert_eq!(open(Wish::Always).err().map(|e| e.kind), Some(Kind::Invalid), "{program}");
        assert_eq!(std::fs::read_dir(root.path().join("making")).unwrap().count(), 0, "the trial left something, {program}");
    }
}
