//! Stand-ins that let the other rooms compile; replaced by the verbs themselves.
#![expect(clippy::unused_async, missing_docs, clippy::needless_pass_by_value, reason = "stand-ins")]

use std::sync::Arc;
use uuid::Uuid;
use crate::error::{Code, Error, Result};
use crate::ops::view::*;
use crate::ops::input::{self, *};

fn stub<T>() -> Result<T> { Err(Error::new(Code::Internal, "stub")) }

#[derive(Clone, Debug, Default)]
pub struct Settings { pub provision_wait: std::time::Duration, pub capture_timeout: std::time::Duration }
#[derive(Debug)]
pub struct Berth { pub settings: Settings }
impl Berth {
    pub async fn open(settings: Settings) -> Result<Arc<Self>> { Ok(Arc::new(Self { settings })) }
}

pub mod caller {
    use super::*;
    use crate::model::key::{ApiKey, Scope};
    #[derive(Clone, Debug)]
    pub enum Credential { Key(ApiKey), Token(crate::model::token::Claims) }
    #[derive(Clone, Debug)]
    pub struct Caller { pub organization: Uuid, pub credential: Credential }
    impl Caller {
        pub fn require(&self, scope: Scope) -> Result<()> {
            match &self.credential { Credential::Key(key) if key.grants(scope) => Ok(()), _ => Err(Error::new(Code::Forbidden, format!("This needs the scope `{scope}`."))) }
        }
        pub fn is_token(&self) -> bool { matches!(self.credential, Credential::Token(_)) }
    }
    pub async fn identify(_: &Berth, bearer: &str) -> Result<Caller> {
        if bearer != "stub-key" { return Err(Error::new(Code::Unauthorized, "No such key.")); }
        let key = ApiKey { id: Uuid::nil(), organization_id: Uuid::nil(), name: "stub".into(), scopes: vec![Scope::Admin, Scope::Operator], expires_at: None, created_at: crate::clock::Time(0) };
        Ok(Caller { organization: Uuid::nil(), credential: Credential::Key(key) })
    }
}
use caller::Caller;
pub mod acquire { use super::*; pub async fn acquire(_: &Arc<Berth>, _: &Caller, _: input::Acquire) -> Result<(LeaseView, Answered)> { stub() } }
pub mod lease { use super::*;
    pub async fn get(_: &Berth, _: &Caller, _: Uuid, _: std::time::Duration) -> Result<LeaseView> { stub() }
    pub async fn list(_: &Berth, _: &Caller, _: ListQuery) -> Result<Page<LeaseView>> { stub() } }
pub mod renew { use super::*; pub async fn renew(_: &Berth, _: &Caller, _: Uuid, _: input::Renew) -> Result<LeaseView> { stub() } }
pub mod release { use super::*;
    pub async fn release(_: &Arc<Berth>, _: &Caller, _: Uuid, _: ReleaseRequest) -> Result<(LeaseView, Answered)> { stub() }
    pub async fn delete(_: &Arc<Berth>, _: &Caller, _: Uuid, _: bool) -> Result<(LeaseView, Answered)> { stub() } }
pub mod recover { use super::*; pub async fn recover(_: &Arc<Berth>, _: &Caller, _: Uuid, _: input::Recover) -> Result<(LeaseView, Answered)> { stub() } }
pub mod resume { use super::*; pub async fn resume(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Carried, _: Waiting) -> Result<(LeaseView, Answered)> { stub() } }
pub mod explain { use super::*;
    pub async fn lease(_: &Berth, _: &Caller, _: Uuid) -> Result<Explanation> { stub() }
    pub async fn sandbox(_: &Berth, _: &Caller, _: Uuid) -> Result<Explanation> { stub() } }
pub mod sandbox { use super::*;
    pub async fn ensure(_: &Berth, _: &Caller, _: &str, _: crate::model::scope::Scope) -> Result<(SandboxView, bool)> { stub() }
    pub async fn get(_: &Berth, _: &Caller, _: Uuid) -> Result<SandboxView> { stub() }
    pub async fn list(_: &Berth, _: &Caller, _: ListQuery) -> Result<Page<SandboxView>> { stub() } }
pub mod instance { use super::*; use crate::model::instance::Instance;
    pub async fn get(_: &Berth, _: &Caller, _: Uuid) -> Result<Instance> { stub() }
    pub async fn list(_: &Berth, _: &Caller, _: ListQuery) -> Result<Page<Instance>> { stub() } }
