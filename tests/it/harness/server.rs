//! A real server as a child process: its own data directory and database, spoken to over HTTP, killed and started again.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::client::rows_of;
use super::{Db, drop_database, fresh_postgres};

/// The key of every child server.
pub const KEY: &str = "a-key-of-child-servers-that-is-long-enough-0123456789";
/// How long a server may take to say that it listens, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// What outlives a server: its data directory and its database.
pub struct Site {
    dir: tempfile::TempDir,
    postgres: Option<(String, String, String)>,
}

impl Site {
    pub async fn new(db: Db) -> Self {
        let postgres = if db == Db::Postgres { Some(fresh_postgres().await) } else { None };
        Self { dir: tempfile::tempdir().unwrap(), postgres }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A server that runs until it is told otherwise.
    pub async fn serve(&self) -> Server {
        self.start(&[("BERTH_BOOTSTRAP_KEY", KEY)]).await
    }

    /// A server for somebody who set nothing: it makes its own first key.
    pub async fn serve_as_a_newcomer(&self) -> Server {
        self.start(&[]).await
    }

    /// A server that kills itself, as `kill -9` would, when it comes to this point.
    pub async fn serve_until(&self, crash_at: &str) -> Server {
        self.start(&[("BERTH_BOOTSTRAP_KEY", KEY), ("BERTH_CRASH_AT", crash_at)]).await
    }

    /// A server that logs everything it ever logs to this file.
    pub async fn serve_and_log(&self, log: &Path, more: &[(&str, &str)]) -> Server {
        let log = std::fs::File::create(log).unwrap();
        self.launch(&[more, &[("BERTH_BOOTSTRAP_KEY", KEY), ("BERTH_LOG", "trace")]].concat(), Stdio::from(log)).await
    }

    /// A server with settings of its own.
    pub async fn start(&self, more: &[(&str, &str)]) -> Server {
        self.launch(more, Stdio::inherit()).await
    }

    /// The text of every row of the database.
    pub async fn rows(&self) -> String {
        let embedded = || format!("sqlite:{}", self.data().join("berth.db").display());
        rows_of(&self.postgres.as_ref().map_or_else(embedded, |(url, _, _)| url.clone())).await
    }

    async fn launch(&self, more: &[(&str, &str)], log: Stdio) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.arg("serve").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let settings = [
            ("BERTH_LISTEN", "127.0.0.1:0"),
            ("BERTH_METRICS_LISTEN", "127.0.0.1:0"),
            ("BERTH_PROVIDERS", "local"),
            ("BERTH_REAPER_PERIOD_MS", "200"),
            ("BERTH_LOG", "warn"),
        ];
        command.envs(settings).envs(more.iter().copied()).env("BERTH_DATA_DIR", self.data());
        if let Some((url, _, _)) = &self.postgres {
            command.env("BERTH_DATABASE_URL", url);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = timeout(PATIENCE, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(rest) = line.strip_prefix("Berth listens on ") {
                    return rest.split(". ").next().unwrap().to_owned();
                }
            }
            panic!("the server ended before it listened");
        });
        let url = url.await.expect("the server listens in time");
        // Read on, so that what it says later does not fail.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(25)).build().unwrap();
        Server { child, client, url }
    }

    /// The database that is not embedded, if this site has one.
    pub fn database_url(&self) -> Option<&str> {
        self.postgres.as_ref().map(|(url, _, _)| url.as_str())
    }

    /// Changes rows behind a server's back.
    pub async fn execute(&self, sql: &'static str) {
        if let Some(url) = self.database_url() {
            sqlx::PgConnection::connect(url).await.unwrap().execute(sql).await.unwrap();
        } else {
            let url = format!("sqlite:{}", self.data().join("berth.db").display());
            sqlx::SqliteConnection::connect(&url).await.unwrap().execute(sql).await.unwrap();
        }
    }

    /// What half a minute does to the claims of a server that died: on PostgreSQL others must wait for it, and on SQLite the next
    /// server drops them at its start.
    pub async fn lapse_claims(&self) {
        let Some((url, _, _)) = &self.postgres else { return };
        let mut database = sqlx::PgConnection::connect(url).await.unwrap();
        database.execute("UPDATE claim SET claimed_until = 0").await.unwrap();
    }

    /// The instances that exist: directories of the provider.
    pub fn inventory(&self) -> Vec<String> {
        let mut found = entries(&self.data().join("local/instances"));
        found.sort();
        found
    }

    /// What is half made or half gone at the provider.
    pub fn left_overs(&self) -> Vec<String> {
        let local = self.data().join("local");
        [entries(&local.join("making")), entries(&local.join("trash"))].concat()
    }

    /// Every stored archive.
    pub fn archives(&self) -> Vec<PathBuf> {
        let (mut open, mut found) = (vec![self.data().join("archives")], Vec::new());
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let to = if entry.path().is_dir() { &mut open } else { &mut found };
                to.push(entry.path());
            }
        }
        found
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some((_, server, name)) = self.postgres.take() {
            drop_database(server, name);
        }
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The processes of this machine with this word among their arguments.
pub fn processes(word: &str) -> Vec<u32> {
    let has_word = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    };
    entries(Path::new("/proc")).iter().filter_map(|name| name.parse().ok()).filter(has_word).collect()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// An answer: its status and its body, `null` where that is no JSON.
