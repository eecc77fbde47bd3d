//! What a verb answers with: nouns joined with what a reader needs to understand them.

use serde_json::Value;
use uuid::Uuid;

use crate::clock::Time;
use crate::model::checkpoint::Checkpoint;
use crate::model::instance::{Glance, Instance};
use crate::model::lease::Lease;
use crate::model::operation::{Operation, Output};
use crate::model::sandbox::Sandbox;
pub use crate::store::organization::Organization as OrganizationRow;

/// What will happen to something by itself, and what holds it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// In one word: `expire`, `idle_drain`, `destroy`, `retry_cleanup`, `provision`, `none`, …
    pub action: String,
    /// When, if that is known.
    pub at: Option<Time>,
    /// What must end first.
    pub blocked_by: Vec<String>,
}

/// A lease as its reader sees it.
#[derive(Clone, Debug)]
pub struct LeaseView {
    /// The row.
    pub lease: Lease,
    /// The sandbox's scope, if it has one.
    pub scope: Option<crate::model::scope::Scope>,
    /// The environment's name.
    pub environment_name: String,
    /// The environment's provider.
    pub provider: String,
    /// What its reader is told of the lease's instance, if it has one yet.
    pub instance: Option<Glance>,
    /// The database's time.
    pub server_time: Time,
    /// What will happen by itself.
    pub next: Next,
    /// A lease token, on answers that hand one out.
    pub token: Option<String>,
}

/// How a verb that makes a lease ready was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// 201: it is new and active.
    Created,
    /// 200: it was yours already, or nothing had to be made.
    Existing,
    /// 202: the work goes on; look again.
    Pending,
}

/// A sandbox as its reader sees it.
#[derive(Clone, Debug)]
pub struct SandboxView {
    /// The row.
    pub sandbox: Sandbox,
    /// The environment's name.
    pub environment_name: String,
    /// The environment's provider.
    pub provider: String,
    /// The current instance, if there is one.
    pub instance: Option<Instance>,
    /// The checkpoint the pointer names, if it names one.
    pub current_checkpoint: Option<Checkpoint>,
    /// Live leases.
    pub lease_ids: Vec<Uuid>,
    /// What will happen by itself.
    pub next: Next,
}

impl SandboxView {
    /// Whether the live instance holds work that the current checkpoint does not.
    pub fn is_dirty(&self) -> bool {
        self.sandbox.is_dirty(self.instance.as_ref())
    }
}

/// An exec as its reader sees it.
#[derive(Clone, Debug)]
pub struct ExecView {
    /// The row.
    pub operation: Operation,
    /// What is kept of standard output.
    pub stdout: Output,
    /// What is kept of standard error.
    pub stderr: Output,
    /// Whether the caller asked for base64 whatever the bytes are.
    pub base64: bool,
    /// The database's time.
    pub server_time: Time,
}

/// One reason why something lives.
#[derive(Clone, Debug)]
pub struct Because {
    /// Which rule, in one word: `lease_active`, `retained`, `held`, `checkpoint_current`, …
    pub rule: String,
    /// Since when it holds.
    pub since: Option<Time>,
    /// Until when, if that is known.
    pub until: Option<Time>,
    /// For a person.
    pub detail: String,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Happened {
    /// The event's type.
    pub type_: String,
    /// When.
    pub time: Time,
    /// Who, if it has a name.
    pub actor: Option<String>,
}

/// Why something lives, what would end it, when, and what holds that back.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Whether anything of it lives.
    pub alive: bool,
    /// Every rule that keeps it.
    pub because: Vec<Because>,
    /// What will happen by itself.
    pub next: Next,
    /// Its last events, oldest first.
    pub history: Vec<Happened>,
}

/// A provider as its reader sees it.
#[derive(Clone, Debug)]
pub struct ProviderView {
    /// Its name in environments.
    pub kind: String,
    /// JSON Schema of `config`.
    pub config_schema: Value,
    /// The nine keys, and whether each is granted.
    pub capabilities: Vec<(String, bool)>,
    /// What stands between a command and the machine.
    pub isolation: String,
    /// Whether the provider itself refuses a lower generation.
    pub fencing: bool,
    /// Whether it answers now.
    pub ready: bool,
    /// Why not.
    pub not_ready_reason: Option<String>,
}

/// A page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// At most the limit.
    pub items: Vec<T>,
    /// Where the next page begins; none at the end.
    pub next_cursor: Option<String>,
}

/// A file being read.
pub struct FileBody {
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change of the content, where the provider tells.
    pub modified_at: Option<Time>,
    /// The bytes.
    pub body: crate::provider::ByteStream,
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Whether the file is new.
    pub created: bool,
    /// The sandbox's sequence number of this write.
    pub workspace_seq: i64,
}
