//! The world a test lives in: a database of its own, a provider whose objects outlive the server, and a clock that can be moved.

pub mod client;
mod wire;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use berth::archive::blob::Blobs;
use berth::background;
use berth::error::{Error, Result};
use berth::model::checkpoint::Checkpoint;
use berth::model::environment::CheckpointPolicy;
use berth::model::instance::{Instance, Status as InstanceStatus};
use berth::model::key::{ApiKey, Scope};
use berth::model::lease::{Access, OnSameHolder};
use berth::ops::input::{Acquire, Capture, Carried, Exec, NewEnvironment, ReleaseRequest, Renew, Waiting};
use berth::ops::view::{Answered, ExecView, LeaseView, SandboxView};
use berth::ops::{self, Berth, Caller, Credential, Settings};
use berth::provider::Provider;
use berth::provider::faults::{Faults, Verb};
use berth::provider::memory::Memory;
use berth::provider::registry::Registry;
use berth::store::Store;
use serde_json::json;
use sqlx::{Connection, Executor};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub mod server;
pub mod worker;
pub use wire::{BOOTSTRAP, Said};

/// Which database a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Db {
    Sqlite,
    Postgres,
}

/// Makes one test of the same story on each database.
#[macro_export]
macro_rules! both {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident) $body:block)*) => { $(
        mod $name {
            #[allow(clippy::allow_attributes, unused_imports, reason = "not every story needs all of it")]
            use super::*;
            async fn story($world: $crate::harness::World) $body
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() { story($crate::harness::World::new($crate::harness::Db::Sqlite).await).await }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() { story($crate::harness::World::new($crate::harness::Db::Postgres).await).await }
        }
    )* };
}

/// One server on a world of its own.
pub struct World {
    pub db: Db,
    pub url: String,
    pub memory: Memory,
    pub faults: Faults,
    pub berth: Arc<Berth>,
    pub caller: Caller,
    dir: tempfile::TempDir,
    drop_database: Option<(String, String)>,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A database of its own on the test server, and how to drop it.
pub async fn fresh_postgres() -> (String, String, String) {
    let server = std::env::var("BERTH_TEST_POSTGRES").expect("BERTH_TEST_POSTGRES names a PostgreSQL server, as tests/run.sh sets it");
    let name = format!("berth_test_{}_{}", std::process::id(), COUNTER.fetch_add(1, Ordering::SeqCst));
    let mut admin = sqlx::PgConnection::connect(&format!("{server}/postgres")).await.expect("the test server answers");
    admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("a database");
    (format!("{server}/{name}"), server, name)
}

impl World {
    pub async fn new(db: Db) -> Self {
        Self::with(db, quick()).await
    }

    pub async fn with(db: Db, settings: Settings) -> Self {
        let memory = Memory::new();
        Self::over(db, settings, memory.clone(), Arc::new(memory)).await
    }

    /// On a provider of its own: `memory`, or something that wraps it.
    pub async fn over(db: Db, settings: Settings, memory: Memory, provider: Arc<dyn Provider>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (url, drop_database) = match db {
            Db::Sqlite => (format!("sqlite:{}", dir.path().join("berth.db").display()), None),
            Db::Postgres => {
                let (url, server, name) = fresh_postgres().await;
                (url, Some((server, name)))
            }
        };
        Self::at((db, url), drop_database, settings, memory, provider, dir).await
    }

    /// On a PostgreSQL that the server reaches by another way than the test.
    pub async fn reached_by(way: impl AsyncFnOnce(&str) -> String, settings: Settings) -> Self {
        let (url, server, name) = fresh_postgres().await;
        let (url, memory) = (way(&url).await, Memory::new());
        let provider = Arc::new(memory.clone());
        Self::at((Db::Postgres, url), Some((server, name)), settings, memory, provider, tempfile::tempdir().unwrap()).await
    }

