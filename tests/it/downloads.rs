//! Files are downloaded whole, in part, or not at all when the caller has them; a long poll answers as soon as there is something.

use serde_json::json;

use crate::both;
use crate::harness::client::got;

both! {
    async fn a_file_is_had_in_ranges_and_only_when_it_changed(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        world.put(&lease, "f", "0123456789").await.unwrap();
        let path = format!("/v1/leases/{}/files?path=f", lease.lease.id);
        let whole = wire.get(&path).await;
        assert_eq!((whole.status, whole.bytes.as_slice(), whole.header("accept-ranges")), (200, &b"0123456789"[..], "bytes"));
        let with = async |name: &'static str, value: String| got(wire.ask("GET", &path).header(name, value)).await;
        for (range, bytes, told) in
            [("bytes=2-4", "234", "bytes 2-4/10"), ("bytes=7-", "789", "bytes 7-9/10"), ("bytes=-2", "89", "bytes 8-9/10")]
        {
            let part = with("range", range.to_owned()).await;
            assert_eq!((part.status, part.bytes.as_slice(), part.header("content-range")), (206, bytes.as_bytes(), told));
        }
        let outside = with("range", "bytes=10-".to_owned()).await;
        assert_eq!((outside.status, outside.code()), (416, "range_not_satisfiable"));
        let etag = whole.header("etag").to_owned();
        assert!(!etag.is_empty());
        let known = with("if-none-match", etag.clone()).await;
        assert_eq!((known.status, known.bytes.len(), known.header("etag")), (304, 0, etag.as_str()));
        world.put(&lease, "f", "other bytes").await.unwrap();
        assert_eq!(with("if-none-match", etag).await.bytes, b"other bytes");
    }

    async fn a_long_poll_answers_when_the_command_is_over(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let path = format!("/v1/leases/{}/exec", lease.lease.id);
        let body = json!({ "script": "sleep 3000; echo done", "on_disconnect": "keep", "wait_seconds": 0 });
        let started = wire.post(&path, &[("berth-generation", "1")], &body).await;
        assert_eq!((started.status, &started.json["status"]), (202, &json!("running")));
        let over = wire.get(&format!("{path}s/{}?wait_seconds=20", started.id())).await;
        assert_eq!((&over.json["status"], &over.json["stdout"]), (&json!("exited"), &json!("done\n")));
    }
}
