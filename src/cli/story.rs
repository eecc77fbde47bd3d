//! The story of the demo: work, loss and recovery, each step done over HTTP and then checked.

use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::app::Result;
use crate::id;
use crate::provider::{Observation, Provider};

const NOTE: &str = "remember me\n";
/// How often a pending answer is looked at again before the demo gives up.
const LOOKS: usize = 120;

/// Tells it; stops at the first step that does not hold.
pub async fn tell(url: &str, key: &str, provider: &dyn Provider, config: &Value) -> Result<()> {
    let mut teller = Teller::new(url, key)?;
    let wanted = json!({ "name": format!("demo-{}", id::new()), "provider": provider.traits().kind, "config": config });
    let environment = teller.good(teller.ask(Method::POST, "/v1/environments").json(&wanted)).await?;
    teller.environment = text(&environment["id"]).to_owned();
    let scope = json!({ "session": format!("demo-{}", id::new()) });

    let first = teller.acquire("run-1", &scope).await?;
    holds("the lease is active", first["status"] == "active", &first)?;
    holds("the sandbox is new", first["acquisition"]["outcome"] == "created" && first["generation"] == 1, &first)?;
    done("run-1 acquires a sandbox", &format!("workspace {}", text(&first["workspace"]["path"])));

    let ran = teller.script(&first, "echo \"hello from $(uname -s)\"; exit 0").await?;
    holds("the command ran", ran["exit_code"] == 0 && text(&ran["stdout"]).starts_with("hello from"), &ran)?;
    done("runs a command in it", text(&ran["stdout"]).trim());

    teller.put(&first, "notes.txt", NOTE).await?;
    let read = teller.script(&first, "cat notes.txt").await?;
    holds("the command sees the file", read["stdout"] == NOTE, &read)?;
    done("puts a file", "notes.txt, read back by a command");

    let checkpoint = teller.write(&first, Method::POST, "/checkpoints").json(&json!({ "kind": "portable_workspace" }));
    let checkpoint = teller.settled(checkpoint, "/v1/sandboxes", |c| c["attached_at"].is_string()).await?;
    holds("the checkpoint is current", checkpoint["current"] == true, &checkpoint)?;
    done("captures a checkpoint", text(&checkpoint["workspace_revision"]));

    let released = teller.release(&first, &json!({ "outcome": "succeeded" })).await?;
    holds("the lease is released", released["status"] == "released", &released)?;
    done("releases the lease", "the sandbox is stopped and kept");

    let second = teller.acquire("run-2", &scope).await?;
    holds("the same sandbox is resumed", second["acquisition"]["outcome"] == "resumed", &second)?;
    holds("it is the same instance", second["instance_id"] == first["instance_id"], &second)?;
    let found = teller.file(&second, "notes.txt").await?;
    holds("run-2 finds run-1's file", found == NOTE, &json!(found))?;
    done("run-2 acquires it again", "the same instance, with run-1's file");

    let instance = teller.get(&format!("/v1/instances/{}", text(&second["instance_id"]))).await?;
    provider.destroy(text(&instance["provider_ref"])).await.map_err(|error| error.to_string())?;
    done("somebody destroys the sandbox", "behind Berth's back");

    let lost = teller.refused(teller.write(&second, Method::POST, "/exec").json(&json!({ "command": "true" }))).await?;
    holds("the next command is told", lost["code"] == "instance_lost", &lost)?;
    holds("and told what to do", lost["allowed_actions"].as_array().is_some_and(|a| a.contains(&json!("recover"))), &lost)?;
    done("the next command is refused", "instance_lost, which allows: recover");

    let recovered = teller.write(&second, Method::POST, "/recover").json(&json!({}));
    let recovered = teller.settled(recovered, "/v1/leases", |lease| lease["status"] == "active").await?;
    let from = &recovered["acquisition"]["restored_from"];
    holds("the lease is the same, one generation on", recovered["id"] == second["id"] && recovered["generation"] == 2, &recovered)?;
    holds("the workspace was restored from the checkpoint", from["checkpoint_id"] == checkpoint["id"], &recovered)?;
    let read = teller.script(&recovered, "cat notes.txt").await?;
    holds("the file is back", read["stdout"] == NOTE, &read)?;
    done("run-2 recovers", &format!("restored and verified: {}, {} entries", text(&from["verification"]), from["entries"]));

    let end = teller.release(&recovered, &json!({ "outcome": "succeeded", "disposition": "destroy" })).await?;
    holds("the lease is released", end["status"] == "released", &end)?;
    done("releases and destroys", "the provider confirmed it");

    let ledger = teller.get(&format!("/v1/instances?sandbox_id={}", text(&first["sandbox_id"]))).await?;
    let rows = ledger["items"].as_array().cloned().unwrap_or_default();
    holds("the ledger knows both instances", rows.len() == 2, &ledger)?;
    holds("neither of them lives", rows.iter().all(|row| row["status"] == "destroyed" || row["status"] == "lost"), &ledger)?;
    let binding = provider.binding().await.map_err(|error| error.to_string())?;
    for row in &rows {
        let seen = provider.observe(&binding, text(&row["provider_ref"])).await;
        holds("the provider has nothing of them", seen == Observation::Absent, &ledger)?;
    }
    done("nothing is left", "one instance lost, one destroyed, none alive");
    Ok(())
}

