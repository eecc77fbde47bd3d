//! Pages of other origins: none may call unless the operator names its origin, and then it sees what it needs.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use tower::ServiceExt;

use crate::harness::{Db, World};

const PAGE: &str = "https://app.example.com";

async fn preflight(routes: &Router, origin: &str) -> HeaderMap {
    let request = Request::builder().method("OPTIONS").uri("/v1/leases").header("origin", origin);
    let request =
        request.header("access-control-request-method", "POST").header("access-control-request-headers", "authorization,berth-generation");
    routes.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().headers().clone()
}

#[tokio::test]
async fn only_named_origins_may_call() {
    let world = World::new(Db::Sqlite).await;
    let closed = berth::http::cors::allow(berth::http::router(world.berth.clone()), &[]);
    assert!(preflight(&closed, PAGE).await.get("access-control-allow-origin").is_none(), "nobody, unless the operator says so");

    let open = berth::http::cors::allow(berth::http::router(world.berth.clone()), &[PAGE.to_owned()]);
    let allowed = preflight(&open, PAGE).await;
    assert_eq!(allowed["access-control-allow-origin"], PAGE);
    let headers = allowed["access-control-allow-headers"].to_str().unwrap();
    assert!(headers.contains("authorization") && headers.contains("berth-generation"), "{headers}");
    assert!(allowed.get("access-control-allow-credentials").is_none(), "a browser's own credentials are never used");
    assert!(preflight(&open, "https://evil.example.com").await.get("access-control-allow-origin").is_none());

    let refused = Request::builder().uri("/v1/leases").header("origin", PAGE).body(Body::empty()).unwrap();
    let refused = open.oneshot(refused).await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["access-control-allow-origin"]),
        (401, &PAGE.parse().unwrap()),
        "a page may read a refusal"
    );
    assert!(refused.headers()["access-control-expose-headers"].to_str().unwrap().contains("berth-generation"));
}
