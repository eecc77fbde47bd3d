//! What lies on disk: names, proofs of absence, and trees that resist.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use berth::provider::conformance::{command, tag};
use berth::provider::local::Local;
use berth::provider::stream::{from_bytes, read_all};
use berth::provider::{Destroyed, ExecEnd, Kind, Observation, OwnerTag, Presence, Provider, PutOptions, WORKSPACE, WriteMode};

use super::{Place, sh};

in_both_modes!(
    links_made_by_commands_lead_nowhere_else
    read_only_trees_are_destroyed
    a_place_that_is_away_proves_nothing
    a_new_server_finds_everything_again
    an_instance_belongs_to_its_owner
    what_an_earlier_destroy_left_is_removed_by_the_next
    nothing_is_captured_but_the_workspace
    what_a_dead_attempt_left_half_made_goes_with_the_next_one_or_the_search
);

async fn links_made_by_commands_lead_nowhere_else(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let script = "ln -s /etc x; ln -s ../.. up; mkdir d; ln -s ../x d/y; mkfifo pipe; printf safe > f; ln -s f in";
    assert_eq!(sandbox.run(command(sh(script))).await.exit.end, ExecEnd::Exited(0));
    for path in ["x/passwd", "up/tag.json", "d/y/passwd", "pipe"] {
        let read = place.provider.read_file(&sandbox.name, path).await;
        assert_eq!(read.err().map(|e| e.kind), Some(Kind::Path), "{path}");
    }
    for path in ["x/new", "d/y/new", "up/new"] {
        let options = PutOptions { mode: None, parents: true };
        let body = from_bytes("x");
        assert_eq!(
            place.provider.write_file(&sandbox.name, 1, path, body, options).await.err().map(|e| e.kind),
            Some(Kind::Path),
            "{path}"
        );
        assert_eq!(place.provider.make_directory(&sandbox.name, 1, path).await.err().map(|e| e.kind), Some(Kind::Path), "{path}");
        assert_eq!(place.provider.move_file(&sandbox.name, 1, "f", path, true).await.err().map(|e| e.kind), Some(Kind::Path), "{path}");
    }
    let listed = place.provider.list_files(&sandbox.name, "", true, None, 100).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| String::from_utf8_lossy(&entry.path)).collect();
    assert_eq!(names, ["d", "d/y", "f", "in", "pipe", "up", "x"], "links are listed and not followed");
    assert_eq!(sandbox.get("in").await, b"safe");
    let tree = place.provider.read_tree(&sandbox.name, WORKSPACE, &[]).await.unwrap();
    read_all(tree.tar, 1 << 20).await.unwrap();
    assert_eq!(tree.skipped.await.unwrap(), 1, "the pipe is counted");
    sandbox.end().await;
}

async fn read_only_trees_are_destroyed(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let script = "mkdir -p a/b/c keep; echo x > a/b/c/f; echo x > keep/f; chmod 555 a/b/c a/b a; chmod 000 keep";
    assert_eq!(sandbox.run(command(sh(script))).await.exit.end, ExecEnd::Exited(0));
    place.provider.remove_file(&sandbox.name, 1, "a", true).await.unwrap();
    assert_eq!(sandbox.run(command(sh("mkdir -p d/e; chmod 555 d/e d ."))).await.exit.end, ExecEnd::Exited(0));
    let empty = from_bytes([0; 1024].as_slice());
    place.provider.write_tree(&sandbox.name, 1, WORKSPACE, empty, WriteMode::Replace).await.unwrap();
    assert_eq!(sandbox.run(command(sh("ls -A; chmod 755 .; mkdir -p f/g; chmod 555 f/g f ."))).await.stdout, b"");
    sandbox.end().await;
    assert_eq!((place.left_in("instances"), place.left_in("trash")), (0, 0));
}

async fn a_place_that_is_away_proves_nothing(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let name = sandbox.name.clone();
    let binding = place.provider.binding().await.unwrap();
    let (root, away) = (place.root.path().join("instances"), place.root.path().join("away"));
    let binding_file = place.root.path().join("binding");
    let id = fs::read(&binding_file).unwrap();

    // The instances are gone, as with a volume that is not mounted.
    fs::rename(&root, &away).unwrap();
    assert_eq!(place.provider.observe(&binding, &name).await, Observation::Unknown);
    assert_eq!(place.provider.destroy(&name).await.unwrap_err().kind, Kind::Transient);
    assert_eq!(place.provider.find(&sandbox.tag).await.unwrap_err().kind, Kind::Transient);
    assert!(place.provider.list(sandbox.tag.deployment).await.is_err());
    fs::rename(&away, &root).unwrap();

    // Another place was put there, or none that can be told.
    for other in [Some(berth::id::new().to_string()), Some("nonsense".to_owned()), None] {
        fs::remove_file(&binding_file).ok();
        if let Some(other) = &other {
            fs::write(&binding_file, other).unwrap();
        }
        assert_eq!(place.provider.observe(&binding, &name).await, Observation::Unknown, "{other:?}");
        let unknown = berth::id::new().to_string();
        assert_eq!(place.provider.destroy(&unknown).await.unwrap_err().kind, Kind::Transient, "{other:?}");
        assert_eq!(place.provider.start(&unknown).await.unwrap_err().kind, Kind::Transient, "{other:?}");
        assert!(place.provider.list(sandbox.tag.deployment).await.is_err(), "{other:?}");
    }
    fs::write(&binding_file, id).unwrap();
    assert_eq!(place.provider.observe(&binding, &name).await, Observation::Present(Presence::Running));
    assert_eq!(place.provider.destroy(&name).await.unwrap(), Destroyed::Ended);
    assert_eq!(place.provider.observe(&binding, &name).await, Observation::Absent);
}