pub type Answer = (u16, Value);

/// A running server.
pub struct Server {
    child: Child,
    client: Client,
    pub url: String,
}

impl Server {
    pub fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(KEY)
    }

    /// A request inside a lease, fenced by its generation.
    pub fn inside(&self, lease: &Value, method: Method, path: &str) -> RequestBuilder {
        let request = self.ask(method, &format!("/v1/leases/{}{path}", lease["id"].as_str().unwrap()));
        request.header("Berth-Generation", lease["generation"].to_string())
    }

    /// The answer, or nothing if the server died before it gave one.
    pub async fn try_send(request: RequestBuilder) -> Option<Answer> {
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    pub async fn send(request: RequestBuilder) -> Answer {
        Self::try_send(request).await.expect("the server answers")
    }

    /// The body of an answer that must be a good one.
    pub async fn good(request: RequestBuilder) -> Value {
        let (status, body) = Self::send(request).await;
        assert!((200..300).contains(&status), "{status}: {body}");
        body
    }

    pub async fn get(&self, path: &str) -> Value {
        Self::good(self.ask(Method::GET, path)).await
    }

    pub fn acquire(&self, holder: &str, session: &str) -> RequestBuilder {
        self.acquire_for(holder, session, 3600)
    }

    pub fn acquire_for(&self, holder: &str, session: &str, ttl_seconds: u64) -> RequestBuilder {
        let wanted = json!({ "environment": "default", "holder": holder, "scope": { "session": session }, "ttl_seconds": ttl_seconds });
        self.ask(Method::POST, "/v1/leases").json(&wanted)
    }

    pub fn script(&self, lease: &Value, script: &str) -> RequestBuilder {
        self.inside(lease, Method::POST, "/exec").json(&json!({ "script": script }))
    }

    pub fn put(&self, lease: &Value, path: &str, content: &str) -> RequestBuilder {
        self.inside(lease, Method::PUT, &format!("/files?path={path}")).body(content.to_owned())
    }

    /// A file's content; nothing if there is none.
    pub async fn file(&self, lease: &Value, path: &str) -> Option<String> {
        let response = self.inside(lease, Method::GET, &format!("/files?path={path}")).send().await.unwrap();
        match response.status().as_u16() {
            200 => Some(response.text().await.unwrap()),
            404 => None,
            status => panic!("{status}: {}", response.text().await.unwrap()),
        }
    }

    /// Every row of the ledger.
    pub async fn ledger(&self) -> Vec<Value> {
        self.get("/v1/instances?limit=100").await["items"].as_array().unwrap().clone()
    }

    /// Waits until what exists is exactly what the ledger says: a directory for every live row and none besides, nothing half
    /// made or half gone, and no work left over.
    pub async fn at_rest(&self, site: &Site) {
        let is_one_of = |row: &Value, words: &[&str]| words.iter().any(|word| row["status"] == *word);
        let mut seen = String::new();
        let patience = tokio::time::Instant::now() + PATIENCE / 2;
        loop {
            let ledger = self.ledger().await;
            let live = ledger.iter().filter(|row| is_one_of(row, &["running", "stopped"]));
            let mut refs: Vec<&str> = live.filter_map(|row| row["provider_ref"].as_str()).collect();
            refs.sort_unstable();
            let settled = ledger.iter().all(|row| is_one_of(row, &["running", "stopped", "destroyed", "lost"]));
            if settled && refs == site.inventory() && site.left_overs().is_empty() {
                return;
            }
            assert!(tokio::time::Instant::now() < patience, "the ledger is not the inventory: {seen}");
            seen = format!("{ledger:?} against {:?} and {:?}", site.inventory(), site.left_overs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it was not waited for")
    }

    /// `kill -9`, and waits until it is dead.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has killed itself at its crash point.
    pub async fn died(mut self) {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(self.ended().await.signal(), Some(9), "it died at its crash point");
    }

    /// SIGTERM, and how it ended.
    pub async fn stop(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.ended().await
    }

    async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("the server ends in time").unwrap()
    }
}