    async fn at(
        (db, url): (Db, String),
        drop_database: Option<(String, String)>,
        settings: Settings,
        memory: Memory,
        provider: Arc<dyn Provider>,
        dir: tempfile::TempDir,
    ) -> Self {
        let faults = Faults::new(provider);
        let berth = open(&url, dir.path(), &faults, settings).await;
        ops::boot::first_start(&berth, Some("a-bootstrap-key-of-the-tests-0123456789")).await.unwrap();
        let caller = admin(&berth).await;
        Self { db, url, memory, faults, berth, caller, dir, drop_database }
    }

    /// Another server on the same database, as after a crash of the first, or beside it.
    pub async fn another(&self) -> Arc<Berth> {
        self.another_with(self.berth.settings.clone()).await
    }

    /// Another server with settings of its own.
    pub async fn another_with(&self, settings: Settings) -> Arc<Berth> {
        let berth = open(&self.url, self.dir.path(), &self.faults, settings).await;
        berth.store.offset().advance(Duration::from_millis(u64::try_from(self.berth.store.offset().get()).unwrap()));
        berth
    }

    /// The servers' data directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn advance(&self, by: Duration) {
        self.berth.store.offset().advance(by);
        self.memory.advance(by);
    }

    /// Runs passes until nothing is due and nothing is under way.
    pub async fn settle(&self) {
        settle(&self.berth).await;
    }

    pub fn start_background(&self) {
        background::start(&self.berth);
    }

    /// Another environment of the provider, with everything the default but what the change says.
    pub async fn environment(&self, name: &str, change: impl FnOnce(&mut NewEnvironment)) {
        let mut input = NewEnvironment {
            name: name.to_owned(),
            provider: "memory".to_owned(),
            config: json!({}),
            policy: None,
            ttl_seconds: None,
            max_ttl_seconds: None,
            idle_timeout_seconds: None,
            on_idle: None,
            retain_seconds: None,
            checkpoint_policy: CheckpointPolicy::default(),
            workspace_path: None,
            max_live_instances: None,
            metadata: json!({}),
        };
        change(&mut input);
        ops::environment::create(&self.berth, &self.caller, input).await.unwrap();
    }

    pub async fn acquire(&self, holder: &str, session: &str) -> Result<LeaseView> {
        self.acquire_with(want(holder, Some(session))).await.map(|(view, _)| view)
    }

    pub async fn acquire_with(&self, input: Acquire) -> Result<(LeaseView, Answered)> {
        ops::acquire::acquire(&self.berth, &self.caller, input).await
    }

    pub async fn exec(&self, lease: &LeaseView, argv: &[&str]) -> Result<ExecView> {
        ops::exec::run(&self.berth, &self.caller, lease.lease.id, command(lease.lease.generation, argv)).await.map(|(view, _)| view)
    }

    /// A command that runs while the test goes on.
    pub fn running(&self, lease: &LeaseView, argv: &[&str]) -> JoinHandle<Result<ExecView>> {
        let (berth, caller, id) = (self.berth.clone(), self.caller.clone(), lease.lease.id);
        let input = command(lease.lease.generation, argv);
        tokio::task::spawn(async move { ops::exec::run(&berth, &caller, id, input).await.map(|(view, _)| view) })
    }

    /// A command that runs, and has reached the provider.
    pub async fn started(&self, lease: &LeaseView, argv: &[&str]) -> JoinHandle<Result<ExecView>> {
        let before = self.memory.calls(Verb::Exec);
        let running = self.running(lease, argv);
        until("the command runs", async || self.memory.calls(Verb::Exec) > before).await;
        running
    }

    pub async fn put(&self, lease: &LeaseView, path: &str, content: &str) -> Result<()> {
        let body = Box::pin(std::io::Cursor::new(content.as_bytes().to_vec()));
        ops::files::write(&self.berth, &self.caller, lease.lease.id, carried(lease), path, body, None, true).await.map(|_| ())
    }

    pub async fn get(&self, lease: &LeaseView, path: &str) -> Result<String> {
        use tokio::io::AsyncReadExt;
        let mut file = ops::files::read(&self.berth, &self.caller, lease.lease.id, path).await?;
        let mut text = String::new();
        file.body.read_to_string(&mut text).await.unwrap();
        Ok(text)
    }

