//! Commands that do everything to outlive their end, and do not.

use std::process::{Command, Stdio};
use std::time::Duration;

use berth::provider::conformance::{Sandbox, bounded, command, outcome};
use berth::provider::local::Local;
use berth::provider::{ExecEnd, ExecEvent, ExecSpec, Kind, Provider, Running, Spec, Wish};

use super::{Mark, Place, eventually, settings, sh};

in_both_modes!(
    what_lingers_lives_as_long_as_the_provider
    a_time_out_and_a_cancel_answer_only_when_the_tree_is_dead
    fence_stop_and_destroy_answer_only_when_the_tree_is_dead
    whoever_leaves_takes_the_tree_along
    a_killed_server_leaves_nothing
    stopping_its_own_shim_stops_no_end
    stopping_its_own_shim_stops_no_fence
    processes_that_renew_themselves_are_caught
    after_a_fence_nothing_of_a_lower_grant_runs
    an_operation_starts_once
    commands_get_a_clean_environment
);

/// Leaves its group, its session, its parents and its environment, ignores signals, and waits.
fn runaway(mark: &Mark) -> Vec<String> {
    let span = &mark.0;
    sh(&format!(
        "trap '' TERM HUP INT
         (setsid sh -c 'trap \"\" TERM; sleep {span} & wait' &)
         (env -i /usr/bin/setsid /bin/sh -c '(cd /; exec /bin/sleep {span}) & exit' &)
         (env -i /bin/sh -c 'cd /; (/bin/sleep {span} &) & exit' >/dev/null 2>&1 </dev/null &)
         sleep {span}"
    ))
}

async fn started(sandbox: &Sandbox<'_>, mark: &Mark, timeout: Duration) -> Running {
    let running = sandbox.start(ExecSpec { timeout, ..command(runaway(mark)) }).await;
    mark.appears(4).await;
    running
}

const LONG: Duration = Duration::from_mins(1);

async fn a_time_out_and_a_cancel_answer_only_when_the_tree_is_dead(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let running = started(&sandbox, &mark, Duration::from_secs(6)).await;
    let exit = outcome(running).await.exit;
    assert_eq!((exit.end, exit.process_tree_killed, mark.alive()), (ExecEnd::TimedOut, true, 0));
    let running = started(&sandbox, &mark, LONG).await;
    running.cancel.cancel();
    let exit = outcome(running).await.exit;
    assert_eq!((exit.end, exit.process_tree_killed, mark.alive()), (ExecEnd::Cancelled, true, 0));
    sandbox.end().await;
}

async fn fence_stop_and_destroy_answer_only_when_the_tree_is_dead(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let running = started(&sandbox, &mark, LONG).await;
    bounded(place.provider.fence(&sandbox.name, 2)).await.unwrap();
    assert_eq!(mark.alive(), 0, "after a fence");
    assert_eq!(outcome(running).await.exit.end, ExecEnd::Cancelled);
    for stop in [true, false] {
        let running = sandbox.start(ExecSpec { grant_seq: 2, ..command(runaway(&mark)) }).await;
        mark.appears(4).await;
        if stop {
            bounded(place.provider.stop(&sandbox.name)).await.unwrap();
            assert_eq!(mark.alive(), 0, "after a stop");
            place.provider.start(&sandbox.name).await.unwrap();
        } else {
            bounded(place.provider.destroy(&sandbox.name)).await.unwrap();
            assert_eq!(mark.alive(), 0, "after a destroy");
        }
        assert_eq!(outcome(running).await.exit.end, ExecEnd::Cancelled);
    }
}

async fn whoever_leaves_takes_the_tree_along(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    drop(started(&sandbox, &mark, LONG).await);
    mark.disappears().await;
    // Given up while it starts, at every await it has.
    for polls in 1..12 {
        let mut call = Box::pin(place.provider.exec(&sandbox.name, command(runaway(&mark))));
        for _ in 0..polls {
            let _ = futures_util::poll!(&mut call);
            tokio::task::yield_now().await;
        }
    }
    sandbox.becomes_quiet().await;
    mark.disappears().await;
    sandbox.end().await;
}

