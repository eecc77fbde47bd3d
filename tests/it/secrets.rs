//! Secrets: put and never shown, meant by name and version, resolved for a provider's call alone, kept while something needs them.

use berth::error::Code;
use berth::model::secret::Key;
use berth::ops::Settings;
use berth::provider::faults::{Fault, Lie, Verb};
use serde_json::{Value, json};

use crate::both;
use crate::harness::client::rows_of;
use crate::harness::{BOOTSTRAP, Db, World, code, quick, want};

const VALUE: &str = "the-value-of-a-secret-51c9";
const NEXT: &str = "its-next-value-51c9";

async fn put(world: &World, name: &str, value: &str) -> Value {
    let said = world.ask("PUT", &format!("/v1/secrets/{name}"), json!({ "value": value })).await;
    assert!([200, 201].contains(&said.status), "{}", said.body);
    said.body
}

fn labelled(reference: &Value) -> Value {
    json!({ "label": { "secret_ref": reference } })
}

/// An environment whose label is this reference, and an acquire in it.
async fn environment(world: &World, reference: &Value) {
    world.environment("sealed", |wish| wish.config = labelled(reference)).await;
}

fn wish(holder: &str, session: Option<&str>) -> berth::ops::input::Acquire {
    let mut wish = want(holder, session);
    "sealed".clone_into(&mut wish.environment);
    wish
}

async fn nothing_of(world: &World, value: &str) {
    assert!(!rows_of(&world.url).await.contains(value), "a row has it");
    for path in ["/v1/events?limit=100", "/v1/environments", "/v1/instances", "/v1/leases", "/v1/secrets"] {
        let said = world.ask("GET", path, Value::Null).await.ok(200).to_string();
        assert!(!said.contains(value), "{path}: {said}");
    }
}

