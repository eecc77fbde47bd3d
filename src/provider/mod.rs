//! A provider makes, finds, runs and ends instances. The trait's doc comments are the contract; `conformance` is the
//! contract as test functions, and everything above the trait is the same for every provider.

pub mod conformance;
pub mod counted;
pub mod docker;
pub mod error;
pub mod faults;
pub mod local;
pub mod memory;
pub mod plugin;
pub mod registry;
pub mod resolved;
pub mod schema;
mod snapshot;
mod spool;
pub mod stream;

use std::borrow::Cow;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use error::{Kind, ProviderError};
pub use local::{Confinement, LocalSettings, Wish};
pub use resolved::ResolvedConfig;
pub use snapshot::{CaptureEffect, ListedSnapshot, Snapshot, Snapshots, Takeover};

use crate::clock::Time;

/// A provider's answer.
pub type Result<T> = std::result::Result<T, ProviderError>;
/// A stream of bytes that is read with back-pressure; an error in it means the bytes so far prove nothing.
pub type ByteStream = Pin<Box<dyn AsyncRead + Send>>;

/// Who made an object and for which row, written onto the object itself at create.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerTag {
    /// The deployment that made it.
    pub deployment: Uuid,
    /// The tenant.
    pub organization: Uuid,
    /// The logical sandbox.
    pub sandbox: Uuid,
    /// The ledger row; unique per object.
    pub instance: Uuid,
    /// The incarnation.
    pub generation: i64,
}

/// What to make: the recorded configuration of the ledger row, secrets resolved for this one call.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Checked against `config_schema` before, with the secrets' values in it.
    pub config: ResolvedConfig,
    /// The configured workspace path, if the environment has one.
    pub workspace_path: Option<String>,
}

/// What was made, as the provider names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The provider's name of the object.
    pub provider_ref: String,
    /// When the provider itself will end it, if it attests that.
    pub provider_expires_at: Option<Time>,
    /// What it says of the object and wants to be told again with every call, if anything.
    pub metadata: Option<serde_json::Value>,
}

/// How an object can be found again after a lost answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// By its owner tag: `ensure` is idempotent.
    ByTag,
    /// By its ref alone.
    ByRef,
    /// Not at all: an indeterminate create is never repeated.
    None,
}

/// What a present object is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Commands can run.
    Running,
    /// Preserved, startable.
    Stopped,
    /// Frozen, with its processes.
    Paused,
    /// Over for good, although the provider still lists it.
    Ended,
}

/// What a look at one ref proved. Unknown is never absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// It exists, in this state.
    Present(Presence),
    /// Structural proof, under the row's binding, that it does not exist.
    Absent,
    /// Nothing was proven.
    Unknown,
}

/// One object of ours in the provider's inventory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The provider's name of it.
    pub provider_ref: String,
    /// The owner tag read off the object.
    pub tag: OwnerTag,
    /// When it was made, if the provider tells.
    pub created_at: Option<Time>,
}

/// A command to run in a sandbox.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    /// The operation row's id; names the command in every trace of it.
    pub id: Uuid,
    /// The grant it was admitted under; refused (`Kind::Fenced`) when the fence in the sandbox is higher.
    pub grant_seq: i64,
    /// argv, at least one element; run without a shell.
    pub argv: Vec<String>,
    /// Working directory: absolute inside the sandbox, or relative to the workspace; the workspace when absent.
    pub cwd: Option<String>,
    /// Added to the sandbox's own environment.
    pub env: Vec<(String, String)>,
    /// The user to run as, where the provider can choose.
    pub user: Option<String>,
    /// Killed with its whole tree after this span.
    pub timeout: Duration,
    /// Whether anything is sent to its standard input; else that is empty from the start.
    pub stdin: bool,
    /// What [`Provider::prepare`] made of this very command.
    pub prepared: Option<Prepared>,
}

/// A command that is laid ready at its provider, and not started.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The provider's name for it.
    pub name: String,
    /// The name by which its first and last words are known.
    pub nonce: String,
}

