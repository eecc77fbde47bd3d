//! A reader of events misses none and sees none twice, however often it comes back and whoever writes meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth::model::event::Actor;
use berth::ops::events::{self, Asked};
use berth::store::Store;
use berth::store::event::NewEvent;
use futures_util::StreamExt;
use serde_json::json;
use uuid::Uuid;

use crate::both;
use crate::harness::client::Wire;
use crate::harness::{World, code};

const WRITERS: usize = 16;
const EACH: usize = 12;

/// One event in a transaction of its own that takes a while to commit.
async fn write(store: &Store, organization: Uuid, subject: Uuid, delay: Duration) {
    let mut tx = store.begin().await.unwrap();
    let now = tx.now().await.unwrap();
    let actor = Actor::System { task: "writer" };
    let event =
        NewEvent { organization, type_: "test.written", subject_kind: "test", subject, generation: None, actor: &actor, data: json!({}) };
    tx.tell(event, now).await.unwrap();
    tokio::time::sleep(delay).await;
    tx.commit().await.unwrap();
}

/// Follows the stream for a few events, then drops the connection; returns the seqs and subjects it saw.
async fn follow(wire: &Wire, last: i64, most: usize) -> Vec<(i64, String)> {
    let response = wire.ask("GET", "/v1/events/stream?type=test.written").header("last-event-id", last).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut bytes, mut text, mut seen) = (response.bytes_stream(), String::new(), Vec::new());
    while seen.len() < most {
        match tokio::time::timeout(Duration::from_millis(700), bytes.next()).await {
            Ok(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap()),
            _ => break,
        }
        while let Some((block, rest)) = text.split_once("\n\n") {
            let data = block.lines().find_map(|line| line.strip_prefix("data: "));
            if let Some(data) = data.filter(|_| seen.len() < most) {
                let event: serde_json::Value = serde_json::from_str(data).unwrap();
                seen.push((event["seq"].as_i64().unwrap(), event["subject_id"].as_str().unwrap().to_owned()));
            }
            text = rest.to_owned();
        }
    }
    seen
}

