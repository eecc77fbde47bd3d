//! Speaks JSON-RPC over HTTP to one worker: at addresses that were checked once, without redirects, within caps and deadlines.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address;
use super::failure::Failure;
use crate::id;
use crate::provider::{Kind, ProviderError};

/// The most bytes of an answer that is read as free JSON.
const MOST_SAID: usize = 1 << 20;
/// The most bytes of an answer that has a form of its own.
const MOST_ANSWERED: usize = 64 << 20;
/// The most bytes of an answer with everything that was told before it.
const MOST_FOLLOWED: usize = 160 << 20;
/// The most characters of one note.
const MOST_NOTED: usize = 1_000_000;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the question whether a worker runs may take.
const LOOK: Duration = Duration::from_secs(5);
/// The header by which a worker says which of its lives this is.
const GENERATION: &str = "x-plugin-generation";

/// One call.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) method: &'static str,
    pub(super) params: Value,
    pub(super) token: Option<&'a str>,
    /// Which incarnation it is for, and which is the sandbox's.
    pub(super) fence: Option<Fence>,
    pub(super) timeout: Duration,
    /// The same for every attempt at one effect.
    pub(super) idempotency_key: Option<String>,
}

/// What a call carries down, so that a worker can refuse what is late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    pub(super) sandbox: uuid::Uuid,
    pub(super) generation: i64,
    pub(super) current: i64,
}

/// A worker's HTTP side.
#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    base: String,
}

/// A result, and which life of the worker gave it.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) result: T,
    pub(super) generation: Option<String>,
}

/// What every message from a worker has, read without keeping the rest.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    jsonrpc: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Reply<T> {
    #[serde(default)]
    result: T,
}

#[derive(Deserialize)]
struct Refusal {
    error: Fault,
}

#[derive(Deserialize)]
struct Fault {
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Value,
}

/// What a command wrote, told before its answer.
#[derive(Deserialize)]
struct Note {
    params: Written,
}

#[derive(Deserialize)]
struct Written {
    stream: String,
    chunk: String,
}

impl Http {
    /// A client that reaches this URL at its addresses of now, and nothing else.
    pub(super) async fn open(url: &Url, allowed: &[String]) -> Result<Self, address::Refusal> {
        let addresses = address::resolve(url, allowed).await?;
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let client = Client::builder()
            .resolve_to_addrs(host, &addresses)
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT)
            .no_proxy()
            .build()
            .map_err(|_| "no client could be made for it")?;
        Ok(Self { client, base: url.as_str().trim_end_matches('/').to_owned() })
    }

    /// Which life of the worker runs now.
    pub(super) async fn alive(&self, token: Option<&str>) -> Result<String, ProviderError> {
        let asked = bearer(self.client.get(format!("{}/healthz", self.base)), token);
        let late = || ProviderError::new(Kind::Transient, "the plugin's worker did not answer in time");
        let answered = timeout(LOOK, async { read(sent(asked).await?, 64 << 10).await }).await;
        // Nothing was asked of it that could have happened or not.
        let asked_nothing = |error: ProviderError| match error.kind {
            Kind::Indeterminate => ProviderError::new(Kind::Transient, error.message).because(error),
            _ => error,
        };
        let (body, _) = answered.unwrap_or_else(|_| Err(late())).map_err(asked_nothing)?;
        let health: Value = serde_json::from_slice(&body).map_err(|e| broken().because(e))?;
        match (health["ok"].as_bool(), health["generation"].as_str()) {
            (Some(true), Some(generation)) if is_generation(generation) => Ok(generation.to_owned()),
            (Some(false), _) => Err(ProviderError::new(Kind::Transient, "the plugin's worker does not run")),
            _ => Err(broken()),
        }
    }

    /// Calls a method and waits for its answer, which is free JSON.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Answer<Value>, Failure> {
        self.ask(call, MOST_SAID).await
    }

    /// Calls a method whose answer has a form of its own, so that it takes no more room than it is long.
    pub(super) async fn ask_for<T: DeserializeOwned + Default>(&self, call: Call<'_>) -> Result<Answer<T>, Failure> {
        self.ask(call, MOST_ANSWERED).await
    }

    async fn ask<T: DeserializeOwned + Default>(&self, call: Call<'_>, most: usize) -> Result<Answer<T>, Failure> {
        let (id, span) = (id::new().to_string(), call.timeout);
        let request = self.request(&call, &id, "application/json");
        let work = async {
            let (body, generation) = read(sent(request).await?, most).await?;
            Ok(Answer { result: outcome(&body, &head(&body)?, &id)?, generation })
        };
        timeout(span, work).await.unwrap_or_else(|_| Err(late().into()))
    }

    /// Calls a method and hands on each piece of standard output that is told before its answer.
    pub(super) async fn follow<T: DeserializeOwned + Default>(
        &self,
        call: Call<'_>,
        told: &mpsc::Sender<String>,
    ) -> Result<Answer<T>, Failure> {
        let (id, span) = (id::new().to_string(), call.timeout);
        let request = self.request(&call, &id, "application/x-ndjson, application/json");
        let work = async {
            let mut response = sent(request).await?;
            let generation = generation(&response);
            let (mut held, mut seen) = (Vec::new(), 0);
            loop {
                let chunk = response.chunk().await.map_err(|e| lost("the plugin's answer broke off").because(e))?;
                let (over, mut from) = (chunk.is_none(), held.len());
                held.extend_from_slice(&chunk.unwrap_or_default());
                while let Some(line) = line(&mut held, from, over) {
                    (from, seen) = (0, seen + line.len());
                    if line.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    let message = head(&line)?;
                    if message.method.is_none() {
                        return Ok(Answer { result: outcome(&line, &message, &id)?, generation });
                    }
                    if let Some(chunk) = output(&message, &line) {
                        // Whoever left is noticed by those who follow the command.
                        let _ = told.send(chunk).await;
                    }
                }
                if seen + held.len() > MOST_FOLLOWED || held.len() > MOST_ANSWERED {
                    return Err(too_long().into());
                }
                if over {
                    return Err(lost("the plugin's answer broke off").into());
                }
            }
        };
        timeout(span, work).await.unwrap_or_else(|_| Err(late().into()))
    }

    fn request(&self, call: &Call<'_>, id: &str, accept: &'static str) -> RequestBuilder {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": call.method, "params": call.params });
        let mut request = bearer(self.client.post(format!("{}/rpc", self.base)), call.token);
        request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, accept).body(body.to_string());
        if let Some(Fence { sandbox, generation, current }) = call.fence {
            request = request.header("Berth-Sandbox", sandbox.to_string());
            request = request.header("Berth-Generation", generation).header("Berth-Current-Generation", current);
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("X-Idempotency-Key", key);
        }
        request
    }
}

