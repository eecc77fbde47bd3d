//! Running commands, ending them, and keeping old grants out.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

use std::time::Duration;

use bytes::Bytes;

use super::{Commands, Subject, bounded, command, outcome, words};
use crate::provider::{ExecEnd, ExecSpec, Kind};

/// Everything in this file.
pub async fn all(subject: Subject<'_>) {
    output_is_exact(subject).await;
    input_arrives(subject).await;
    surroundings_are_as_asked(subject).await;
    time_out_kills_the_tree(subject).await;
    cancel_and_drop_kill_the_tree(subject).await;
    what_lingers_is_told_and_fenced(subject).await;
    fence_refuses_and_kills_lower_grants(subject).await;
}

/// Bytes and exit codes come out as they are; a missing program is 127.
pub async fn output_is_exact(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let echo = sandbox.run(command(words(&["echo", "hello", "world"]))).await;
    assert_eq!((echo.stdout.as_slice(), echo.exit.end), (b"hello world\n".as_slice(), ExecEnd::Exited(0)));
    assert!(!echo.exit.lingering && !echo.exit.process_tree_killed);
    for (argv, code) in [(["sh", "-c", "exit 7"].as_slice(), 7), (&["false"], 1), (&["berth-no-such-program"], 127)] {
        assert_eq!(sandbox.run(command(words(argv))).await.exit.end, ExecEnd::Exited(code), "{argv:?}");
    }
    if subject.commands == Commands::Shell {
        let both = sandbox.run(command(words(&["sh", "-c", r"printf 'a\000\377b'; printf 'err' >&2; kill -9 $$"]))).await;
        assert_eq!((both.stdout.as_slice(), both.stderr.as_slice()), (b"a\0\xffb".as_slice(), b"err".as_slice()));
        assert_eq!(both.exit.end, ExecEnd::Signaled(9));
        sandbox.put("plain", b"no program").await;
        assert_eq!(sandbox.run(command(words(&["./plain"]))).await.exit.end, ExecEnd::Exited(126));
    }
    assert_eq!(sandbox.processes().await, 0);
    sandbox.end().await;
}

/// Standard input reaches the command byte for byte, and its end too.
pub async fn input_arrives(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
    let mut running = sandbox.start(command(words(&["cat"]))).await;
    let stdin = std::mem::replace(&mut running.stdin, tokio::sync::mpsc::channel(1).0);
    let sending = async {
        for chunk in sent.chunks(10_000) {
            stdin.send(Bytes::copy_from_slice(chunk)).await.expect("stdin");
        }
        drop(stdin);
    };
    let ((), seen) = tokio::join!(bounded(sending), outcome(running));
    assert!(seen.stdout == sent, "standard input came back changed");
    assert_eq!(seen.exit.end, ExecEnd::Exited(0));
    sandbox.end().await;
}

/// Working directory and environment are what was asked for; what cannot be is refused.
pub async fn surroundings_are_as_asked(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    subject.provider.make_directory(&sandbox.name, 1, "below").await.expect("make_directory");
    sandbox.put("below/file", b"here").await;
    for cwd in ["below".to_owned(), format!("{}/below", sandbox.workspace)] {
        let cat = ExecSpec { cwd: Some(cwd), ..command(words(&["cat", "file"])) };
        assert_eq!(sandbox.run(cat).await.stdout, b"here");
    }
    for (cwd, kind) in [("missing", Kind::FileNotFound), ("below/file", Kind::NotADirectory), ("..", Kind::Path)] {
        let wrong = ExecSpec { cwd: Some(cwd.to_owned()), ..command(words(&["true"])) };
        assert_eq!(subject.provider.exec(&sandbox.name, wrong).await.err().map(|e| e.kind), Some(kind), "{cwd}");
    }
    let empty = subject.provider.exec(&sandbox.name, command(Vec::new())).await;
    assert_eq!(empty.err().map(|e| e.kind), Some(Kind::Invalid));
    if subject.commands == Commands::Shell {
        let shown = ExecSpec {
            env: vec![("GIVEN".to_owned(), "a value".to_owned())],
            ..command(words(&["sh", "-c", "printf '%s|%s' \"$GIVEN\" \"$PWD\""]))
        };
        assert_eq!(sandbox.run(shown).await.stdout, format!("a value|{}", sandbox.workspace).into_bytes());
    }
    sandbox.end().await;
}

/// A command past its deadline is dead with everything it started when that is told.
pub async fn time_out_kills_the_tree(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let timed = ExecSpec { timeout: Duration::from_millis(100), ..command(subject.sleep()) };
    let exit = sandbox.run(timed).await.exit;
    assert_eq!((exit.end, exit.process_tree_killed, exit.lingering), (ExecEnd::TimedOut, true, false));
    assert_eq!(sandbox.processes().await, 0);
    sandbox.end().await;
}

/// Cancelling answers with an exit; leaving needs no answer. Both kill.
pub async fn cancel_and_drop_kill_the_tree(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let running = sandbox.start(command(subject.sleep())).await;
    assert_eq!(sandbox.processes().await, 1);
    running.cancel.cancel();
    let exit = outcome(running).await.exit;
    assert_eq!((exit.end, exit.process_tree_killed), (ExecEnd::Cancelled, true));
    assert_eq!(sandbox.processes().await, 0);
    drop(sandbox.start(command(subject.sleep())).await);
    sandbox.becomes_quiet().await;
    sandbox.end().await;
}

/// A command may leave something behind; that is told, counted and ended by a fence.
pub async fn what_lingers_is_told_and_fenced(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let exit = sandbox.run(command(subject.linger())).await.exit;
    assert_eq!((exit.end, exit.lingering), (ExecEnd::Exited(0), true));
    assert_eq!(sandbox.processes().await, 1, "what lingers lives on without its caller");
    bounded(subject.provider.fence(&sandbox.name, 2)).await.expect("fence");
    assert_eq!(sandbox.processes().await, 0);
    sandbox.end().await;
}

/// From a fence on nothing of a lower grant runs or starts, however late it comes; a fence never sinks.
pub async fn fence_refuses_and_kills_lower_grants(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let granted = |grant_seq, argv| ExecSpec { grant_seq, ..command(argv) };
    let (old, new) = (sandbox.start(granted(4, subject.sleep())).await, sandbox.start(granted(5, subject.sleep())).await);
    for fence in [5, 3] {
        bounded(subject.provider.fence(&sandbox.name, fence)).await.expect("fence");
        assert_eq!(sandbox.processes().await, 1, "after fence {fence}");
    }
    assert_eq!(outcome(old).await.exit.end, ExecEnd::Cancelled);
    let late = subject.provider.exec(&sandbox.name, granted(4, words(&["true"]))).await;
    assert_eq!(late.err().map(|e| e.kind), Some(Kind::Fenced));
    assert_eq!(sandbox.run(granted(5, words(&["true"]))).await.exit.end, ExecEnd::Exited(0));
    bounded(subject.provider.fence(&sandbox.name, 6)).await.expect("fence");
    assert_eq!(sandbox.processes().await, 0);
    assert_eq!(outcome(new).await.exit.end, ExecEnd::Cancelled);
    if subject.provider.traits().stop_resume {
        subject.provider.stop(&sandbox.name).await.expect("stop");
        subject.provider.start(&sandbox.name).await.expect("start");
        let later = subject.provider.exec(&sandbox.name, granted(5, words(&["true"]))).await;
        assert_eq!(later.err().map(|e| e.kind), Some(Kind::Fenced), "a fence survives a stop");
    }
    sandbox.end().await;
}
