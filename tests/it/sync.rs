//! Whole trees go in and out as they are, or not at all.

use std::io::{Read, Write};

use berth::ops::view::LeaseView;
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use serde_json::json;

use crate::both;
use crate::harness::client::{Got, Wire, got};

const GENERATION: (&str, &str) = ("berth-generation", "1");

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // Written as it is: the crate itself would refuse a path that leaves.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn names(tar: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(tar);
    let files = archive.entries().unwrap().map(Result::unwrap).filter(|entry| entry.header().entry_type().is_file());
    let mut names: Vec<String> = files.map(|entry| entry.path().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

async fn put(wire: &Wire, lease: &LeaseView, mode: &str, body: Vec<u8>) -> Got {
    let path = format!("/v1/leases/{}/sync/in?mode={mode}", lease.lease.id);
    got(wire.ask("POST", &path).header(GENERATION.0, GENERATION.1).body(body)).await
}

async fn out(wire: &Wire, lease: &LeaseView, format: &str) -> Vec<u8> {
    let got = wire.get(&format!("/v1/leases/{}/sync/out?format={format}", lease.lease.id)).await;
    assert_eq!((got.status, got.header("content-disposition")), (200, "attachment"), "{got:?}");
    got.bytes
}

both! {
    async fn trees_go_in_and_out_in_each_form(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let first = put(&wire, &lease, "merge", tar(&[("a", "1"), ("b", "2")])).await;
        assert_eq!((first.status, first.json["workspace_seq"].clone()), (200, json!(1)), "{first:?}");
        assert_eq!(put(&wire, &lease, "merge", gzip(&tar(&[("b", "3"), ("c", "4")]))).await.status, 200);
        assert_eq!((world.get(&lease, "a").await.unwrap(), world.get(&lease, "b").await.unwrap()), ("1".to_owned(), "3".to_owned()));
        let plain = out(&wire, &lease, "tar").await;
        assert_eq!(names(&plain), ["a", "b", "c"]);
        let mut unzipped = Vec::new();
        flate2::read::GzDecoder::new(&*out(&wire, &lease, "tar.gz").await).read_to_end(&mut unzipped).unwrap();
        assert_eq!(names(&unzipped), ["a", "b", "c"]);
        assert_eq!(names(&zstd::decode_all(&*out(&wire, &lease, "tar.zst").await).unwrap()), ["a", "b", "c"]);
        let zst = zstd::encode_all(&*tar(&[("d", "5")]), 1).unwrap();
        assert_eq!(put(&wire, &lease, "replace", zst).await.status, 200);
        assert_eq!(names(&out(&wire, &lease, "tar").await), ["d"]);
    }

    async fn a_directory_goes_in_and_out_alone(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        world.put(&lease, "kept", "1").await.unwrap();
        let at = |verb: &str, path: &str| format!("/v1/leases/{}/sync/{verb}?path={path}", lease.lease.id);
        let sent = |path: String, body: Vec<u8>| got(wire.ask("POST", &path).header(GENERATION.0, GENERATION.1).body(body));
        assert_eq!(sent(at("in", "a/b"), tar(&[("x", "2"), ("y", "3")])).await.status, 200);
        assert_eq!(sent(at("in", "a/b") + "&mode=replace", tar(&[("z", "4")])).await.status, 200);
        assert_eq!(names(&wire.get(&at("out", "a")).await.bytes), ["b/z"]);
        assert_eq!(names(&wire.get(&at("out", ".")).await.bytes), ["a/b/z", "kept"]);
        for (path, status, code) in [("kept", 409, "not_a_directory"), ("none", 404, "file_not_found"), ("../up", 400, "invalid_path")] {
            let refused = wire.get(&at("out", path)).await;
            assert_eq!((refused.status, refused.json["code"].clone()), (status, json!(code)), "{path}: {refused:?}");
        }
        for (path, status, code) in [("kept", 409, "file_exists"), ("../up", 400, "invalid_path")] {
            let refused = sent(at("in", path), tar(&[("x", "5")])).await;
            assert_eq!((refused.status, refused.json["code"].clone()), (status, json!(code)), "{path}: {refused:?}");
        }
    }

    async fn what_is_refused_changes_nothing(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        world.put(&lease, "kept", "1").await.unwrap();
        let whole = tar(&[("new", "2"), ("more", "3")]);
        let cut = whole[..700].to_vec();
        let mut torn = gzip(&whole);
        torn.truncate(torn.len() / 2);
        for mode in ["merge", "replace"] {
            for (body, code) in [
                (tar(&[("new", "2"), ("../out", "3")]), "archive_unsafe"),
                (cut.clone(), "archive_invalid"),
                (b"no tar at all, only text".repeat(60), "archive_invalid"),
                (torn.clone(), "archive_invalid"),
                (gzip(&tar(&[("new", &"\0".repeat(8 << 20))])), "archive_limit_exceeded"),
            ] {
                let refused = put(&wire, &lease, mode, body).await;
                assert_eq!(refused.code(), code, "{mode}: {refused:?}");
                assert_eq!(names(&out(&wire, &lease, "tar").await), ["kept"]);
            }
        }
    }

    async fn a_tree_is_admitted_like_every_write(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let path = format!("/v1/leases/{}/sync/in", lease.lease.id);
        assert_eq!(got(wire.ask("POST", &path).body(tar(&[]))).await.code(), "generation_required");
        world.faults.next(Verb::WriteTree, Fault::FailAfter(Kind::Indeterminate));
        assert_eq!(put(&wire, &lease, "merge", tar(&[("a", "1")])).await.status, 504);
        assert!(world.sandbox(&lease).await.is_dirty());
        let kinds = world.text("SELECT string_agg(kind || ' ' || status, ',') FROM operation").await;
        assert_eq!(kinds, "sync_in unknown");
    }

    async fn the_nine_are_told(world) {
        let wire = world.serve().await;
        let lease = world.acquire("h", "s").await.unwrap();
        let told = wire.get(&format!("/v1/leases/{}/capabilities", lease.lease.id)).await;
        let items = told.json["items"].as_array().unwrap();
        assert_eq!(items.len(), 9);
        let websocket = items.iter().find(|item| item["key"] == "runner_websocket_ingress").unwrap();
        assert_eq!((&websocket["granted"], websocket["reason"].is_string()), (&json!(false), true));
    }
}
