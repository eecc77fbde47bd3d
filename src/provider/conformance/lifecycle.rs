//! Making, finding, observing, stopping and ending objects.
#![expect(clippy::missing_panics_doc, reason = "to panic is what these functions are for")]

use super::{Subject, bounded, command, nobody, outcome, tag, words};
use crate::provider::{Destroyed, ExecEnd, Kind, Lookup, Observation, Presence};

/// Everything in this file.
pub async fn all(subject: Subject<'_>) {
    ensure_twice_is_once(subject).await;
    observations_tell_what_is(subject).await;
    stop_and_start_keep_files(subject).await;
    destroy_is_repeatable(subject).await;
    list_shows_tags(subject).await;
}

/// The same tag makes one object, is found again, and another tag is another object.
pub async fn ensure_twice_is_once(subject: Subject<'_>) {
    if subject.provider.traits().lookup != Lookup::ByTag {
        let refused = subject.provider.find(&tag()).await.expect_err("find without lookup by tag");
        return assert_eq!(refused.kind, Kind::Unsupported);
    }
    let unmade = tag();
    assert_eq!(subject.provider.find(&unmade).await.expect("find"), None);
    let one = subject.sandbox().await;
    let again = subject.provider.ensure(subject.spec, &one.tag).await.expect("ensure again");
    assert_eq!(again.provider_ref, one.name, "ensure twice made two");
    assert_eq!(subject.provider.find(&one.tag).await.expect("find"), Some(again));
    assert_eq!(subject.provider.list(one.tag.deployment).await.expect("list").len(), 1);
    let other = subject.sandbox().await;
    assert_ne!(other.name, one.name, "two tags share an object");
    let racing = tag();
    let (left, right) = tokio::join!(subject.provider.ensure(subject.spec, &racing), subject.provider.ensure(subject.spec, &racing));
    assert_eq!(left.expect("ensure"), right.expect("ensure at the same time"));
    let raced = subject.provider.find(&racing).await.expect("find").expect("made");
    subject.provider.destroy(&raced.provider_ref).await.expect("destroy");
    one.end().await;
    other.end().await;
}

/// Running, stopped and absent are told apart, and nothing is told under another binding.
pub async fn observations_tell_what_is(subject: Subject<'_>) {
    let provider = subject.provider;
    let sandbox = subject.sandbox().await;
    let name = sandbox.name.clone();
    let binding = provider.binding().await.expect("binding");
    assert_eq!(binding, provider.binding().await.expect("binding"), "the binding changed");
    assert_eq!(provider.observe(&binding, &name).await, Observation::Present(Presence::Running));
    assert_eq!(provider.observe("another", &name).await, Observation::Unknown);
    if provider.traits().stop_resume {
        provider.stop(&name).await.expect("stop");
        assert_eq!(provider.observe(&binding, &name).await, Observation::Present(Presence::Stopped));
        provider.start(&name).await.expect("start");
        assert_eq!(provider.observe(&binding, &name).await, Observation::Present(Presence::Running));
    }
    sandbox.end().await;
    assert_eq!(provider.observe("another", &name).await, Observation::Unknown, "absent under a foreign binding");
    assert_eq!(provider.observe(&binding, &name).await, Observation::Absent);
}

/// A stopped object runs nothing and keeps its files; both verbs are repeatable.
pub async fn stop_and_start_keep_files(subject: Subject<'_>) {
    if !subject.provider.traits().stop_resume {
        return;
    }
    let sandbox = subject.sandbox().await;
    sandbox.put("kept", b"content").await;
    let asleep = sandbox.start(command(subject.sleep())).await;
    for _ in 0..2 {
        bounded(subject.provider.stop(&sandbox.name)).await.expect("stop");
    }
    assert_eq!(outcome(asleep).await.exit.end, ExecEnd::Cancelled, "a stop ends what runs");
    assert_eq!(sandbox.processes().await, 0);
    let refused = subject.provider.exec(&sandbox.name, command(words(&["true"]))).await;
    assert_eq!(refused.err().map(|e| e.kind), Some(Kind::Refused), "exec in a stopped object");
    for _ in 0..2 {
        subject.provider.start(&sandbox.name).await.expect("start");
    }
    assert_eq!(sandbox.get("kept").await, b"content");
    assert_eq!(sandbox.run(command(words(&["true"]))).await.exit.end, ExecEnd::Exited(0));
    sandbox.end().await;
}

/// The first destroy ends, the next finds nothing, and every other verb says so.
pub async fn destroy_is_repeatable(subject: Subject<'_>) {
    let provider = subject.provider;
    let sandbox = subject.sandbox().await;
    let asleep = sandbox.start(command(subject.sleep())).await;
    assert_eq!(bounded(provider.destroy(&sandbox.name)).await.expect("destroy"), Destroyed::Ended);
    assert_eq!(outcome(asleep).await.exit.end, ExecEnd::Cancelled, "a destroy ends what runs");
    assert_eq!(provider.destroy(&sandbox.name).await.expect("destroy again"), Destroyed::AlreadyGone);
    let gone = [
        provider.start(&sandbox.name).await.err(),
        provider.stop(&sandbox.name).await.err(),
        provider.fence(&sandbox.name, 1).await.err(),
        provider.exec(&sandbox.name, command(words(&["true"]))).await.err(),
        provider.stat_file(&sandbox.name, ".").await.err(),
    ];
    for error in gone {
        assert_eq!(error.map(|e| e.kind), Some(Kind::NotFound));
    }
}

/// The inventory names each object of a deployment with its tag, and no other's.
pub async fn list_shows_tags(subject: Subject<'_>) {
    let sandbox = subject.sandbox().await;
    let listed = subject.provider.list(sandbox.tag.deployment).await.expect("list");
    let [one] = listed.as_slice() else { panic!("{} objects listed", listed.len()) };
    assert_eq!((&one.provider_ref, &one.tag), (&sandbox.name, &sandbox.tag));
    assert!(subject.provider.list(nobody()).await.expect("list").is_empty());
    let deployment = sandbox.tag.deployment;
    sandbox.end().await;
    assert!(subject.provider.list(deployment).await.expect("list").is_empty());
}