both! {
    async fn a_reader_that_reconnects_at_random_misses_none_and_sees_none_twice(world) {
        let stores = [world.another().await, world.another().await, world.berth.clone()];
        let organization = world.caller.organization;
        let running = Arc::new(AtomicUsize::new(WRITERS));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (berth, running) = (Arc::clone(&stores[writer % 3]), Arc::clone(&running));
                tokio::task::spawn(async move {
                    let mut written = Vec::new();
                    for round in 0..EACH {
                        let subject = Uuid::now_v7();
                        write(&berth.store, organization, subject, Duration::from_millis(((writer * 7 + round * 3) % 5) as u64)).await;
                        written.push(subject.to_string());
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    written
                })
            })
            .collect();
        let wire = world.serve().await;
        let (mut last, mut seen, mut quiet) = (0, Vec::new(), 0);
        while quiet < 2 {
            let over = running.load(Ordering::SeqCst) == 0;
            let some = follow(&wire, last, 1 + seen.len() % 9).await;
            last = some.last().map_or(last, |(seq, _)| *seq);
            quiet = if some.is_empty() && over { quiet + 1 } else { 0 };
            seen.extend(some);
        }
        assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "each once, ascending");
        let mut written = BTreeSet::new();
        for writer in writers {
            written.extend(writer.await.unwrap());
        }
        assert_eq!(seen.len(), WRITERS * EACH);
        assert_eq!(seen.into_iter().map(|(_, subject)| subject).collect::<BTreeSet<_>>(), written);
    }

    async fn pages_ascend_and_go_on(world) {
        let lease = world.acquire("h", "s").await.unwrap();
        world.release(&lease).await.unwrap();
        let wire = world.serve().await;
        let whole = wire.get("/v1/events?limit=100").await;
        let all: Vec<i64> = whole.json["items"].as_array().unwrap().iter().map(|e| e["seq"].as_i64().unwrap()).collect();
        assert!(all.len() >= 3 && all.is_sorted(), "{whole:?}");
        assert_eq!((whole.json["next_cursor"].clone(), whole.json["next_after"].as_i64()), (json!(null), all.last().copied()));
        let (mut walked, mut after) = (Vec::new(), 0);
        loop {
            let page = wire.get(&format!("/v1/events?limit=2&after={after}")).await;
            walked.extend(page.json["items"].as_array().unwrap().iter().map(|e| e["seq"].as_i64().unwrap()));
            after = page.json["next_after"].as_i64().unwrap();
            if page.json["next_cursor"].is_null() {
                break;
            }
        }
        assert_eq!(walked, all);
        let requested = wire.get(&format!("/v1/events?type=lease.requested&subject_id={}", lease.lease.id)).await;
        assert_eq!(requested.json["items"].as_array().unwrap().len(), 1, "{requested:?}");
        assert_eq!(requested.json["items"][0]["actor"]["kind"], "api_key");
        assert_eq!(wire.get("/v1/events?after=-1").await.status, 422);
        let bad = crate::harness::client::got(wire.ask("GET", "/v1/events/stream").header("last-event-id", "x")).await;
        assert_eq!(bad.status, 422);
    }

    async fn a_token_sees_its_own_sandbox_only(world) {
        let wire = world.serve().await;
        let mine = world.acquire("mine", "s").await.unwrap();
        world.acquire("other", "t").await.unwrap();
        let token = wire.with(&world.berth.token_for(&mine.lease));
        let seen = token.get("/v1/events?limit=100").await;
        let subjects: BTreeSet<&str> = seen.json["items"].as_array().unwrap().iter().map(|e| e["subject_id"].as_str().unwrap()).collect();
        let own = [mine.lease.id, mine.lease.sandbox_id, mine.lease.instance_id.unwrap()].map(|id| id.to_string());
        assert!(!subjects.is_empty() && subjects.iter().all(|s| own.contains(&(*s).to_owned())), "{subjects:?}");
    }

    async fn what_is_no_longer_kept_is_told(world) {
        let reads = |after| { let world: &World = &world; async move {
            events::page(&world.berth, &world.caller, &Asked { after, limit: 100, ..Asked::default() }).await
        }};
        let lease = world.acquire("h", "s").await.unwrap();
        // Never read: numbered all the same before it is forgotten.
        world.advance(Duration::from_secs(31 * 86_400));
        events::forget_old(&world.berth).await.unwrap();
        assert!(reads(None).await.unwrap().items.is_empty());
        assert_eq!(code(reads(Some(0)).await), berth::error::Code::EventsExpired);
        world.delete(&lease).await.unwrap();
        let wire = world.serve().await;
        let gone = wire.get("/v1/events?after=0").await;
        let kept = wire.get("/v1/events").await;
        assert_eq!((gone.status, gone.code()), (410, "events_expired"), "{gone:?}");
        assert_eq!(gone.json["oldest_seq"], kept.json["items"][0]["seq"]);
        let stream = crate::harness::client::got(wire.ask("GET", "/v1/events/stream").header("last-event-id", "0")).await;
        assert_eq!(stream.status, 410);
        let beyond = wire.get("/v1/events?after=9223372036854775807").await;
        assert_eq!((beyond.status, &beyond.json["items"]), (200, &json!([])), "{beyond:?}");
        let from = gone.json["oldest_seq"].as_i64().unwrap() - 1;
        assert_eq!(reads(Some(from)).await.unwrap().items.len(), kept.json["items"].as_array().unwrap().len());
    }

    async fn the_seventeenth_stream_of_a_key_is_refused_until_one_is_closed(world) {
        let wire = world.serve().await;
        let follow = || async { wire.ask("GET", "/v1/events/stream").send().await.unwrap() };
        let mut open = Vec::new();
        for _ in 0..16 {
            open.push(follow().await);
        }
        let refused = crate::harness::client::got(wire.ask("GET", "/v1/events/stream")).await;
        assert_eq!((refused.status, refused.code(), &refused.json["limit"]), (429, "quota_exceeded", &json!("streams")), "{refused:?}");
        assert!(!refused.header("retry-after").is_empty());
        let token = wire.with(&world.berth.token_for(&world.acquire("h", "s").await.unwrap().lease));
        assert_eq!(token.ask("GET", "/v1/events/stream").send().await.unwrap().status(), 200, "another credential has its own");
        open.pop();
        crate::harness::until("a closed stream is given back", async || follow().await.status() == 200).await;
    }
}
