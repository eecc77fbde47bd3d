//! Spool: what a provider calls an object that the database would not record, kept in a file until it is recorded.
//!
//! It holds identifiers and nothing else. Each entry is a file of its own, there whole or not at all, and at most `MOST` of them.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Berth, make};
use crate::clock::Time;
use crate::error::Result;
use crate::provider::Made;
use crate::provider::local::durable;

/// How many names are kept.
const MOST: usize = 1000;

/// A provider's name of an object, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrecorded {
    /// The ledger's row that it belongs to.
    pub instance_id: Uuid,
    /// The provider that made it.
    pub provider: String,
    /// What the provider calls it.
    pub provider_ref: String,
    /// When the provider itself will end it, if it attests that.
    pub provider_expires_at: Option<Time>,
    /// What the provider said of it, without secrets.
    #[serde(default)]
    pub provider_metadata: Option<serde_json::Value>,
}

/// An entry, and the file it is in, if it could be written.
#[derive(Clone, Debug)]
struct Entry {
    file: Option<PathBuf>,
    what: Unrecorded,
}

/// The names that wait to be recorded.
#[derive(Debug, Default)]
pub struct Spool {
    directory: Option<PathBuf>,
    entries: Mutex<VecDeque<Entry>>,
}

/// What one pass over the spool did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpoolReport {
    /// Names that are recorded now.
    pub recorded: usize,
    /// Names that still wait.
    pub waiting: usize,
}

impl Spool {
    /// Opens the spool with what a former server left in it.
    pub fn open(directory: Option<PathBuf>) -> Self {
        let left = directory.as_deref().map_or_else(VecDeque::new, |directory| read(directory).into());
        if !left.is_empty() {
            tracing::warn!(count = left.len(), "objects of a former server wait to be recorded");
        }
        Self { directory, entries: Mutex::new(left) }
    }

    /// How many names wait.
    pub fn waiting(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Keeps a name, in memory and, where that is possible, on disk.
    pub async fn keep(&self, what: Unrecorded) {
        let directory = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            if entries.iter().any(|entry| entry.what == what) {
                return;
            }
            if entries.len() >= MOST {
                tracing::error!(instance_id = %what.instance_id, provider_ref = what.provider_ref, "the spool is full; this name is in this line alone");
                return;
            }
            self.directory.clone()
        };
        let copy = what.clone();
        let written = tokio::task::spawn_blocking(move || directory.map(|directory| write(&directory, &copy)).transpose()).await;
        let file = written.map_err(io::Error::other).and_then(|written| written).unwrap_or_else(|error| {
            tracing::error!(instance_id = %what.instance_id, kind = ?error.kind(), "the spool could not be written; the name is kept in memory");
            None
        });
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push_back(Entry { file, what });
    }

    fn all(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Forgets a name that is recorded.
    async fn forget(&self, entry: Entry) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).retain(|kept| kept.what != entry.what);
        if let Some(file) = entry.file {
            // A file that stays is recorded once more after a restart, which changes nothing.
            tokio::task::spawn_blocking(move || fs::remove_file(file)).await.ok();
        }
    }
}

/// Records what can be recorded by now, whatever became of the rows meanwhile.
pub async fn flush(berth: &Berth) -> Result<SpoolReport> {
    let mut report = SpoolReport::default();
    let mut failure = None;
    for entry in berth.spool.all() {
        let what = entry.what.clone();
        let made =
            Made { provider_ref: what.provider_ref, provider_expires_at: what.provider_expires_at, metadata: what.provider_metadata };
        match make::try_keep_ref(berth, entry.what.instance_id, &made).await {
            // A row that went on meanwhile, or is over, has decided what becomes of the object in the same transaction.
            Ok(Ok(()) | Err(_)) => {
                berth.spool.forget(entry).await;
                report.recorded += 1;
            }
            Err(error) => failure = Some(error),
        }
    }
    report.waiting = berth.spool.waiting();
    match failure {
        Some(error) if report.recorded == 0 => Err(error),
        _ => Ok(report),
    }
}

/// What waits in a directory; what cannot be read is left there and told.
pub fn waiting_in(directory: &Path) -> Vec<Unrecorded> {
    read(directory).into_iter().map(|entry| entry.what).collect()
}

fn read(directory: &Path) -> Vec<Entry> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let entry = |file: PathBuf| {
        let what = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if what.is_none() {
            tracing::error!(file = %file.display(), "a file of the spool cannot be read");
        }
        Some(Entry { what: what?, file: Some(file) })
    };
    files.into_iter().filter_map(entry).take(MOST).collect()
}

fn write(directory: &Path, what: &Unrecorded) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let file = directory.join(format!("{}.json", crate::id::new()));
    durable::replace(&file, &serde_json::to_vec(what).map_err(io::Error::other)?)?;
    Ok(file)
}
