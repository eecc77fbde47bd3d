//! Every operation of the API description, asked by two organizations, by keys of each scope and by lease tokens.

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use berth::provider::Kind;
use berth::provider::faults::{Fault, Verb};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::both;
use crate::harness::{BOOTSTRAP, World};

/// What a key needs for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Key,
    Read,
    Write,
    Admin,
    Operator,
}

/// Whether a lease token may do it on its own lease or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    May,
    MayNot,
}

/// The rules of the contract, operation by operation. One that is missing here fails the walk.
fn rules(operation: &str) -> (Needs, Token) {
    use Needs::*;
    use Token::*;
    match operation {
        "healthz" | "readyz" | "openapi" | "docs" | "problem_explain" => (Nothing, May),
        "whoami" => (Key, May),
        "lease_get" | "lease_explain" | "lease_capabilities" | "exec_list" | "exec_get" | "file_read" | "file_stat" | "file_list"
        | "sync_out" | "sandbox_get" | "sandbox_explain" | "sandbox_retention" | "checkpoint_list" | "checkpoint_current"
        | "checkpoint_get" | "archive_download" | "events_list" | "events_stream" => (Read, May),
        "lease_list" | "sandbox_list" | "environment_list" | "environment_get" | "instance_list" | "instance_get" | "provider_list"
        | "limit_list" => (Read, MayNot),
        "lease_renew" | "lease_release" | "lease_recover" | "lease_resume" | "lease_restore" | "exec_run" | "exec_stream"
        | "exec_cancel" | "file_write" | "file_remove" | "file_mkdir" | "file_move" | "sync_in" | "checkpoint_capture"
        | "checkpoint_record" | "checkpoint_attach" | "sandbox_rollback" | "archive_upload" => (Write, May),
        "lease_acquire" | "lease_delete" | "lease_release_all" | "lease_renew_many" | "sandbox_ensure" | "sandbox_delete"
        | "sandbox_destroy" | "sandbox_collect" | "checkpoint_delete" | "environment_probe" => (Write, MayNot),
        "environment_create"
        | "environment_update"
        | "environment_delete"
        | "instance_retry_cleanup"
        | "instance_mark_lost"
        | "instance_forget"
        | "api_key_list"
        | "api_key_create"
        | "api_key_rotate"
        | "api_key_revoke"
        | "plugin_register"
        | "plugin_list"
        | "plugin_get"
        | "plugin_delete"
        | "secret_put"
        | "secret_list"
        | "secret_delete" => (Admin, MayNot),
        "organization_list"
        | "organization_create"
        | "organization_delete"
        | "metrics"
        | "background_list"
        | "maintenance_reap"
        | "maintenance_sweep"
        | "maintenance_collect"
        | "maintenance_drain" => (Operator, MayNot),
        other => panic!("{other} is not in the rules of who may do what"),
    }
}

/// One operation, with a request for it that is well formed.
struct Operation {
    id: String,
    method: String,
    path: String,
    body: Option<(String, Vec<u8>)>,
    needs: Needs,
    token: Token,
}

fn operations() -> Vec<Operation> {
    let described: Value = serde_json::from_str(berth::http::openapi::text()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let Some(id) = described["operationId"].as_str() else { continue };
            let mut path = path.clone();
            if described["parameters"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == "path" && p["required"] == true)) {
                path.push_str("?path=f");
            }
            let body = described["requestBody"]["content"].as_object().map(|kinds| {
                let (kind, content) = kinds.iter().next().unwrap();
                let example = &content["example"];
                let bytes = example.as_str().map_or_else(|| example.to_string().into_bytes(), |text| text.as_bytes().to_vec());
                (kind.clone(), if example.is_null() { b"{}".to_vec() } else { bytes })
            });
            let (needs, token) = rules(id);
            found.push(Operation { id: id.to_owned(), method: method.to_uppercase(), path, body, needs, token });
        }
    }
    // A release ends what the others ask about.
    found.sort_by_key(|operation| operation.id == "lease_release");
    assert!(found.len() > 70, "the walk sees the whole API");
    found
}

/// Which things the paths name.
#[derive(Clone)]
struct Names {
    lease: String,
    sandbox: String,
    environment: String,
    instance: String,
    exec: String,
    checkpoint: String,
    key: String,
    plugin: String,
    organization: String,
}

impl Names {
    fn unknown() -> Self {
        let id = || Uuid::now_v7().to_string();
        Self {
            lease: id(),
            sandbox: id(),
            environment: id(),
            instance: id(),
            exec: id(),
            checkpoint: id(),
            key: id(),
            plugin: id(),
            organization: id(),
        }
    }

