//! The wire from outside: requests in, answers out, with the verbs as they are.

use std::future::{IntoFuture, pending};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tower::ServiceExt;

use super::{Http, router, service, with_layers};
use crate::error::{Code, Error};
use crate::http::problem::Problem;
use crate::ops::testing::{KEY, berth};

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// It is this problem, whole.
    #[track_caller]
    fn is(&self, status: u16, code: &str) -> Value {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{body}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(body["status"], status);
        assert_eq!(body["type"], format!("/problems/{code}"));
        assert_eq!(body["request_id"], self.header("x-request-id"));
        assert!(body["instance"].as_str().is_some_and(|path| path.starts_with('/')));
        assert!(!self.header("berth-version").is_empty());
        body
    }
}

async fn send(routes: Router, request: Request<Body>) -> Answered {
    let response = routes.oneshot(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answered { status, headers, body: to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec() }
}

async fn ask(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answered {
    let mut request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {KEY}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(router(berth().await), request.body(body.into()).unwrap()).await
}

async fn post(path: &str, body: &Value) -> Answered {
    ask("POST", path, &[("content-type", "application/json")], body.to_string()).await
}

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"].as_array().into_iter().flatten().filter_map(|error| error["pointer"].as_str()).collect()
}

const LEASE: &str = "/v1/leases/0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e01";

#[tokio::test]
async fn without_a_key_it_is_401_with_the_scheme() {
    for authorization in ["", "Basic eA==", "Bearer ", "Bearer no-such-key"] {
        let request = Request::get("/v1/whoami").header("authorization", authorization).body(Body::empty()).unwrap();
        let answer = send(router(berth().await), request).await;
        answer.is(401, "unauthorized");
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    ask("GET", "/v1/no-such-route", &[], "").await.is(404, "route_not_found");
    let answer = ask("PUT", "/v1/leases", &[], "").await;
    answer.is(405, "method_not_allowed");
    assert!(answer.header("allow").contains("POST"), "{:?}", answer.headers);
    ask("GET", "/v1/leases/not-a-uuid", &[], "").await.is(404, "not_found");
    ask("GET", &format!("{LEASE}/execs/x"), &[], "").await.is(404, "not_found");
}

#[tokio::test]
async fn a_request_id_is_kept_if_it_is_well_formed() {
    let kept = ask("GET", "/healthz", &[("x-request-id", "acceptance-req.1_")], "").await;
    assert_eq!(kept.header("x-request-id"), "acceptance-req.1_");
    for bad in ["has space", "ü", &"x".repeat(129), ""] {
        let replaced = ask("GET", "/healthz", &[("x-request-id", bad)], "").await;
        assert_eq!(replaced.header("x-request-id").len(), 36, "{bad}");
    }
}

#[tokio::test]
async fn bodies_are_json_within_limits() {
    let json = ("content-type", "application/json");
    ask("POST", "/v1/environments", &[json], r#"{"name": "#).await.is(400, "malformed_json");
    ask("POST", "/v1/environments", &[json], format!("{}1{}", "[".repeat(65), "]".repeat(65))).await.is(400, "malformed_json");
    ask("POST", "/v1/environments", &[json], format!("{}1{}", "[".repeat(200), "]".repeat(200))).await.is(400, "malformed_json");
    ask("POST", "/v1/environments", &[("content-type", "text/plain")], "x=1").await.is(415, "unsupported_media_type");
    ask("POST", "/v1/environments", &[], "{}").await.is(415, "unsupported_media_type");
    ask("POST", "/v1/environments", &[json, ("content-encoding", "gzip")], "x").await.is(415, "unsupported_media_type");
    let large = format!("{{\"name\": \"{}\"}}", "x".repeat(1024 * 1024));
    ask("POST", "/v1/environments", &[json], large).await.is(413, "payload_too_large");
    let key = ask("POST", &format!("{LEASE}/renew"), &[json, ("idempotency-key", "a b")], "{}").await.is(422, "invalid_request");
    assert_eq!(pointers(&key), ["Idempotency-Key"]);
}

#[tokio::test]
async fn everything_wrong_is_told_at_once_with_its_place() {
    let body = json!({ "environment": 7, "nmae": 1, "ttl_seconds": 0, "access": "both", "wait_seconds": 301,
        "scope": { "a": 1 }, "restore": { "checkpoint_idd": "x", "checkpoint_id": "no" }, "metadata": [] });
    let problem = post("/v1/leases", &body).await.is(422, "invalid_request");
    let found = pointers(&problem);
    for pointer in [
        "/environment",
        "/nmae",
        "/holder",
        "/ttl_seconds",
        "/access",
        "/wait_seconds",
        "/scope/a",
        "/restore/checkpoint_idd",
        "/restore/checkpoint_id",
        "/metadata",
    ] {
        assert!(found.contains(&pointer), "{pointer} is missing in {found:?}");
    }
    let problem = post("/v1/environments", &json!({ "name": "", "provider": "no-such", "config": {} })).await.is(422, "invalid_request");
    assert_eq!(pointers(&problem), ["/name", "/provider"]);
}

#[tokio::test]
async fn rules_between_fields_are_told_with_the_others() {
    let exec = format!("{LEASE}/exec");
    let both = json!({ "command": "a", "script": "b", "timeout_ms": 0, "env": { "A=B": "" } });
    let problem = post(&exec, &both).await.is(422, "invalid_request");
    assert_eq!(pointers(&problem), ["/timeout_ms", "/script", "/env"]);
    assert_eq!(pointers(&post(&exec, &json!({})).await.is(422, "invalid_request")), ["/command"]);
    let stdin = json!({ "command": "a", "stdin": "*", "stdin_encoding": "base64" });
    assert_eq!(pointers(&post(&exec, &stdin).await.is(422, "invalid_request")), ["/stdin"]);
    let long = json!({ "command": "a", "args": ["x".repeat(70_000), "y".repeat(70_000)] });
    assert_eq!(pointers(&post(&exec, &long).await.is(422, "invalid_request")), ["/command"]);
    let wide = json!({ "environment": "e", "holder": "h", "metadata": { "a": "x".repeat(70_000) } });
    assert_eq!(pointers(&post("/v1/leases", &wide).await.is(422, "invalid_request")), ["/metadata"]);
}

#[tokio::test]
async fn query_parameters_are_checked_like_bodies() {
    let bad = [
        ("/v1/leases?limit=0", "?limit"),
        ("/v1/leases?limit=101", "?limit"),
        ("/v1/leases?limit=x", "?limit"),
        ("/v1/leases?limit=1&limit=2", "?limit"),
        ("/v1/leases?lmit=1", "?lmit"),
        ("/v1/leases?status=active,gone", "?status"),
        ("/v1/leases?scope=nocolon", "?scope"),
        ("/v1/leases?sandbox_id=x", "?sandbox_id"),
        ("/v1/leases?holder=%FF", "?holder"),
    ];
    for (path, pointer) in bad {
        assert_eq!(pointers(&ask("GET", path, &[], "").await.is(422, "invalid_request")), [pointer], "{path}");
    }
    let file = ask("GET", &format!("{LEASE}/files"), &[], "").await.is(422, "invalid_request");
    assert_eq!(pointers(&file), ["?path"]);
}

#[tokio::test]
async fn the_fence_headers_are_numbers_and_agree_with_the_body() {
    let json = ("content-type", "application/json");
    let exec = ask("POST", &format!("{LEASE}/exec"), &[json, ("berth-generation", "one")], "{}").await.is(422, "invalid_request");
    assert_eq!(pointers(&exec), ["Berth-Generation"]);
    let attach = "/v1/sandboxes/0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e02/checkpoints/0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e05/attach";
    let other = ask("POST", attach, &[json, ("berth-generation", "2")], r#"{"generation": 1}"#).await.is(422, "invalid_request");
    assert_eq!(pointers(&other), ["/generation"]);
}

#[tokio::test]
async fn a_panic_is_a_problem_and_says_nothing() {
    async fn panics() -> &'static str {
        panic!("canary")
    }
    let state = Http { berth: berth().await, last_look: service::LastLook::default() };
    let routes = with_layers(Router::new().route("/boom", get(panics))).with_state(state);
    let answer = send(routes, Request::get("/boom").body(Body::empty()).unwrap()).await;
    let body = answer.is(500, "internal");
    assert!(!body.to_string().contains("canary"));
}

#[tokio::test]
async fn every_code_answers_with_its_status_and_says_when_to_come_back() {
    for code in Code::ALL {
        let fail = move || async move { Problem::from(Error::new(*code, "Because.")) };
        let state = Http { berth: berth().await, last_look: service::LastLook::default() };
        let routes = with_layers(Router::new().route("/fail", get(fail))).with_state(state);
        let answer = send(routes, Request::get("/fail").body(Body::empty()).unwrap()).await;
        let body = answer.is(super::catalogue::entry(*code).status, &code.as_str());
        assert_eq!(!answer.header("retry-after").is_empty(), body["retryable"] == true, "{body}");
        if matches!(answer.status, 429 | 503) || code.as_str().ends_with("_in_progress") || *code == Code::LeaseConflict {
            assert_eq!(answer.header("retry-after"), "1", "{body}");
        }
    }
}

#[tokio::test]
async fn the_pages_for_people_work() {
    for path in ["/docs", "/problems/lease_conflict"] {
        let page = ask("GET", path, &[("accept", "text/html")], "").await;
        assert_eq!(page.status, 200);
        assert!(page.header("content-type").starts_with("text/html"));
        let html = String::from_utf8(page.body).unwrap();
        let fetches = ["<script", "=\"http", "url(", "@import"].into_iter().find(|one| html.contains(one));
        assert_eq!(fetches, None, "{path} must work offline");
    }
    let explained = ask("GET", "/problems/lease_conflict", &[("accept", "application/json")], "").await.json();
    assert_eq!((&explained["status"], &explained["retryable"]), (&json!(409), &json!(true)));
    ask("GET", "/problems/nonsense", &[], "").await.is(404, "not_found");
    ask("GET", "/problems/internal", &[("accept", "image/png")], "").await.is(406, "not_acceptable");
}

#[tokio::test]
async fn requests_are_counted_by_template_and_never_by_path() {
    ask("GET", LEASE, &[], "").await;
    let metrics = ask("GET", "/metrics", &[], "").await;
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("# TYPE berth_http_requests_total counter"), "{text}");
    assert!(text.contains(r#"route="/v1/leases/{id}""#) && text.contains("berth_http_request_duration_seconds_bucket"), "{text}");
    assert!(!text.contains("0199c5c8"));
}

#[tokio::test]
async fn the_service_says_how_it_is() {
    assert_eq!(ask("GET", "/healthz", &[], "").await.json(), json!({ "status": "ok" }));
    assert_eq!(ask("GET", "/readyz", &[], "").await.json(), json!({ "status": "ready" }));
    let who = ask("GET", "/v1/whoami", &[], "").await.json();
    assert_eq!(who["credential"], "api_key");
}

/// Collects what would be logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_log_names_the_template_and_holds_nothing_of_the_caller() {
    let log = Log::default();
    let writer = log.clone();
    // For the whole process: a subscriber of one thread misses what other tests' threads have marked as unheard.
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let headers = [("content-type", "application/json"), ("x-request-id", "known-id"), ("x-canary", "canary")];
    ask("POST", &format!("{LEASE}/exec?canary=canary"), &headers, r#"{"script": "canary", "canary": 1}"#).await;
    ask("GET", "/canary", &[], "").await;
    let told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(told.contains("/v1/leases/{id}/exec") && told.contains("known-id") && told.contains("invalid_request"), "{told}");
    assert!(!told.contains("canary") && !told.contains(KEY) && !told.contains("0199c5c8"), "{told}");
}

#[tokio::test]
async fn a_handler_is_dropped_when_its_client_leaves() {
    let (held, dropped) = oneshot::channel::<()>();
    let (started, running) = oneshot::channel::<()>();
    let once = Arc::new(Mutex::new(Some((held, started))));
    let waits = move || async move {
        let (held, started) = once.lock().unwrap().take().unwrap();
        started.send(()).unwrap();
        pending::<()>().await;
        drop(held);
    };
    let state = Http { berth: berth().await, last_look: service::LastLook::default() };
    let routes = with_layers(Router::new().route("/wait", get(waits))).with_state(state);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        running.await.unwrap();
        drop(stream);
        dropped.await
    };
    tokio::select! {
        served = axum::serve(listener, routes).into_future() => panic!("the server ended: {served:?}"),
        held = tokio::time::timeout(Duration::from_secs(20), client) => assert!(held.expect("the handler lived on").is_err()),
    }
}