async fn what_lingers_lives_as_long_as_the_provider(place: Place) {
    let settings = place.settings();
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let script = sh(&format!("echo started; sleep {} & exit 3", mark.0));
    let running = sandbox.start(command(script)).await;
    let seen = outcome(running).await;
    assert_eq!((seen.stdout.as_slice(), seen.exit.end, seen.exit.lingering), (b"started\n".as_slice(), ExecEnd::Exited(3), true));
    assert_eq!((mark.alive(), sandbox.processes().await), (1, 1));
    let name = sandbox.name.clone();
    drop(sandbox);
    let Place { provider, root, .. } = place;
    drop(provider);
    mark.disappears().await;
    let again = Local::open(&settings).unwrap();
    eventually(|| std::fs::read_dir(root.path().join("instances").join(&name).join("run")).unwrap().count() == 0, "a registration stays")
        .await;
    assert_eq!(again.processes(&name).await.unwrap(), 0);
}

/// Not a test of its own: the server that `a_killed_server_leaves_nothing` kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn be_a_server() {
    let (Ok(root), Ok(name), Ok(span)) = (std::env::var("IT_ROOT"), std::env::var("IT_NAME"), std::env::var("IT_SPAN")) else { return };
    let wish = if std::env::var("IT_BUBBLEWRAP").is_ok() { Wish::Always } else { Wish::Never };
    let provider = Local::open(&settings(root.into(), wish)).unwrap();
    let mut commands = Vec::new();
    for _ in 0..3 {
        commands.push(provider.exec(&name, command(runaway(&Mark(span.clone())))).await.unwrap());
    }
    let lingers = provider.exec(&name, command(sh(&format!("sleep {span} & exit 0")))).await.unwrap();
    outcome(lingers).await;
    tokio::time::sleep(LONG).await;
}

async fn a_killed_server_leaves_nothing(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::runaways::be_a_server"])
        .envs([("IT_ROOT", place.root.path().to_str().unwrap()), ("IT_NAME", &sandbox.name), ("IT_SPAN", &mark.0)])
        .envs((place.wish == Wish::Always).then_some(("IT_BUBBLEWRAP", "1")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    mark.appears(13).await;
    server.kill().unwrap();
    server.wait().unwrap();
    mark.disappears().await;
    sandbox.becomes_quiet().await;
    sandbox.end().await;
}

/// Where nothing stands between the command and its shim; elsewhere it does not come that far.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_its_own_shim_frees_nothing() {
    let place = Place::new(Wish::Never);
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let span = &mark.0;
    let script =
        format!("(env -i /usr/bin/setsid /bin/sleep {span} &); (setsid sleep {span} &); echo up; read go; kill -9 $PPID; sleep {span}");
    let mut running = sandbox.start(command(sh(&script))).await;
    mark.appears(2).await;
    running.stdin.send("go\n".into()).await.unwrap();
    let followed = bounded(async {
        while let Some(event) = running.events.recv().await {
            assert!(!matches!(event, ExecEvent::Exit(_)), "an exit that nobody saw");
        }
    });
    followed.await;
    assert_eq!(mark.alive(), 0, "the stream ends only when nothing is left");
    bounded(place.provider.fence(&sandbox.name, 2)).await.unwrap();
    assert_eq!(sandbox.processes().await, 0);
    sandbox.end().await;
}

async fn stopping_its_own_shim_stops_no_end(place: Place) {
    let sandbox = place.subject().sandbox().await;
    for way in ["time-out", "cancel", "drop"] {
        let mark = Mark::new();
        let timeout = if way == "time-out" { Duration::from_secs(1) } else { LONG };
        let script = sh(&format!("(env -i setsid /bin/sleep {} &); kill -STOP $PPID; sleep {}", mark.0, mark.0));
        // The answer may be caught before or after it was sent.
        let Ok(mut running) = bounded(place.provider.exec(&sandbox.name, ExecSpec { timeout, ..command(script) })).await else {
            mark.disappears().await;
            continue;
        };
        if way == "cancel" {
            running.cancel.cancel();
        }
        if way != "drop" {
            bounded(async { while running.events.recv().await.is_some() {} }).await;
            assert_eq!(mark.alive(), 0, "{way}");
        }
        drop(running);
        mark.disappears().await;
    }
    sandbox.end().await;
}

async fn stopping_its_own_shim_stops_no_fence(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    let script = format!("(while :; do kill -STOP $PPID 2>/dev/null; done) & kill -STOP $PPID; sleep {}", mark.0);
    // The shim may be stopped before it says that the command runs.
    let start = place.provider.exec(&sandbox.name, command(sh(&script)));
    let fence = async {
        mark.appears(1).await;
        bounded(place.provider.fence(&sandbox.name, 2)).await.unwrap();
        assert_eq!((mark.alive(), sandbox.processes().await), (0, 0));
    };
    let (started, ()) = tokio::join!(bounded(start), fence);
    drop(started);
    sandbox.end().await;
}

async fn processes_that_renew_themselves_are_caught(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let mark = Mark::new();
    // Each generation forks the next one and ends; the mark is on the shell's own command line, and a look at all processes may come too
    // late for any of them.
    let comet = format!("c() {{ : {}; printf . >>flown; (c &) ; }}; for i in 1 2 3 4 5 6; do (c &); done; sleep 600", mark.0);
    let running = sandbox.start(ExecSpec { timeout: Duration::from_mins(10), ..command(sh(&comet)) }).await;
    let mut flown = 0;
    while flown < 30 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        flown = place.provider.stat_file(&sandbox.name, "flown").await.map_or(0, |file| file.size);
    }
    running.cancel.cancel();
    let exit = outcome(running).await.exit;
    assert_eq!((exit.end, mark.alive(), sandbox.processes().await), (ExecEnd::Cancelled, 0, 0));
    sandbox.end().await;
}