    pub async fn capture(&self, lease: &LeaseView) -> Result<Checkpoint> {
        let input = Capture {
            carried: carried(lease),
            kind: Some(berth::model::checkpoint::Kind::PortableWorkspace),
            attach: true,
            source_turn_id: None,
            source_tool_call_id: None,
            waiting: Waiting::default(),
        };
        ops::capture::capture(&self.berth, &self.caller, lease.lease.id, input).await.map(|(checkpoint, _)| checkpoint)
    }

    pub async fn release(&self, lease: &LeaseView) -> Result<LeaseView> {
        self.release_with(lease, ReleaseRequest::default()).await.map(|(view, _)| view)
    }

    pub async fn release_with(&self, lease: &LeaseView, input: ReleaseRequest) -> Result<(LeaseView, Answered)> {
        ops::release::release(&self.berth, &self.caller, lease.lease.id, input).await
    }

    pub async fn delete(&self, lease: &LeaseView) -> Result<Answered> {
        ops::release::delete(&self.berth, &self.caller, lease.lease.id, false).await.map(|(_, answered)| answered)
    }

    pub async fn renew(&self, lease: &LeaseView, ttl_seconds: i64) -> Result<LeaseView> {
        ops::renew::renew(&self.berth, &self.caller, lease.lease.id, Renew { ttl_seconds: Some(ttl_seconds), exact: false }).await
    }

    /// Every checkpoint of the lease's sandbox, newest first.
    pub async fn checkpoints(&self, lease: &LeaseView) -> Vec<Checkpoint> {
        let query = ops::input::ListQuery { limit: 100, ..Default::default() };
        ops::checkpoint::list(&self.berth, &self.caller, lease.lease.sandbox_id, query).await.unwrap().items
    }

    /// The row of an instance.
    pub async fn row(&self, id: Uuid) -> Instance {
        self.berth.store.read().await.unwrap().instance_by_id(id).await.unwrap().expect("a row of the ledger")
    }

    pub async fn lease(&self, lease: &LeaseView) -> LeaseView {
        ops::lease::get(&self.berth, &self.caller, lease.lease.id, Duration::ZERO).await.unwrap()
    }

    pub async fn sandbox(&self, lease: &LeaseView) -> SandboxView {
        ops::sandbox::get(&self.berth, &self.caller, lease.lease.sandbox_id, Duration::ZERO).await.unwrap()
    }

    /// The provider's name of the lease's instance.
    pub async fn provider_ref(&self, lease: &LeaseView) -> String {
        self.row(lease.lease.instance_id.expect("an instance")).await.provider_ref.expect("an instance with a ref")
    }

    /// Every row of the ledger.
    pub async fn ledger(&self) -> Vec<Instance> {
        let query = ops::input::ListQuery { limit: 100, ..Default::default() };
        ops::instance::list(&self.berth, &self.caller, query).await.unwrap().items
    }

    /// What exists is what the ledger says: a live row for every object, and an object for every running or stopped row.
    pub async fn assert_ledger_is_inventory(&self) {
        let mut inventory: Vec<String> = self.memory.inventory().into_iter().map(|(provider_ref, _, _)| provider_ref).collect();
        let ledger = self.ledger().await;
        let mut live: Vec<String> = ledger.iter().filter(|i| i.status.is_live()).filter_map(|i| i.provider_ref.clone()).collect();
        inventory.sort();
        live.sort();
        assert_eq!(inventory, live, "inventory and ledger differ");
        assert!(ledger.iter().all(|i| i.status != InstanceStatus::PendingCleanup), "a teardown is left");
    }
}

