//! A walk over pages while others make and take away: what exists throughout is seen exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::both;
use crate::harness::{World, until};

/// What stays throughout.
const STAY: usize = 10;

/// A list, how one of its things is made, and how it is taken away again.
struct List {
    path: &'static str,
    make: fn(&str) -> Value,
    take: bool,
}

const LISTS: [List; 4] = [
    List { path: "/v1/sandboxes", make: |name| json!({ "environment": "default", "scope": { "page": name } }), take: true },
    List { path: "/v1/environments", make: |name| json!({ "name": name, "provider": "memory", "config": {} }), take: true },
    List { path: "/v1/api-keys", make: |name| json!({ "name": name, "scopes": ["read"] }), take: true },
    List { path: "/v1/leases", make: |name| json!({ "environment": "default", "holder": name }), take: false },
];

async fn make(world: &World, list: &List, name: &str) -> String {
    let made = world.ask("POST", list.path, (list.make)(name)).await.ok(201);
    made["id"].as_str().unwrap().to_owned()
}

/// How often each id is seen by a walk of small pages.
async fn walk(world: &World, list: &List) -> HashMap<String, usize> {
    let (mut seen, mut path) = (HashMap::new(), format!("{}?limit=3", list.path));
    loop {
        let page = world.ask("GET", &path, Value::Null).await.ok(200);
        for item in page["items"].as_array().unwrap() {
            *seen.entry(item["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let Some(cursor) = page["next_cursor"].as_str() else { return seen };
        path = format!("{}?limit=3&cursor={cursor}", list.path);
    }
}

both! {
    async fn a_walk_loses_and_repeats_nothing_that_existed_throughout(world) {
        let world = Arc::new(world);
        for list in &LISTS {
            let mut stay = Vec::new();
            let mut go = Vec::new();
            for i in 0..STAY {
                stay.push(make(&world, list, &format!("stays-{i}")).await);
                go.push(make(&world, list, &format!("goes-{i}")).await);
            }
            let (over, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let busy = tokio::spawn({
                let (world, over, changes) = (Arc::clone(&world), Arc::clone(&over), Arc::clone(&changes));
                async move {
                    let mut made = 0;
                    while !over.load(Ordering::Relaxed) && made < 40 {
                        make(&world, list, &format!("comes-{made}")).await;
                        if list.take && let Some(id) = go.pop() {
                            world.ask("DELETE", &format!("{}/{id}", list.path), Value::Null).await;
                        }
                        made += 1;
                        changes.store(made > 2, Ordering::Relaxed);
                    }
                    made
                }
            });
            until("others are at it", async || changes.load(Ordering::Relaxed)).await;
            for _ in 0..2 {
                let seen = walk(&world, list).await;
                for id in &stay {
                    assert_eq!(seen.get(id), Some(&1), "{} shows {id}", list.path);
                }
                assert!(seen.values().all(|times| *times == 1), "{} repeats something", list.path);
            }
            over.store(true, Ordering::Relaxed);
            assert!(busy.await.unwrap() > 2);
        }
    }
}
