//! A plugin's worker: a small HTTP server whose boxes are directories of this machine, and that fails, lies and is started anew on
//! command.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// What a call is answered with instead of the truth.
#[derive(Clone, Debug)]
pub enum Lie {
    /// This result, and nothing is done.
    Result(Value),
    /// This JSON-RPC error, and nothing is done.
    Error(Value),
    /// It is done, and then this result is told.
    After(Value),
    /// This HTTP status, with a place to go to.
    Status(u16),
    /// Nothing for this long.
    Hang(Duration),
    /// It is done only after this long, whether anybody still waits or not, and the truth is told.
    Late(Duration),
    /// A body of this many bytes.
    Huge(usize),
    /// Another request's id.
    WrongId,
    /// The worker dies in the middle of its answer, and is another life when it runs again.
    Die,
}

/// One call as the worker heard it.
#[derive(Clone, Debug)]
pub struct Heard {
    pub method: String,
    pub params: Value,
    pub headers: HeaderMap,
}

struct Held {
    running: bool,
}

struct Inner {
    generation: u32,
    alive: bool,
    version: String,
    methods: BTreeSet<String>,
    driver: Value,
    fencing: bool,
    token: Option<String>,
    boxes: BTreeMap<String, Held>,
    lies: BTreeMap<String, VecDeque<Lie>>,
    heard: Vec<Heard>,
    counter: u32,
    /// The method that is lost, with a new life, once it was asked this often whether it runs.
    fuse: Option<(u32, String)>,
    /// The highest current generation that was heard of each sandbox.
    marks: BTreeMap<String, i64>,
    forgetful: bool,
}

#[derive(Clone)]
struct Shared {
    inner: Arc<Mutex<Inner>>,
    root: Arc<PathBuf>,
}

/// The worker; its server goes with it.
pub struct Worker {
    pub url: String,
    shared: Shared,
    server: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const NO_METHOD: &str = "no such method";
const METHODS: [&str; 7] = [
    "environmentValidateConfig",
    "environmentAcquireLease",
    "environmentResumeLease",
    "environmentReleaseLease",
    "environmentDestroyLease",
    "environmentRealizeWorkspace",
    "environmentExecute",
];

impl Worker {
    pub async fn start() -> Self {
        // As the program does it; another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let inner = Inner {
            generation: 1,
            alive: true,
            version: "1.0.0".to_owned(),
            methods: METHODS.iter().map(|one| (*one).to_owned()).collect(),
            driver: json!({
                "driverKey": "box", "kind": "sandbox_provider", "displayName": "Boxes", "supportsReusableLeases": true,
                "configSchema": {
                    "type": "object", "additionalProperties": false,
                    "properties": {
                        "size": { "type": "integer", "minimum": 1 },
                        "apiKey": { "type": "string", "format": "secret-ref" },
                        "region": { "type": "string" }
                    }
                }
            }),
            fencing: false,
            token: None,
            boxes: BTreeMap::new(),
            lies: BTreeMap::new(),
            heard: Vec::new(),
            counter: 0,
            fuse: None,
            marks: BTreeMap::new(),
            forgetful: false,
        };
        let shared = Shared { inner: Arc::new(Mutex::new(inner)), root: Arc::new(dir.path().to_owned()) };
        let routes = Router::new()
            .route("/healthz", get(healthz))
            .route("/rpc", post(rpc))
            .layer(axum::extract::DefaultBodyLimit::max(16 << 20))
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::task::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, shared, server, _dir: dir }
    }

    fn change<T>(&self, how: impl FnOnce(&mut Inner) -> T) -> T {
        how(&mut self.shared.inner.lock().unwrap())
    }

    /// The next call of a method is answered with this.
    pub fn next(&self, method: &str, lie: Lie) {
        self.change(|inner| inner.lies.entry(method.to_owned()).or_default().push_back(lie));
    }

    /// Another life of the worker; its boxes outlive it.
    pub fn restart(&self) {
        self.change(|inner| inner.generation += 1);
    }

    /// Whether it runs at all.
    pub fn run(&self, alive: bool) {
        self.change(|inner| inner.alive = alive);
    }

    pub fn upgrade(&self, version: &str) {
        self.change(|inner| (inner.version, inner.generation) = (version.to_owned(), inner.generation + 1));
    }

    pub fn without(&self, method: &str) {
        self.change(|inner| {
            inner.methods.remove(method);
            inner.generation += 1;
        });
    }

    pub fn with(&self, method: &str) {
        self.change(|inner| {
            inner.methods.insert(method.to_owned());
            inner.generation += 1;
        });
    }

    /// Without the method, as a new life, from the so-maniest question on whether it runs.
    pub fn without_from(&self, method: &str, look: u32) {
        self.change(|inner| inner.fuse = Some((look, method.to_owned())));
    }

    /// It says that it refuses what is below a sandbox's generation; whether it does is another matter.
    pub fn says_it_fences(&self) {
        self.change(|inner| (inner.fencing, inner.generation) = (true, inner.generation + 1));
    }

    /// Whatever it says, no call is ever below a mark.
    pub fn forget_marks(&self) {
        self.change(|inner| inner.forgetful = true);
    }

    pub fn with_token(&self, token: &str) {
        self.change(|inner| inner.token = Some(token.to_owned()));
    }

    /// The boxes there are, and whether they run.
    pub fn boxes(&self) -> Vec<(String, bool)> {
        self.change(|inner| inner.boxes.iter().map(|(name, one)| (name.clone(), one.running)).collect())
    }

    /// Removes a box behind everybody's back.
    pub fn vanish(&self, name: &str) {
        self.change(|inner| inner.boxes.remove(name));
        std::fs::remove_dir_all(self.shared.root.join(name)).unwrap();
    }

    /// Empties a box behind everybody's back, and what is known of it beside its workspace.
    pub fn empty(&self, name: &str, instance: Uuid) {
        let work = self.shared.root.join(name).join("work");
        std::fs::remove_dir_all(&work).unwrap();
        std::fs::create_dir(&work).unwrap();
        std::fs::remove_dir_all(std::path::Path::new("/tmp").join(format!(".berth-{instance}"))).ok();
    }

    /// Every call of a method.
    pub fn heard(&self, method: &str) -> Vec<Heard> {
        self.change(|inner| inner.heard.iter().filter(|one| one.method == method).cloned().collect())
    }
}