/// One thing that happened in a running command. Bytes, never text.
#[derive(Debug)]
pub enum ExecEvent {
    /// Bytes of standard output, in order.
    Stdout(Bytes),
    /// Bytes of standard error, in order; the order between the two streams is not promised.
    Stderr(Bytes),
    /// The last event. A stream that ends without it proves nothing about the command.
    Exit(ExecExit),
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecExit {
    /// Why.
    pub end: ExecEnd,
    /// The whole process tree was found and is dead (always meant for time-outs and cancellations).
    pub process_tree_killed: bool,
    /// Descendants outlive the command and go on running in the sandbox.
    pub lingering: bool,
}

/// Why a command is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// By itself. 127 means: no such program; 126: not executable.
    Exited(i32),
    /// By this signal, not sent by Berth.
    Signaled(i32),
    /// Its deadline passed and it was killed.
    TimedOut,
    /// It was cancelled, or a fence killed it.
    Cancelled,
}

/// A running command. Until its exit was sent, dropping it, or cancelling `cancel`, kills the whole process tree. What
/// outlives the command is ended by `fence`, `stop` and `destroy`, and by the end of the server.
pub struct Running {
    /// Standard input; dropping the sender closes it. Bounded: sending waits for the command to read.
    pub stdin: mpsc::Sender<Bytes>,
    /// What happens, with back-pressure.
    pub events: mpsc::Receiver<ExecEvent>,
    /// Cancels the command; an `Exit` event still follows.
    pub cancel: CancellationToken,
}

/// What kind of directory entry something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; its target is data and is not followed.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to what was listed; raw bytes, since names need not be UTF-8.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: FileKind,
    /// Bytes, for a regular file.
    pub size: u64,
    /// Permission bits, 0..=0o7777.
    pub mode: u32,
    /// Last change of the content.
    pub modified_at: Option<Time>,
    /// The target, for a symbolic link.
    pub link_target: Option<Vec<u8>>,
}

/// An open file to read.
pub struct FileRead {
    /// What it is.
    pub entry: FileEntry,
    /// Its bytes.
    pub body: ByteStream,
}

/// How a file is put.
#[derive(Clone, Copy, Debug)]
pub struct PutOptions {
    /// Permission bits; 0o644 for a new file and unchanged for an existing one when absent.
    pub mode: Option<u32>,
    /// Make missing parent directories.
    pub parents: bool,
}

/// The grant of what fills an object that nobody has been granted yet: above every fence.
pub const UNGRANTED: i64 = i64::MAX;
/// The path of the workspace itself.
pub const WORKSPACE: &str = ".";

/// Whether a tree replaces a directory's content or is laid over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Entries are added and replaced; others stay.
    Merge,
    /// Afterwards the directory is exactly the tree; all or nothing.
    Replace,
}

/// What kind of isolation stands between a command and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// None: commands run as the server's own user.
    None,
    /// Namespaces of this machine around each command, which runs as the server's own user.
    Bubblewrap,
    /// Namespaces of a container.
    Container,
    /// A remote machine.
    Remote,
}

/// What a provider is and can do; told = kept, checked by conformance.
#[derive(Clone, Debug)]
pub struct Traits {
    /// The name environments use.
    pub kind: &'static str,
    /// How an object is found again.
    pub lookup: Lookup,
    /// What stands between a command and the machine.
    pub isolation: Isolation,
    /// Whether the provider itself refuses a lower generation.
    pub fencing: bool,
    /// How long `ensure` may take, where that is longer than other calls.
    pub ensure_takes: Option<Duration>,
    /// Whether `stop` and `start` keep the files of the exact object.
    pub stop_resume: bool,
    /// Whether a stopped object can be told from one that is gone.
    pub tells_stopped_from_gone: bool,
    /// Which of the nine capability keys it has.
    pub capabilities: Cow<'static, [&'static str]>,
    /// What its own snapshots are like; `None` when it takes none, and then every verb about them is `Unsupported`.
    pub snapshots: Option<Snapshots>,
}