fn done(what: &str, detail: &str) {
    println!("  {what:<32} {detail}");
}

fn holds(what: &str, so: bool, seen: &Value) -> Result<()> {
    if so { Ok(()) } else { Err(format!("this does not hold: {what}; seen: {seen}")) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Who speaks HTTP for the story.
struct Teller {
    client: Client,
    url: String,
    key: String,
    environment: String,
}

impl Teller {
    fn new(url: &str, key: &str) -> Result<Self> {
        let client = Client::builder().timeout(Duration::from_secs(150)).no_proxy().build().map_err(|error| error.to_string())?;
        Ok(Self { client, url: url.to_owned(), key: key.to_owned(), environment: String::new() })
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    /// A write inside a lease, fenced by its generation.
    fn write(&self, lease: &Value, method: Method, path: &str) -> RequestBuilder {
        let request = self.ask(method, &format!("/v1/leases/{}{path}", text(&lease["id"])));
        request.header("Berth-Generation", lease["generation"].to_string())
    }

    async fn answer(&self, request: RequestBuilder) -> Result<(u16, Value)> {
        let response = request.send().await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(|error| error.to_string())?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    async fn good(&self, request: RequestBuilder) -> Result<Value> {
        match self.answer(request).await? {
            (200..300, body) => Ok(body),
            (status, body) => Err(format!("refused with {status}: {body}")),
        }
    }

    async fn refused(&self, request: RequestBuilder) -> Result<Value> {
        match self.answer(request).await? {
            (400.., body) => Ok(body),
            (status, body) => Err(format!("should have been refused, but was answered {status}: {body}")),
        }
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.good(self.ask(Method::GET, path)).await
    }

    /// The answer once it is what was waited for: a 202 is looked at again under its id.
    async fn settled(&self, request: RequestBuilder, list: &str, is_settled: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut seen = self.good(request).await?;
        for _ in 0..LOOKS {
            if is_settled(&seen) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
            let path = match list {
                "/v1/sandboxes" => format!("{list}/{}/checkpoints/{}", text(&seen["sandbox_id"]), text(&seen["id"])),
                _ => format!("{list}/{}", text(&seen["id"])),
            };
            seen = self.get(&path).await?;
        }
        Ok(seen)
    }

    async fn acquire(&self, holder: &str, scope: &Value) -> Result<Value> {
        let wanted = json!({ "environment": self.environment, "holder": holder, "scope": scope, "policy": "reuse_by_environment" });
        let request = self.ask(Method::POST, "/v1/leases").json(&wanted);
        self.settled(request, "/v1/leases", |lease| lease["status"] != "pending").await
    }

    async fn release(&self, lease: &Value, how: &Value) -> Result<Value> {
        let request = self.ask(Method::POST, &format!("/v1/leases/{}/release", text(&lease["id"]))).json(how);
        self.settled(request, "/v1/leases", |lease| lease["status"] != "pending_cleanup" && lease["status"] != "active").await
    }

    async fn script(&self, lease: &Value, script: &str) -> Result<Value> {
        self.good(self.write(lease, Method::POST, "/exec").json(&json!({ "script": script }))).await
    }

    async fn put(&self, lease: &Value, path: &str, content: &str) -> Result<Value> {
        self.good(self.write(lease, Method::PUT, &format!("/files?path={path}")).body(content.to_owned())).await
    }

    async fn file(&self, lease: &Value, path: &str) -> Result<String> {
        let request = self.ask(Method::GET, &format!("/v1/leases/{}/files?path={path}", text(&lease["id"])));
        let response = request.send().await.map_err(|error| error.to_string())?;
        response.text().await.map_err(|error| error.to_string())
    }
}