fn bearer(request: RequestBuilder, token: Option<&str>) -> RequestBuilder {
    match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    }
}

/// Sends a request. What surely did not reach the worker's method is told from what perhaps did.
async fn sent(request: RequestBuilder) -> Result<Response, ProviderError> {
    let response = request.send().await.map_err(|e| {
        let (kind, message) = if e.is_connect() || e.is_builder() {
            (Kind::Refused, "the plugin's worker cannot be reached")
        } else {
            (Kind::Indeterminate, "the plugin's answer was lost")
        };
        ProviderError::new(kind, message).because(e)
    })?;
    let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let refused = |message| Err(ProviderError::new(Kind::Refused, message));
    match response.status() {
        StatusCode::OK => Ok(response),
        StatusCode::TOO_MANY_REQUESTS => {
            let wait = Duration::from_secs(retry_after.unwrap_or(2).clamp(1, 300));
            Err(ProviderError::new(Kind::Throttled(wait), "the plugin asks for fewer calls"))
        }
        status if status.is_redirection() => refused("the plugin sends callers elsewhere, where Berth does not go"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => refused("the plugin does not accept Berth's token"),
        status if status.is_client_error() => refused("the plugin's URL takes no calls"),
        _ => Err(lost("the plugin's worker failed")),
    }
}

fn generation(response: &Response) -> Option<String> {
    response.headers().get(GENERATION).and_then(|value| value.to_str().ok()).filter(|one| is_generation(one)).map(str::to_owned)
}

/// Whether a text can name a worker's life.
pub(super) fn is_generation(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

async fn read(mut response: Response, most: usize) -> Result<(Vec<u8>, Option<String>), ProviderError> {
    let generation = generation(&response);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| lost("the plugin's answer broke off").because(e))? {
        body.extend_from_slice(&chunk);
        if body.len() > most {
            return Err(too_long());
        }
    }
    Ok((body, generation))
}

/// The next line, or what is left when there will be no more. Before `from` there is no end of a line.
fn line(held: &mut Vec<u8>, from: usize, over: bool) -> Option<Vec<u8>> {
    let end = held[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at + 1);
    let end = end.or((over && !held.is_empty()).then_some(held.len()))?;
    Some(held.drain(..end).collect())
}

fn head(body: &[u8]) -> Result<Head, ProviderError> {
    serde_json::from_slice(body).map_err(|e| lost("the plugin's answer is no JSON-RPC").because(e))
}

/// What a note says that a command wrote to its standard output; anything else is no note of ours.
fn output(head: &Head, line: &[u8]) -> Option<String> {
    let Note { params: Written { stream, chunk } } =
        head.method.as_ref().filter(|method| *method == "execute.log").and_then(|_| serde_json::from_slice(line).ok())?;
    (stream == "stdout" && !chunk.is_empty() && chunk.chars().count() <= MOST_NOTED).then_some(chunk)
}

/// The result of a response to this very request.
fn outcome<T: DeserializeOwned + Default>(body: &[u8], head: &Head, id: &str) -> Result<T, Failure> {
    if head.id.as_deref() != Some(id) || head.jsonrpc != "2.0" {
        return Err(lost("the plugin answered something else").into());
    }
    let form = |e| lost("the plugin's answer has another form").because(e);
    if head.error.is_none() {
        return Ok(serde_json::from_slice::<Reply<T>>(body).map_err(form)?.result);
    }
    if body.len() > MOST_SAID {
        return Err(too_long().into());
    }
    let Refusal { error: Fault { code, message: text, data } } = serde_json::from_slice(body).map_err(form)?;
    Err(Failure::Said { code, text, data })
}

fn late() -> ProviderError {
    lost("the plugin did not answer in time")
}

fn too_long() -> ProviderError {
    lost("the plugin's answer is too long")
}

fn lost(message: &'static str) -> ProviderError {
    ProviderError::new(Kind::Indeterminate, message)
}

fn broken() -> ProviderError {
    ProviderError::new(Kind::Transient, "the plugin does not speak the protocol")
}