    fn fill(&self, path: &str) -> String {
        let outer = match path.split('/').nth(2) {
            Some("leases") => &self.lease,
            Some("sandboxes") => &self.sandbox,
            Some("environments") => &self.environment,
            Some("instances") => &self.instance,
            Some("api-keys") => &self.key,
            Some("plugins") => &self.plugin,
            _ => &self.organization,
        };
        path.replace("{id}", outer)
            .replace("{exec_id}", &self.exec)
            .replace("{checkpoint_id}", &self.checkpoint)
            .replace("{code}", "not_found")
            .replace("{name}", "walked")
    }
}

async fn send(world: &World, key: &str, operation: &Operation, names: &Names) -> Response {
    let mut request = Request::builder().method(operation.method.as_str()).uri(names.fill(&operation.path));
    request = request.header("authorization", format!("Bearer {key}")).header("berth-generation", "1");
    let body = operation.body.as_ref().map_or_else(Body::empty, |(_, bytes)| Body::from(bytes.clone()));
    if let Some((kind, _)) = &operation.body {
        request = request.header("content-type", kind);
    }
    berth::http::router(world.berth.clone()).oneshot(request.body(body).unwrap()).await.unwrap()
}

/// The status and, unless it went well, the problem. A stream that begins is not read to its end.
async fn ask(world: &World, key: &str, operation: &Operation, names: &Names) -> (u16, Value) {
    let answer = send(world, key, operation, names).await;
    let status = answer.status().as_u16();
    if status < 400 {
        return (status, Value::Null);
    }
    let mut problem: Value = serde_json::from_slice(&to_bytes(answer.into_body(), usize::MAX).await.unwrap()).unwrap();
    for own in ["request_id", "instance"] {
        problem.as_object_mut().unwrap().remove(own);
    }
    (status, problem)
}

async fn key(world: &World, scope: &str, organization: Option<&str>) -> String {
    let mut wanted = json!({ "name": format!("walk-{scope}"), "scopes": [scope] });
    if let Some(organization) = organization {
        wanted["organization_id"] = json!(organization);
    }
    world.ask("POST", "/v1/api-keys", wanted).await.ok(201)["secret"].as_str().unwrap().to_owned()
}

/// Something of every kind in the first organization, and the token of its lease.
async fn furnish(world: &World) -> (Names, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let wanted = json!({ "environment": "default", "holder": "run-1", "scope": { "walk": "1" } });
    let lease = world.ask("POST", "/v1/leases", wanted).await.ok(201);
    let token = text(&lease["token"]);
    let at = format!("/v1/leases/{}", text(&lease["id"]));
    let exec = world.ask_as(&token, "POST", &format!("{at}/exec"), json!({ "command": "true" })).await.ok(200);
    let checkpoint = world.ask_as(&token, "POST", &format!("{at}/checkpoints"), json!({})).await.ok(201);
    let whoami = world.ask("GET", "/v1/whoami", Value::Null).await.ok(200);
    let worker = crate::harness::worker::Worker::start().await;
    let plugin = world.ask("POST", "/v1/plugins", json!({ "name": "walked", "url": worker.url })).await.ok(201);
    let names = Names {
        lease: text(&lease["id"]),
        sandbox: text(&lease["sandbox_id"]),
        environment: text(&lease["environment_id"]),
        instance: text(&lease["instance_id"]),
        exec: text(&exec["id"]),
        checkpoint: text(&checkpoint["id"]),
        key: text(&whoami["api_key_id"]),
        plugin: text(&plugin["id"]),
        organization: text(&whoami["organization_id"]),
    };
    (names, token)
}