impl Inner {
    /// Raises a sandbox's mark, and says whether a call is below it; an end is never too late.
    fn is_late(&mut self, method: &str, headers: &HeaderMap) -> bool {
        let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| said(name).and_then(|text| text.parse::<i64>().ok());
        let (Some(sandbox), Some(own), Some(current)) =
            (said("berth-sandbox"), number("berth-generation"), number("berth-current-generation"))
        else {
            return false;
        };
        let mark = self.marks.entry(sandbox.to_owned()).or_default();
        *mark = current.max(*mark);
        self.fencing && !self.forgetful && own < *mark && !matches!(method, "environmentDestroyLease" | "environmentReleaseLease")
    }
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let mut inner = shared.inner.lock().unwrap();
    if let Some((left, method)) = inner.fuse.take() {
        if left <= 1 {
            inner.methods.remove(&method);
            inner.generation += 1;
        } else {
            inner.fuse = Some((left - 1, method));
        }
    }
    Json(json!({ "ok": inner.alive, "generation": format!("g-{}", inner.generation) })).into_response()
}

async fn rpc(State(shared): State<Shared>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let (id, method) = (request["id"].clone(), request["method"].as_str().unwrap_or_default().to_owned());
    let params = request["params"].clone();
    let (lie, generation) = {
        let mut inner = shared.inner.lock().unwrap();
        if let Some(token) = &inner.token
            && headers.get("authorization").is_none_or(|sent| sent != format!("Bearer {token}").as_str())
        {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        inner.heard.push(Heard { method: method.clone(), params: params.clone(), headers: headers.clone() });
        if inner.is_late(&method, &headers) {
            let error = json!({ "code": -32_002, "message": "another generation has come" });
            return Json(json!({ "jsonrpc": "2.0", "id": id, "error": error })).into_response();
        }
        let lie = inner.lies.get_mut(&method).and_then(VecDeque::pop_front);
        (lie, format!("g-{}", inner.generation))
    };
    let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let body = match lie {
        Some(Lie::Status(status)) => {
            let status = StatusCode::from_u16(status).unwrap();
            return (status, [("location", "http://127.0.0.1:1/elsewhere")]).into_response();
        }
        Some(Lie::Huge(bytes)) => return "x".repeat(bytes).into_response(),
        Some(Lie::Die) => {
            let mut inner = shared.inner.lock().unwrap();
            (inner.alive, inner.generation) = (false, inner.generation + 1);
            let parts = [Ok(bytes::Bytes::from_static(b"{\"jsonrpc\": ")), Err(std::io::Error::other("dead"))];
            return axum::body::Body::from_stream(futures_util::stream::iter(parts)).into_response();
        }
        Some(Lie::WrongId) => json!({ "jsonrpc": "2.0", "id": "another", "result": {} }),
        Some(Lie::Result(result)) => answer(result),
        Some(Lie::Error(error)) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        Some(Lie::Hang(span)) => {
            tokio::time::sleep(span).await;
            answer(Value::Null)
        }
        Some(Lie::Late(span)) => {
            let acting = tokio::task::spawn(async move {
                tokio::time::sleep(span).await;
                act(&shared, &method, &params).await
            });
            acting
                .await
                .unwrap()
                .map_or_else(|message| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32_002, "message": message } }), answer)
        }
        Some(Lie::After(result)) => {
            act(&shared, &method, &params).await.ok();
            answer(result)
        }
        None => match act(&shared, &method, &params).await {
            Ok(result) => answer(result),
            Err(message) => {
                let code = if message == NO_METHOD { -32_601 } else { -32_002 };
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
            }
        },
    };
    ([("x-plugin-generation", generation)], Json(body)).into_response()
}