async fn a_new_server_finds_everything_again(place: Place) {
    let sandbox = place.subject().sandbox().await;
    sandbox.put("file", b"content").await;
    place.provider.fence(&sandbox.name, 7).await.unwrap();
    place.provider.stop(&sandbox.name).await.unwrap();
    let again = Local::open(&place.settings()).unwrap();
    let binding = again.binding().await.unwrap();
    assert_eq!(binding, place.provider.binding().await.unwrap());
    assert_eq!(again.observe(&binding, &sandbox.name).await, Observation::Present(Presence::Stopped));
    assert_eq!(again.find(&sandbox.tag).await.unwrap().unwrap().provider_ref, sandbox.name);
    again.start(&sandbox.name).await.unwrap();
    let late = again.exec(&sandbox.name, command(sh("true"))).await;
    assert_eq!(late.err().map(|e| e.kind), Some(Kind::Fenced), "the fence is on disk");
    let listed = again.list(sandbox.tag.deployment).await.unwrap();
    assert!(listed[0].created_at.is_some(), "an age that the sweeper can judge");
    sandbox.end().await;
}

async fn an_instance_belongs_to_its_owner(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let thief = OwnerTag { instance: sandbox.tag.instance, ..tag() };
    assert_eq!(place.provider.ensure(&place.spec, &thief).await.unwrap_err().kind, Kind::Refused);
    assert_eq!(place.provider.find(&thief).await.unwrap_err().kind, Kind::Refused);
    for nonsense in ["", "..", "../instances", "x/y", "{0}"] {
        assert_eq!(place.provider.start(nonsense).await.unwrap_err().kind, Kind::NotFound, "{nonsense}");
        assert_eq!(place.provider.destroy(nonsense).await.unwrap(), Destroyed::AlreadyGone, "{nonsense}");
    }
    sandbox.end().await;
}

async fn what_an_earlier_destroy_left_is_removed_by_the_next(place: Place) {
    let name = berth::id::new().to_string();
    for half in ["trash", "making"] {
        fs::create_dir_all(place.root.path().join(half).join(format!("{name}.x/workspace/deep"))).unwrap();
    }
    fs::create_dir(place.root.path().join("trash/other.x")).unwrap();
    assert_eq!(place.provider.destroy(&name).await.unwrap(), Destroyed::AlreadyGone);
    assert_eq!((place.left_in("trash"), place.left_in("making")), (1, 0));
}

async fn nothing_is_captured_but_the_workspace(place: Place) {
    let sandbox = place.subject().sandbox().await;
    let script = "echo x > \"$TMPDIR/scratch\"; echo x > file; chmod 4755 file";
    assert_eq!(sandbox.run(command(sh(script))).await.exit.end, ExecEnd::Exited(0));
    let listed = place.provider.list_files(&sandbox.name, "", true, None, 100).await.unwrap();
    assert_eq!(listed.len(), 1);
    sandbox.put("file", b"y").await;
    let kept = place.root.path().join("instances").join(&sandbox.name);
    assert_eq!(fs::metadata(kept.join("workspace/file")).unwrap().permissions().mode() & 0o7777, 0o4755);
    assert_eq!(fs::read_dir(kept.join("staging")).unwrap().count(), 0, "nothing stays where puts are made");
    sandbox.end().await;
}

async fn what_a_dead_attempt_left_half_made_goes_with_the_next_one_or_the_search(place: Place) {
    let left_by_a_dead_attempt = |tag: &OwnerTag| {
        let half = place.root.path().join("making").join(format!("{}.{}", tag.instance, berth::id::new()));
        fs::create_dir_all(half.join("workspace")).unwrap();
    };
    let made = tag();
    left_by_a_dead_attempt(&made);
    left_by_a_dead_attempt(&tag());
    let sandbox = place.provider.ensure(&place.spec, &made).await.unwrap();
    assert_eq!(place.left_in("making"), 1, "its own is gone, another's is not touched");
    place.provider.destroy(&sandbox.provider_ref).await.unwrap();
    let never_made = tag();
    left_by_a_dead_attempt(&never_made);
    assert!(place.provider.find(&never_made).await.unwrap().is_none());
    assert_eq!(place.left_in("making"), 1);
}