both! {
    async fn what_another_organization_has_is_as_unknown_as_what_nobody_has(world) {
        let (names, _) = furnish(&world).await;
        let other = world.ask("POST", "/v1/organizations", json!({ "name": "other" })).await.ok(201);
        let stranger = key(&world, "admin", other["id"].as_str()).await;
        let unknown = Names::unknown();
        let mut asked = 0;
        for operation in operations().iter().filter(|o| o.path.contains("{id}") && o.needs != Needs::Operator) {
            let (status, problem) = ask(&world, &stranger, operation, &names).await;
            assert_eq!((status, problem["code"].as_str()), (404, Some("not_found")), "{}: {problem}", operation.id);
            assert_eq!((status, problem), ask(&world, &stranger, operation, &unknown).await, "{} tells the two apart", operation.id);
            asked += 1;
        }
        assert!(asked > 45, "{asked} operations name something");
        for list in ["leases", "sandboxes", "environments", "instances", "events"] {
            let page = world.ask_as(&stranger, "GET", &format!("/v1/{list}"), Value::Null).await.ok(200);
            assert!(!page.to_string().contains(&names.lease) && !page.to_string().contains(&names.sandbox), "{list}: {page}");
        }
        let own = json!({ "environment": names.environment, "holder": "x" });
        world.ask_as(&stranger, "POST", "/v1/leases", own).await.refused(404, "not_found");
        let renewed = world.ask_as(&stranger, "POST", "/v1/leases/renew", json!({ "lease_ids": [names.lease] })).await.ok(200);
        assert_eq!(renewed["items"][0]["problem"]["code"], "not_found");
        let still = world.ask("GET", &format!("/v1/leases/{}", names.lease), Value::Null).await.ok(200);
        assert_eq!((still["status"].as_str(), still["generation"].as_i64()), (Some("active"), Some(1)));
    }

    async fn a_key_does_what_its_scope_says_and_is_told_what_it_lacks(world) {
        let (names, _) = furnish(&world).await;
        let (unknown, operations) = (Names::unknown(), operations());
        let (read, write) = (key(&world, "read", None).await, key(&world, "write", None).await);
        let (admin, operator) = (key(&world, "admin", None).await, key(&world, "operator", None).await);
        for operation in &operations {
            let enough: &[&str] = match operation.needs {
                Needs::Nothing | Needs::Key => &["read", "write", "admin", "operator"],
                Needs::Read => &["read", "write", "admin"],
                Needs::Write => &["write", "admin"],
                Needs::Admin => &["admin"],
                Needs::Operator => &["operator"],
            };
            for (scope, key) in [("read", &read), ("write", &write), ("admin", &admin), ("operator", &operator)] {
                // An operator lists, makes and withdraws the keys of every organization.
                if scope == "operator" && operation.id.starts_with("api_key_") {
                    continue;
                }
                if enough.contains(&scope) {
                    let (status, problem) = ask(&world, key, operation, &unknown).await;
                    assert!(!matches!(status, 401 | 403), "{} with {scope}: {problem}", operation.id);
                } else {
                    let (status, problem) = ask(&world, key, operation, &names).await;
                    let lacks = format!("{:?}", operation.needs).to_lowercase();
                    assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{} with {scope}: {problem}", operation.id);
                    assert_eq!(problem["missing_scope"], lacks, "{} with {scope}: {problem}", operation.id);
                }
            }
            let (status, problem) = ask(&world, "nobody-knows-this-key-0123456789abcdef", operation, &names).await;
            if operation.needs == Needs::Nothing {
                assert!(status < 400, "{}: {problem}", operation.id);
            } else {
                assert_eq!((status, problem["code"].as_str()), (401, Some("unauthorized")), "{}", operation.id);
            }
        }
    }

    async fn a_lease_token_does_what_its_lease_needs_and_nothing_else(world) {
        let (names, token) = furnish(&world).await;
        let wanted = json!({ "environment": "default", "holder": "run-2", "scope": { "walk": "2" } });
        let another = world.ask("POST", "/v1/leases", wanted).await.ok(201);
        let mut others = names.clone();
        others.lease = another["id"].as_str().unwrap().to_owned();
        others.sandbox = another["sandbox_id"].as_str().unwrap().to_owned();
        for operation in &operations() {
            if operation.path.contains("{id}") {
                let (status, problem) = ask(&world, &token, operation, &others).await;
                assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{} on another's: {problem}", operation.id);
            }
            let (status, problem) = ask(&world, &token, operation, &names).await;
            match operation.token {
                Token::May => assert!(!matches!(status, 401 | 403), "{}: {problem}", operation.id),
                Token::MayNot => assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{}: {problem}", operation.id),
            }
        }
        let after = world.ask_as(BOOTSTRAP, "GET", &format!("/v1/leases/{}", names.lease), Value::Null).await.ok(200);
        assert_eq!(after["status"], "released", "the token's own release was the last of it");
    }

    async fn every_answer_under_a_lease_says_its_generation_and_epoch(world) {
        let (names, token) = furnish(&world).await;
        // What the provider fails with too.
        world.faults.next(Verb::StatFile, Fault::FailBefore(Kind::Indeterminate));
        let failed = world.ask_as(&token, "GET", &format!("/v1/leases/{}/files/stat?path=f", names.lease), Value::Null).await;
        assert_eq!((failed.header("berth-generation"), failed.header("berth-lease-epoch")), ("1", "1"), "{failed:?}");
        failed.refused(504, "provider_timeout");
        let mut asked = 0;
        for operation in operations().iter().filter(|o| o.path.starts_with("/v1/leases/{id}") && o.token == Token::May) {
            let answer = send(&world, &token, operation, &names).await;
            let said = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()?.parse::<i64>().ok());
            assert!(said("berth-generation").is_some() && said("berth-lease-epoch") == Some(1), "{}: {:?}", operation.id, answer.headers());
            asked += 1;
        }
        assert!(asked > 20, "{asked} operations are under a lease");
    }
}
