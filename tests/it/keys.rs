//! Keys and organizations: rotation overlaps, revocation is seen everywhere, the last admin key stays, tenants are let go whole.

use std::time::Duration;

use berth::ops;
use serde_json::{Value, json};

use crate::both;
use crate::harness::{BOOTSTRAP, World, until};

async fn make_key(world: &World, body: Value) -> (String, String) {
    let key = world.ask("POST", "/v1/api-keys", body).await.ok(201);
    (key["id"].as_str().unwrap().to_owned(), key["secret"].as_str().unwrap().to_owned())
}

both! {
    async fn keys_are_listed_without_their_secrets(world) {
        for name in ["a", "b", "c"] {
            make_key(&world, json!({ "name": name, "scopes": ["read"] })).await;
        }
        let first = world.ask("GET", "/v1/api-keys?limit=3", Value::Null).await.ok(200);
        let names: Vec<_> = first["items"].as_array().unwrap().iter().map(|k| k["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["c", "b", "a"]);
        assert!(first["items"][0]["secret"].is_null());
        let rest = world.ask("GET", &format!("/v1/api-keys?limit=3&cursor={}", first["next_cursor"].as_str().unwrap()), Value::Null).await.ok(200);
        assert_eq!((rest["items"][0]["name"].as_str(), &rest["next_cursor"]), (Some("bootstrap"), &Value::Null));
    }

    async fn a_rotated_key_works_until_its_overlap_ends(world) {
        let (id, old) = make_key(&world, json!({ "name": "ci", "scopes": ["write"] })).await;
        let new = world.ask("POST", &format!("/v1/api-keys/{id}/rotate"), json!({ "overlap_seconds": 60 })).await.ok(201);
        assert_eq!((new["name"].as_str(), &new["scopes"]), (Some("ci"), &json!(["write"])));
        assert_ne!(new["id"], id.as_str());
        for key in [old.as_str(), new["secret"].as_str().unwrap()] {
            world.ask_as(key, "GET", "/v1/whoami", Value::Null).await.ok(200);
        }
        world.advance(Duration::from_secs(61));
        // Another server has not cached the old key.
        let other = world.another().await;
        assert!(ops::caller::identify(&other, &old).await.is_err());
        assert!(ops::caller::identify(&other, new["secret"].as_str().unwrap()).await.is_ok());
        world.ask("POST", &format!("/v1/api-keys/{id}/rotate"), json!({})).await.refused(404, "not_found");
    }

    async fn a_revoked_key_is_refused_at_once_here_and_soon_elsewhere(world) {
        let (id, secret) = make_key(&world, json!({ "name": "ci", "scopes": ["read"] })).await;
        world.ask_as(&secret, "GET", "/v1/whoami", Value::Null).await.ok(200);
        let other = world.another().await;
        assert!(ops::caller::identify(&other, &secret).await.is_ok());
        world.ask("DELETE", &format!("/v1/api-keys/{id}"), Value::Null).await.ok(204);
        world.ask_as(&secret, "GET", "/v1/whoami", Value::Null).await.refused(401, "unauthorized");
        until("the other server refuses it too", async || ops::caller::identify(&other, &secret).await.is_err()).await;
        world.ask("DELETE", &format!("/v1/api-keys/{id}"), Value::Null).await.ok(204);
    }

    async fn the_last_admin_key_stays(world) {
        let keys = world.ask("GET", "/v1/api-keys", Value::Null).await.ok(200);
        let bootstrap = keys["items"][0]["id"].as_str().unwrap().to_owned();
        world.ask("DELETE", &format!("/v1/api-keys/{bootstrap}"), Value::Null).await.refused(409, "last_admin_key");
        make_key(&world, json!({ "name": "short", "scopes": ["admin"], "expires_at": "2099-01-01T00:00:00Z" })).await;
        world.ask("DELETE", &format!("/v1/api-keys/{bootstrap}"), Value::Null).await.refused(409, "last_admin_key");
        let (_, other) = make_key(&world, json!({ "name": "other", "scopes": ["admin"] })).await;
        world.ask_as(&other, "DELETE", &format!("/v1/api-keys/{bootstrap}"), Value::Null).await.ok(204);
        world.ask_as(BOOTSTRAP, "GET", "/v1/whoami", Value::Null).await.refused(401, "unauthorized");
    }

    async fn no_key_reaches_beyond_its_organization_or_its_scopes(world) {
        let tenant = world.ask("POST", "/v1/organizations", json!({ "name": "acme" })).await.ok(201);
        let foreign = json!({ "name": "boss", "scopes": ["admin"], "organization_id": tenant["id"] });
        let (foreign_id, foreign) = make_key(&world, foreign).await;
        let (own, admin) = make_key(&world, json!({ "name": "admin", "scopes": ["admin"] })).await;
        let (operator, _) = make_key(&world, json!({ "name": "op", "scopes": ["operator"] })).await;
        world.ask_as(&foreign, "DELETE", &format!("/v1/api-keys/{own}"), Value::Null).await.refused(404, "not_found");
        world.ask_as(&admin, "POST", &format!("/v1/api-keys/{foreign_id}/rotate"), json!({})).await.refused(404, "not_found");
        world.ask_as(&admin, "POST", &format!("/v1/api-keys/{operator}/rotate"), json!({})).await.refused(403, "scope_escalation");
        world.ask_as(&admin, "GET", &format!("/v1/api-keys?organization_id={}", tenant["id"].as_str().unwrap()), Value::Null).await
            .refused(403, "forbidden");
        for (method, path) in [("GET", "/v1/organizations"), ("DELETE", &format!("/v1/organizations/{}", tenant["id"].as_str().unwrap()))] {
            world.ask_as(&admin, method, path, Value::Null).await.refused(403, "forbidden");
        }
        let seen = world.ask_as(&foreign, "GET", "/v1/api-keys", Value::Null).await.ok(200);
        assert_eq!(seen["items"].as_array().unwrap().len(), 1);
        // An operator may take a key of a tenant back, but not its last admin key.
        world.ask("DELETE", &format!("/v1/api-keys/{foreign_id}"), Value::Null).await.refused(409, "last_admin_key");
    }

    async fn an_organization_is_let_go_only_when_nothing_of_it_lives(world) {
        let tenant = world.ask("POST", "/v1/organizations", json!({ "name": "acme" })).await.ok(201);
        let path = format!("/v1/organizations/{}", tenant["id"].as_str().unwrap());
        let (_, key) = make_key(&world, json!({ "name": "boss", "scopes": ["admin"], "organization_id": tenant["id"] })).await;
        world.ask_as(&key, "POST", "/v1/environments", json!({ "name": "e", "provider": "memory", "config": {} })).await.ok(201);
        let lease = world.ask_as(&key, "POST", "/v1/leases", json!({ "environment": "e", "holder": "h", "scope": { "s": "1" } })).await.ok(201);
        let lease_path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        let run = json!({ "script": "echo hi" });
        world.ask_with(&key, "POST", &format!("{lease_path}/exec"), &[("berth-generation", "1")], run).await.ok(200);
        world.ask_with(&key, "POST", &format!("{lease_path}/checkpoints"), &[("berth-generation", "1")], json!({})).await.ok(201);
        let refused = world.ask("DELETE", &path, Value::Null).await.refused(409, "in_use");
        assert_eq!((&refused["live_leases"], &refused["unfinished_instances"]), (&json!(1), &json!(1)));
        world.ask_as(&key, "DELETE", &lease_path, Value::Null).await.ok(204);
        world.ask("DELETE", &path, Value::Null).await.ok(204);
        world.ask("DELETE", &path, Value::Null).await.refused(404, "not_found");
        world.ask_as(&key, "GET", "/v1/whoami", Value::Null).await.refused(401, "unauthorized");
        world.ask_as(lease["token"].as_str().unwrap(), "GET", &lease_path, Value::Null).await.refused(401, "invalid_token");
        let left = world.ask("GET", "/v1/organizations", Value::Null).await.ok(200);
        assert_eq!(left["items"].as_array().unwrap().len(), 1);
        assert_eq!(ops::collect::delete_artifacts(&world.berth).await.unwrap(), 1);
        world.ask("POST", "/v1/organizations", json!({ "name": "acme" })).await.ok(201);
        let own = left["items"][0]["id"].as_str().unwrap();
        world.ask("DELETE", &format!("/v1/organizations/{own}"), Value::Null).await.refused(409, "in_use");
    }
}