async fn act(shared: &Shared, method: &str, params: &Value) -> Result<Value, String> {
    let name = params["providerLeaseId"].as_str().or(params["lease"]["providerLeaseId"].as_str()).unwrap_or_default().to_owned();
    match method {
        "initialize" => {
            let inner = shared.inner.lock().unwrap();
            Ok(json!({
                "ok": true, "generation": format!("g-{}", inner.generation), "supportedMethods": inner.methods, "fencing": inner.fencing,
                "manifest": {
                    "id": "tests.boxes", "apiVersion": 1, "version": inner.version, "displayName": "Boxes of tests", "author": "tests",
                    "capabilities": ["environment.drivers.register"], "environmentDrivers": [inner.driver]
                }
            }))
        }
        "environmentValidateConfig" => Ok(json!({ "ok": params["config"]["size"] != 13, "errors": ["no size 13"] })),
        "environmentAcquireLease" => {
            let mut inner = shared.inner.lock().unwrap();
            inner.counter += 1;
            let name = format!("box-{}-{}", inner.counter, Uuid::now_v7().simple());
            std::fs::create_dir_all(shared.root.join(&name).join("work")).unwrap();
            inner.boxes.insert(name.clone(), Held { running: true });
            let told = json!({ "number": inner.counter, "credentials": params["config"]["apiKey"], "pluginId": "somebody else's" });
            Ok(json!({ "providerLeaseId": name, "metadata": told, "expiresAt": params["requestedExpiresAt"] }))
        }
        "environmentResumeLease" => {
            let mut inner = shared.inner.lock().unwrap();
            let Some(found) = inner.boxes.get_mut(&name) else {
                return Ok(json!({ "providerLeaseId": null, "metadata": { "expired": true } }));
            };
            found.running = true;
            Ok(json!({ "providerLeaseId": name, "metadata": {} }))
        }
        "environmentReleaseLease" | "environmentStopLease" => {
            let mut inner = shared.inner.lock().unwrap();
            inner.boxes.get_mut(&name).ok_or("no such box")?.running = false;
            Ok(json!({ "providerLeaseId": name, "state": "stopped" }))
        }
        "environmentDestroyLease" => {
            shared.inner.lock().unwrap().boxes.remove(&name);
            std::fs::remove_dir_all(shared.root.join(&name)).ok();
            Ok(json!({ "providerLeaseId": name, "state": "destroyed" }))
        }
        "environmentRealizeWorkspace" => Ok(json!({ "cwd": shared.root.join(&name).join("work") })),
        "environmentExecute" => {
            if !shared.inner.lock().unwrap().boxes.get(&name).is_some_and(|one| one.running) {
                return Err("the box does not run".to_owned());
            }
            execute(&shared.root.join(&name), params).await
        }
        _ => Err(NO_METHOD.to_owned()),
    }
}

async fn execute(home: &Path, params: &Value) -> Result<Value, String> {
    let args = params["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let env = params["env"].as_object().into_iter().flatten().filter_map(|(key, value)| Some((key, value.as_str()?)));
    let mut command = Command::new(params["command"].as_str().unwrap_or_default());
    command.args(args).envs(env).current_dir(home).kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let (mut stdin, input) = (child.stdin.take().unwrap(), params["stdin"].as_str().unwrap_or_default().to_owned());
    let feeding = tokio::task::spawn(async move { stdin.write_all(input.as_bytes()).await.ok() });
    let span = Duration::from_millis(params["timeoutMs"].as_u64().unwrap_or(30_000));
    let Ok(output) = tokio::time::timeout(span, child.wait_with_output()).await else {
        return Ok(json!({ "exitCode": null, "timedOut": true, "stdout": "", "stderr": "" }));
    };
    feeding.await.ok();
    let output = output.map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(json!({ "exitCode": output.status.code(), "timedOut": false, "stdout": text(&output.stdout), "stderr": text(&output.stderr) }))
}