/// The capability keys of a provider whose commands and files Berth reaches itself: all nine but `runner_websocket_ingress`.
pub const DIRECT_CAPABILITIES: &[&str] = &[
    "reusable_leases",
    "native_sync_in",
    "native_sync_out",
    "persistent_process_sessions",
    "independent_control_commands",
    "incremental_session_output",
    "concurrent_sync_operations",
    "duplex_command_stream",
];

/// Makes, finds, runs and ends instances. Every call is bounded by the caller's deadline and may be dropped at any await.
///
/// No method may retry by itself what is not safe to repeat, and none may name an object other than the ref it was given.
///
/// Whatever changes files carries the grant it was admitted under, as a command does, and reads the fence as late as it can: from a
/// fence's `Ok` on nothing of a lower grant changes anything, however late its bytes arrive; it is `Fenced`, and so has changed nothing,
/// or, where the fence had to cut it off, `Transient` or `Indeterminate`.
#[async_trait]
pub trait Provider: Send + Sync {
    /// What this provider is and can do; constant over its life.
    fn traits(&self) -> &Traits;

    /// JSON Schema (2020-12) of an environment's `config`, closed (`additionalProperties: false`).
    fn config_schema(&self) -> serde_json::Value;

    /// Names the account that refs live in, read through the same client as every other call. A not-found under another
    /// binding proves nothing.
    async fn binding(&self) -> Result<String>;