async fn after_a_fence_nothing_of_a_lower_grant_runs(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let (mut fenced, mut killed) = (0, 0);
    // From its beginning to well after it, however long a start takes on this machine today.
    let begun = std::time::Instant::now();
    outcome(sandbox.start(command(sh("true"))).await).await;
    let step = begun.elapsed() / 8;
    for round in 1..=120_u32 {
        let (moment, round) = (round % 12, i64::from(round));
        let mark = Mark::new();
        let start = place.provider.exec(&sandbox.name, ExecSpec { grant_seq: round, ..command(sh(&format!("exec sleep {}", mark.0))) });
        let fence = async {
            // A different moment of the start in every round.
            for _ in 0..round % 30 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(step * moment).await;
            bounded(place.provider.fence(&sandbox.name, round + 1)).await.unwrap();
            assert_eq!(mark.alive(), 0, "when the fence answers, round {round}");
        };
        let (start, ()) = tokio::join!(start, fence);
        match start {
            Ok(running) => {
                killed += 1;
                assert_eq!(outcome(running).await.exit.end, ExecEnd::Cancelled);
            }
            Err(e) => {
                fenced += 1;
                assert_eq!(e.kind, Kind::Fenced, "round {round}");
            }
        }
        assert_eq!(mark.alive(), 0, "later, round {round}");
    }
    assert!(fenced > 0 && killed > 0, "the race had one end only: {fenced} fenced, {killed} killed");
    sandbox.end().await;
}

async fn an_operation_starts_once(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let spec = command(sh("sleep 60"));
    let running = sandbox.start(spec.clone()).await;
    let twice = place.provider.exec(&sandbox.name, spec).await;
    assert_eq!(twice.err().map(|e| e.kind), Some(Kind::Refused));
    assert_eq!(sandbox.processes().await, 1);
    drop(running);
    sandbox.end().await;
}

async fn commands_get_a_clean_environment(place: Place) {
    let spec = Spec { config: serde_json::json!({ "env": { "CONFIGURED": "1", "LANG": "C" } }).into(), workspace_path: None };
    let sandbox = berth::provider::conformance::Subject { spec: &spec, ..place.subject() }.sandbox().await;
    let asked = ExecSpec { env: vec![("BERTH_EXEC_ID".to_owned(), "mine".to_owned())], ..command(vec!["env".to_owned()]) };
    let id = asked.id;
    let said = String::from_utf8(sandbox.run(asked).await.stdout).unwrap();
    let mut names: Vec<&str> = said.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["BERTH_EXEC_ID", "BERTH_INSTANCE_ID", "CONFIGURED", "HOME", "LANG", "PATH", "TMPDIR"]);
    assert!(said.contains("LANG=C\n") && said.contains(&format!("BERTH_EXEC_ID={id}\n")), "{said}");
    assert!(said.contains(&format!("HOME={}\n", sandbox.workspace)));
    sandbox.end().await;
}