pub mod environment { use super::*; use crate::model::environment::Environment;
    pub async fn create(_: &Berth, _: &Caller, _: NewEnvironment) -> Result<Environment> { stub() }
    pub async fn get(_: &Berth, _: &Caller, _: &str) -> Result<Environment> { stub() }
    pub async fn list(_: &Berth, _: &Caller, _: ListQuery) -> Result<Page<Environment>> { stub() } }
pub mod exec { use super::*;
    pub async fn run(_: &Arc<Berth>, _: &Caller, _: Uuid, _: input::Exec) -> Result<(ExecView, Answered)> { stub() }
    pub async fn get(_: &Berth, _: &Caller, _: Uuid, _: Uuid) -> Result<ExecView> { stub() }
    pub async fn list(_: &Berth, _: &Caller, _: Uuid, _: ListQuery) -> Result<Page<ExecView>> { stub() }
    pub async fn cancel(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Uuid) -> Result<ExecView> { stub() } }
pub mod files { use super::*; pub use crate::provider::{FileEntry, FileKind}; use crate::provider::ByteStream;
    pub async fn read(_: &Arc<Berth>, _: &Caller, _: Uuid, _: &str) -> Result<FileBody> { stub() }
    #[expect(clippy::too_many_arguments, reason = "stand-in")]
    pub async fn write(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Carried, _: &str, _: ByteStream, _: Option<u32>, _: bool) -> Result<Put> { stub() }
    pub async fn list(_: &Arc<Berth>, _: &Caller, _: Uuid, _: &str, _: bool, _: Option<Vec<u8>>, _: usize) -> Result<(Vec<FileEntry>, Option<Vec<u8>>)> { stub() }
    pub async fn stat(_: &Arc<Berth>, _: &Caller, _: Uuid, _: &str) -> Result<FileEntry> { stub() }
    pub async fn remove(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Carried, _: &str, _: bool) -> Result<i64> { stub() }
    pub async fn make_directory(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Carried, _: &str) -> Result<i64> { stub() }
    pub async fn rename(_: &Arc<Berth>, _: &Caller, _: Uuid, _: Carried, _: &str, _: &str, _: bool) -> Result<i64> { stub() } }
pub mod capture { use super::*; pub async fn capture(_: &Arc<Berth>, _: &Caller, _: Uuid, _: input::Capture) -> Result<(crate::model::checkpoint::Checkpoint, Answered)> { stub() } }
pub mod checkpoint { use super::*; use crate::model::checkpoint::Checkpoint;
    pub async fn list(_: &Berth, _: &Caller, _: Uuid, _: ListQuery) -> Result<Page<Checkpoint>> { stub() }
    pub async fn get(_: &Berth, _: &Caller, _: Uuid, _: Uuid) -> Result<Checkpoint> { stub() }
    pub async fn current(_: &Berth, _: &Caller, _: Uuid) -> Result<Checkpoint> { stub() } }
pub mod attach { use super::*; pub async fn attach(_: &Berth, _: &Caller, _: Uuid, _: Uuid, _: input::Attach) -> Result<crate::model::checkpoint::Checkpoint> { stub() } }
pub mod provider { use super::*; pub async fn list(_: &Berth) -> Result<Vec<ProviderView>> { Ok(Vec::new()) } }
pub mod keys { use super::*; use crate::model::key::{ApiKey, Scope};
    pub async fn create_organization(_: &Berth, _: &Caller, _: &str) -> Result<(Uuid, String, crate::clock::Time)> { stub() }
    pub async fn issue(_: &Berth, _: &str, _: &str, _: Vec<Scope>) -> Result<(ApiKey, String)> { stub() }
    pub async fn create(_: &Berth, _: &Caller, _: &str, _: Vec<Scope>, _: Option<crate::clock::Time>, _: Option<Uuid>) -> Result<(ApiKey, String)> { stub() } }
pub mod health { use super::*; pub async fn writable(_: &Berth) -> Result<()> { Ok(()) } }
pub mod boot { use super::*;
    pub async fn migrate(_: &Settings) -> Result<Vec<String>> { stub() }
    pub async fn pending_migrations(_: &Settings) -> Result<Vec<String>> { stub() }
    pub async fn first_start(_: &Berth, _: Option<&str>) -> Result<Option<String>> { Ok(None) } }

#[cfg(test)]
pub mod testing { use super::*;
    pub const KEY: &str = "stub-key";
    pub async fn berth() -> Arc<Berth> { Berth::open(Settings::default()).await.unwrap() } }