    /// Makes the object for this tag, or finds the one it made before: twice = once, and after a lost answer the same
    /// call finds the same object. `Refused` and `Invalid` mean nothing was made.
    async fn ensure(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made>;

    /// Finds the object of this tag; `None` only with proof that there is none. `Unsupported` unless `Lookup::ByTag`.
    async fn find(&self, tag: &OwnerTag) -> Result<Option<Made>>;

    /// What is known about this exact ref. A binding that is unreadable or differs from `binding` is `Unknown`.
    async fn observe(&self, binding: &str, provider_ref: &str) -> Observation;

    /// Decides and makes the working directory; returns its absolute path inside the sandbox. Repeatable.
    async fn realize(&self, provider_ref: &str, spec: &Spec) -> Result<String>;

    /// Starts exactly this stopped object, files intact. Repeatable. `NotFound` only with structural proof.
    async fn start(&self, provider_ref: &str) -> Result<()>;

    /// Stops exactly this object, files kept, nothing in it runs any more. Repeatable.
    async fn stop(&self, provider_ref: &str) -> Result<()>;

    /// Ends exactly this object. Repeatable: what is gone already is `Ok(AlreadyGone)`.
    async fn destroy(&self, provider_ref: &str) -> Result<Destroyed>;

    /// Every object of this deployment. An error means the inventory is unknown, never that it is empty.
    async fn list(&self, deployment: Uuid) -> Result<Vec<Listed>>;

    /// Raises the fence in the sandbox to `grant_seq`, then kills every process tree admitted under a lower grant. From
    /// `Ok` on, none of them runs, none will start, and no change of files of theirs takes place, however late its call arrives; a change
    /// that can neither be ended nor waited for makes it `Transient`. Repeatable; never lowers the fence.
    async fn fence(&self, provider_ref: &str, grant_seq: i64) -> Result<()>;

    /// How many process trees run in the sandbox now, commands and what outlived them.
    async fn processes(&self, provider_ref: &str) -> Result<u64>;

    /// Lays a command ready while its admission is made durable, where that saves time. Nothing runs by it, nothing waits for it,
    /// and whoever is refused then leaves it.
    async fn prepare(&self, _provider_ref: &str, _spec: &ExecSpec) -> Option<Prepared> {
        None
    }

    /// Starts a command. `Fenced` when the sandbox's fence is higher than the command's grant.
    async fn exec(&self, provider_ref: &str, spec: ExecSpec) -> Result<Running>;

    /// A digest over path, type, size, mode, mtime, ctime and inode of everything in the workspace: equal before and
    /// after a capture means nothing changed. `Unsupported` where files cannot be walked.
    async fn stat_walk(&self, provider_ref: &str, exclude: &[String]) -> Result<String>;

    /// A directory (`WORKSPACE`, or a path as `read_file` takes it) as an uncompressed tar: directories, files, symlinks, hard links;
    /// modes kept; raw names, relative to that directory, as `exclude` is. Sockets, pipes and devices are skipped and counted. The
    /// stream ends with an error unless the tar is complete.
    async fn read_tree(&self, provider_ref: &str, path: &str, exclude: &[String]) -> Result<TreeRead>;

    /// Lays a tar over a directory, made with its parents where it is missing. Nothing in it escapes that directory, whatever the tar
    /// says; a tar that is refused changes nothing.
    async fn write_tree(&self, provider_ref: &str, grant_seq: i64, path: &str, tar: ByteStream, mode: WriteMode) -> Result<()>;

    /// What a snapshot taken under this id is called, so that it can be named before it is asked for; `None` where the provider
    /// chooses the name.
    fn snapshot_ref(&self, id: Uuid) -> Option<String>;

    /// Takes a snapshot of the object's files under a caller-made id. Running or stopped, the object stays as it is but for the
    /// declared `CaptureEffect`.
    async fn snapshot(&self, provider_ref: &str, id: Uuid) -> Result<Snapshot>;

    /// As `ensure`, with the files of this snapshot: a new object, running, under this tag. `NotFound` only with structural proof
    /// that there is no such snapshot; then nothing was made.
    async fn restore(&self, spec: &Spec, tag: &OwnerTag, snapshot_ref: &str) -> Result<Made>;

    /// Whether this exact snapshot exists. `false` is structural proof that it does not, under this binding; another or an unreadable
    /// binding is an error.
    async fn probe_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<bool>;

    /// Every snapshot that was taken of objects of this deployment. An error means the inventory is unknown, never that it is empty.
    async fn list_snapshots(&self, deployment: Uuid) -> Result<Vec<ListedSnapshot>>;

    /// Deletes exactly this snapshot; `Refused` under another binding. Repeatable: what is gone already is `Ok(AlreadyGone)`.
    async fn delete_snapshot(&self, binding: &str, snapshot_ref: &str) -> Result<Destroyed>;

    /// Opens a file. Paths as `ExecSpec::cwd`; links are followed inside the sandbox only.
    async fn read_file(&self, provider_ref: &str, path: &str) -> Result<FileRead>;

    /// Replaces a file's content, atomically where the provider can; returns whether the file is new.
    async fn write_file(&self, provider_ref: &str, grant_seq: i64, path: &str, body: ByteStream, options: PutOptions) -> Result<bool>;

    /// Removes a file, a link or an empty directory; a whole tree when `recursive`.
    async fn remove_file(&self, provider_ref: &str, grant_seq: i64, path: &str, recursive: bool) -> Result<()>;

    /// What is at this path; a final symbolic link is not followed.
    async fn stat_file(&self, provider_ref: &str, path: &str) -> Result<FileEntry>;

    /// Entries of a directory in byte order of their paths, at most `limit`, strictly after `after`.
    async fn list_files(
        &self,
        provider_ref: &str,
        path: &str,
        recursive: bool,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FileEntry>>;

    /// Makes a directory and its parents; an existing directory is fine.
    async fn make_directory(&self, provider_ref: &str, grant_seq: i64, path: &str) -> Result<()>;

    /// Renames inside the sandbox; refuses (`FileExists`) to replace anything unless `overwrite`.
    async fn move_file(&self, provider_ref: &str, grant_seq: i64, from: &str, to: &str, overwrite: bool) -> Result<()>;
}

/// Whether a destroy found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// It existed and was ended now.
    Ended,
    /// It was gone already, by structural proof.
    AlreadyGone,
}

/// A workspace being exported.
pub struct TreeRead {
    /// An uncompressed tar.
    pub tar: ByteStream,
    /// How many sockets, pipes and devices were left out; complete once `tar` has ended.
    pub skipped: tokio::sync::oneshot::Receiver<u64>,
}