/// Runs a server's passes until nothing is due and nothing is under way.
pub async fn settle(berth: &Arc<Berth>) {
    for _ in 0..400 {
        // Nothing may end between the look and the question whether anything runs, or what it left due would be missed.
        let quiet = berth.work.under_way() == 0;
        let driven = ops::drive::pass(berth).await.unwrap();
        let reaped = ops::reap::pass(berth).await.unwrap();
        if quiet && driven == ops::drive::DriveReport::default() && reaped == ops::reap::ReapReport::default() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the world does not come to rest");
}

/// Looks again and again, for eight seconds at most, until it is so.
pub async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(8);
    while !so().await {
        assert!(tokio::time::Instant::now() < patience, "in vain: until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some((server, name)) = self.drop_database.take() {
            drop_database(server, name);
        }
    }
}

/// Drops a database of [`fresh_postgres`], whoever is still connected.
pub fn drop_database(server: String, name: String) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            if let Ok(mut admin) = sqlx::PgConnection::connect(&format!("{server}/postgres")).await {
                admin.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))).await.ok();
            }
        });
    })
    .join()
    .ok();
}

/// Bounds short enough for a test, long enough for a slow machine.
pub fn quick() -> Settings {
    Settings {
        provision_wait: Duration::from_secs(20),
        call_timeout: Duration::from_secs(10),
        resume_retry: Duration::from_secs(2),
        drain_wait: Duration::from_secs(5),
        reaper_period: Duration::from_millis(50),
        secret_key: Some(berth::model::secret::Key::of("a key that seals the secrets of tests")),
        ..Settings::default()
    }
}

async fn open(url: &str, dir: &Path, faults: &Faults, mut settings: Settings) -> Arc<Berth> {
    settings.spool = Some(dir.join("spool"));
    let store = Store::connect(url, 10).await.unwrap();
    store.migrate().await.unwrap();
    let providers = Registry::new(vec![Arc::new(faults.clone()) as Arc<dyn Provider>]).unwrap();
    let archives = dir.join("archives");
    std::fs::create_dir_all(&archives).unwrap();
    let blobs = Blobs::open(&format!("file:{}", archives.display())).unwrap();
    Berth::open(store, providers, blobs, settings).await.unwrap()
}

async fn admin(berth: &Berth) -> Caller {
    let mut tx = berth.store.begin().await.unwrap();
    let now = tx.now().await.unwrap();
    let (organization, _) = tx.ensure_organization("default", now).await.unwrap();
    tx.commit().await.unwrap();
    let key = ApiKey {
        id: Uuid::nil(),
        organization_id: organization.id,
        name: "test".to_owned(),
        scopes: vec![Scope::Admin, Scope::Operator],
        expires_at: None,
        created_at: now,
    };
    Caller { organization: organization.id, credential: Credential::Key(key), named: None }
}

/// An acquire with every default, that does not wait for others.
pub fn want(holder: &str, session: Option<&str>) -> Acquire {
    Acquire {
        environment: "default".to_owned(),
        holder: holder.to_owned(),
        scope: session.map(|s| BTreeMap::from([("session".to_owned(), s.to_owned())])),
        access: Access::ReadWrite,
        ttl_seconds: None,
        policy: None,
        harness: None,
        on_same_holder: OnSameHolder::Attach,
        requested_expires_at: None,
        require_provider_expiry: false,
        restore_checkpoint_id: None,
        on_unavailable: None,
        discard_workspace: false,
        metadata: json!({}),
        waiting: Waiting { others: Duration::ZERO, respond_async: false },
    }
}

pub fn carried(lease: &LeaseView) -> Carried {
    Carried { generation: Some(lease.lease.generation), epoch: None }
}

pub fn command(generation: i64, argv: &[&str]) -> Exec {
    Exec {
        carried: Carried { generation: Some(generation), epoch: None },
        argv: argv.iter().map(|s| (*s).to_owned()).collect(),
        cwd: None,
        env: BTreeMap::new(),
        user: None,
        stdin: Vec::new(),
        timeout: Duration::from_secs(30),
        max_output_bytes: 1 << 20,
        base64: false,
        keep_on_disconnect: false,
        wait: None,
    }
}

/// The code of a refusal.
pub fn code<T: std::fmt::Debug>(result: std::result::Result<T, Error>) -> berth::error::Code {
    result.expect_err("a refusal").code
}