both! {
    async fn a_secret_is_put_and_listed_and_never_shown(world) {
        let first = world.ask("PUT", "/v1/secrets/registry", json!({ "value": VALUE })).await;
        assert_eq!(first.header("location"), "/v1/secrets/registry");
        assert_eq!(first.ok(201)["version"], 1);
        let second = world.ask("PUT", "/v1/secrets/registry", json!({ "value": NEXT })).await.ok(200);
        assert_eq!((second["version"].as_i64(), second["name"].as_str()), (Some(2), Some("registry")));
        put(&world, "a.b_c-d", VALUE).await;
        let page = world.ask("GET", "/v1/secrets", Value::Null).await.ok(200);
        let names: Vec<_> = page["items"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.b_c-d", "registry"]);
        for value in [VALUE, NEXT] {
            nothing_of(&world, value).await;
        }
        for (name, body, place) in [
            ("UPPER", json!({ "value": "x" }), "name"),
            ("fine", json!({ "value": "" }), "/value"),
            ("fine", json!({}), "/value"),
            ("fine", json!({ "value": "ä".repeat(40_000) }), "/value"),
            ("fine", json!({ "value": "x", "more": 1 }), "/more"),
        ] {
            let told = world.ask("PUT", &format!("/v1/secrets/{name}"), body).await.refused(422, "invalid_request");
            assert_eq!(told["errors"][0]["pointer"], place, "{told}");
        }
        assert_eq!(world.ask("DELETE", "/v1/secrets/registry", Value::Null).await.status, 204);
        world.ask("DELETE", "/v1/secrets/registry", Value::Null).await.refused(404, "not_found");
        let again = world.ask("PUT", "/v1/secrets/registry", json!({ "value": VALUE })).await.ok(201);
        assert_eq!(again["version"], 1);
        assert_ne!(again["id"], second["id"], "it is another secret");
    }

    async fn each_organization_has_its_own(world) {
        put(&world, "shared-name", VALUE).await;
        let other = world.ask("POST", "/v1/organizations", json!({ "name": "other" })).await.ok(201);
        let wanted = json!({ "name": "k", "scopes": ["admin"], "organization_id": other["id"] });
        let key = world.ask("POST", "/v1/api-keys", wanted).await.ok(201)["secret"].as_str().unwrap().to_owned();
        let seen = world.ask_as(&key, "GET", "/v1/secrets", Value::Null).await.ok(200);
        assert_eq!(seen["items"], json!([]));
        world.ask_as(&key, "DELETE", "/v1/secrets/shared-name", Value::Null).await.refused(404, "not_found");
        let config = json!({ "name": "e", "provider": "memory", "config": labelled(&json!({ "name": "shared-name" })) });
        world.ask_as(&key, "POST", "/v1/environments", config).await.refused(422, "secret_missing");
        assert_eq!(world.ask_as(&key, "PUT", "/v1/secrets/shared-name", json!({ "value": NEXT })).await.ok(201)["version"], 1);
        assert_eq!(put(&world, "shared-name", NEXT).await["version"], 2);
        // An organization's secrets go with it.
        world.ask("DELETE", &format!("/v1/organizations/{}", other["id"].as_str().unwrap()), Value::Null).await;
        assert_eq!(world.text("SELECT CAST(count(*) AS TEXT) FROM secret").await, "1");
        assert_eq!(world.text("SELECT CAST(count(*) AS TEXT) FROM secret_version").await, "2");
    }

    async fn a_configuration_refers_where_its_schema_says_string_and_to_what_exists(world) {
        let make = async |config: Value| world.ask("POST", "/v1/environments", json!({ "name": "e", "provider": "memory", "config": config })).await;
        let told = make(labelled(&json!({ "name": "none" }))).await.refused(422, "secret_missing");
        assert_eq!(told["errors"][0]["pointer"], "/config/label");
        put(&world, "some", VALUE).await;
        let told = make(labelled(&json!({ "name": "some", "version": 2 }))).await.refused(422, "secret_missing");
        assert!(told["detail"].as_str().unwrap().contains("version 2"), "{told}");
        for config in [
            json!({ "other": { "secret_ref": { "name": "some" } } }),
            json!({ "label": { "secret_ref": { "name": "some" }, "more": 1 } }),
            json!({ "label": { "secret_ref": "some" } }),
            json!({ "secret_ref": { "name": "some" } }),
        ] {
            make(config).await.refused(422, "config_invalid");
        }
        let environment = make(labelled(&json!({ "name": "some" }))).await.ok(201);
        assert_eq!(environment["config"], labelled(&json!({ "name": "some" })), "the reference is what is stored and shown");
        let patched = json!({ "config": { "label": { "secret_ref": { "name": "gone" } } } });
        world.ask("PATCH", "/v1/environments/e", patched).await.refused(422, "secret_missing");
    }

    async fn a_provider_gets_the_value_and_nobody_else(world) {
        put(&world, "label", VALUE).await;
        environment(&world, &json!({ "name": "label" })).await;
        let (lease, _) = world.acquire_with(wish("h", Some("s"))).await.unwrap();
        assert_eq!(world.memory.label(&world.provider_ref(&lease).await).as_deref(), Some(VALUE));
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        nothing_of(&world, VALUE).await;
    }

    async fn a_new_version_means_a_new_sandbox_unless_the_old_one_was_named(world) {
        put(&world, "label", VALUE).await;
        environment(&world, &json!({ "name": "label" })).await;
        world.environment("pinned", |wish| wish.config = labelled(&json!({ "name": "label", "version": 1 }))).await;
        let mut pinned = wish("h", Some("s"));
        "pinned".clone_into(&mut pinned.environment);
        let (first, _) = world.acquire_with(wish("h", Some("s"))).await.unwrap();
        let (kept, _) = world.acquire_with(pinned.clone()).await.unwrap();
        world.put(&first, "f", "work").await.unwrap();
        for lease in [&first, &kept] {
            world.release(lease).await.unwrap();
        }
        put(&world, "label", NEXT).await;
        let (second, _) = world.acquire_with(wish("h", Some("s"))).await.unwrap();
        let how = second.lease.acquisition.as_ref().unwrap();
        assert_eq!(how.reason.as_deref(), Some("fingerprint_mismatch"));
        assert_eq!(world.memory.label(&world.provider_ref(&second).await).as_deref(), Some(NEXT));
        assert_eq!(world.get(&second, "f").await.unwrap(), "work", "its work came along");
        let (again, _) = world.acquire_with(pinned).await.unwrap();
        assert_eq!(again.lease.instance_id, kept.lease.instance_id);
    }

    async fn what_is_not_over_keeps_its_secret(world) {
        put(&world, "label", VALUE).await;
        environment(&world, &json!({ "name": "label" })).await;
        let (lease, _) = world.acquire_with(wish("h", Some("s"))).await.unwrap();
        let told = world.ask("DELETE", "/v1/secrets/label", Value::Null).await.refused(409, "in_use");
        assert_eq!(told["unfinished_instances"], 1);
        world.release(&lease).await.unwrap();
        world.ask("DELETE", "/v1/secrets/label", Value::Null).await.refused(409, "in_use");
        world.delete(&lease).await.unwrap();
        world.settle().await;
        assert_eq!(world.ask("DELETE", "/v1/secrets/label", Value::Null).await.status, 204);
        let before = world.ledger().await.len();
        assert_eq!(code(world.acquire_with(wish("h", Some("s"))).await), Code::SecretMissing);
        assert_eq!(world.ledger().await.len(), before, "nothing was begun");
        put(&world, "label", NEXT).await;
        world.acquire_with(wish("h", Some("s"))).await.unwrap();
    }

    async fn a_running_sandbox_is_not_given_up_for_one_that_cannot_be_made(world) {
        put(&world, "first", VALUE).await;
        put(&world, "second", VALUE).await;
        environment(&world, &json!({ "name": "first" })).await;
        let (lease, _) = world.acquire_with(wish("h", Some("s"))).await.unwrap();
        world.put(&lease, "f", "work").await.unwrap();
        world.release(&lease).await.unwrap();
        let patch = json!({ "config": labelled(&json!({ "name": "second" })) });
        world.ask("PATCH", "/v1/environments/sealed", patch).await.ok(200);
        assert_eq!(world.ask("DELETE", "/v1/secrets/second", Value::Null).await.status, 204);
        assert_eq!(code(world.acquire_with(wish("h", Some("s"))).await), Code::SecretMissing);
        world.settle().await;
        let row = world.row(lease.lease.instance_id.unwrap()).await;
        assert!(row.status.is_live(), "{:?}", row.status);
    }

    async fn a_provider_that_gives_a_secret_back_is_not_written_down(world) {
        put(&world, "label", VALUE).await;
        environment(&world, &json!({ "name": "label" })).await;
        world.faults.next(Verb::Ensure, Fault::Lie(Lie::Ref(format!("box-of-{VALUE}"))));
        world.acquire_with(wish("h", Some("s"))).await.unwrap();
        world.settle().await;
        nothing_of(&world, VALUE).await;
        world.assert_ledger_is_inventory().await;
    }

    async fn a_server_with_another_key_says_so_and_opens_nothing(world) {
        put(&world, "label", VALUE).await;
        environment(&world, &json!({ "name": "label" })).await;
        for secret_key in [None, Some(Key::of("another key that seals the secrets of tests"))] {
            let mut other = World::new(world.db).await;
            other.berth = world.another_with(Settings { secret_key, ..quick() }).await;
            other.ask("PUT", "/v1/secrets/label", json!({ "value": NEXT })).await.refused(503, "storage_unavailable");
            let wanted = json!({ "environment": "sealed", "holder": "h", "scope": { "session": "s" } });
            let told = other.ask("POST", "/v1/leases", wanted).await.refused(503, "storage_unavailable");
            assert!(told["detail"].as_str().unwrap().contains("BERTH_SECRET_KEY"), "{told}");
            let told = other.ask("GET", "/readyz", Value::Null).await.refused(503, "storage_unavailable");
            assert_eq!(told["failing"], json!(["secret_key"]));
            let page = other.ask("GET", "/v1/secrets", Value::Null).await.ok(200);
            assert_eq!(page["items"][0]["version"], 1);
            // What needs no secret goes on.
            other.ask("POST", "/v1/leases", json!({ "environment": "default", "holder": "h" })).await.ok(201);
        }
        world.ask_as(BOOTSTRAP, "GET", "/readyz", Value::Null).await.ok(200);
        world.acquire_with(wish("h", Some("s"))).await.unwrap();
    }

    async fn the_key_may_be_exchanged_while_nothing_is_sealed_with_it(world) {
        put(&world, "only", VALUE).await;
        let key = Key::of("another key that seals the secrets of tests");
        let mut other = World::new(world.db).await;
        other.berth = world.another_with(Settings { secret_key: Some(key), ..quick() }).await;
        other.ask("PUT", "/v1/secrets/new", json!({ "value": NEXT })).await.refused(503, "storage_unavailable");
        assert_eq!(other.ask("DELETE", "/v1/secrets/only", Value::Null).await.status, 204);
        other.ask("PUT", "/v1/secrets/new", json!({ "value": NEXT })).await.ok(201);
        world.ask("PUT", "/v1/secrets/more", json!({ "value": VALUE })).await.refused(503, "storage_unavailable");
    }
}

#[tokio::test]
async fn the_embedded_database_comes_with_a_key_of_its_own() {
    use std::os::unix::fs::PermissionsExt;

    use crate::harness::server::{KEY, Server, Site};
    let site = Site::new(Db::Sqlite).await;
    let path = site.data().join("secret.key");
    for version in [1, 2] {
        let server = site.serve().await;
        let answer = Server::good(server.ask(reqwest::Method::PUT, "/v1/secrets/s").json(&json!({ "value": VALUE }))).await;
        assert_eq!(answer["version"], version);
        assert!(server.stop().await.success());
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Whoever loses the key has lost the secrets, and is told so.
    std::fs::remove_file(&path).unwrap();
    let server = site.start(&[("BERTH_BOOTSTRAP_KEY", KEY)]).await;
    let (status, told) = Server::send(server.ask(reqwest::Method::GET, "/readyz")).await;
    assert_eq!((status, &told["failing"]), (503, &json!(["secret_key"])));
}

#[tokio::test]
async fn a_shared_database_needs_a_key_that_is_set() {
    use crate::harness::server::{Server, Site};
    let site = Site::new(Db::Postgres).await;
    let server = site.serve().await;
    let (status, told) = Server::send(server.ask(reqwest::Method::PUT, "/v1/secrets/s").json(&json!({ "value": VALUE }))).await;
    assert_eq!((status, told["code"].as_str()), (503, Some("storage_unavailable")));
    assert!(!site.data().join("secret.key").exists());
}
