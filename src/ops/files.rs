//! Files: reads go straight to the instance, changes are admitted like every other write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::admit;
use super::view::{FileBody, Put};
use super::{Berth, Caller, loss};
use crate::error::{Code, Error, Result};
use crate::model::instance::Instance;
use crate::model::key::Scope;
use crate::model::operation::{Kind, Status};
use crate::provider::{ByteStream, Kind as ProviderKind, Provider, ProviderError, PutOptions};
pub use crate::provider::{FileEntry, FileKind};
use crate::store::Carried;

/// How long one change of files may take.
const HOLD: Duration = Duration::from_secs(3600);

/// Opens a file.
pub async fn read(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, path: &str) -> Result<FileBody> {
    let (provider, instance) = reach(berth, caller, lease).await?;
    match provider.read_file(reference(&instance), path).await {
        Ok(file) => Ok(FileBody { size: file.entry.size, mode: file.entry.mode, modified_at: file.entry.modified_at, body: file.body }),
        Err(error) => Err(explain(berth, &instance, &error).await),
    }
}

/// What is at a path.
pub async fn stat(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, path: &str) -> Result<FileEntry> {
    let (provider, instance) = reach(berth, caller, lease).await?;
    match provider.stat_file(reference(&instance), path).await {
        Ok(entry) => Ok(entry),
        Err(error) => Err(explain(berth, &instance, &error).await),
    }
}

/// Entries of a directory, and where the next page begins.
pub async fn list(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    path: &str,
    recursive: bool,
    after: Option<Vec<u8>>,
    limit: usize,
) -> Result<(Vec<FileEntry>, Option<Vec<u8>>)> {
    let (provider, instance) = reach(berth, caller, lease).await?;
    match provider.list_files(reference(&instance), path, recursive, after.as_deref(), limit + 1).await {
        Ok(mut entries) => {
            let more = entries.len() > limit;
            entries.truncate(limit);
            let next = if more { entries.last().map(|e| e.path.clone()) } else { None };
            Ok((entries, next))
        }
        Err(error) => Err(explain(berth, &instance, &error).await),
    }
}

/// Puts a file's whole content.
pub async fn write(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    path: &str,
    body: ByteStream,
    mode: Option<u32>,
    parents: bool,
) -> Result<Put> {
    let path = path.to_owned();
    let (created, workspace_seq) = change(berth, caller, lease, carried, Kind::File, move |provider, provider_ref, grant| async move {
        provider.write_file(&provider_ref, grant, &path, body, PutOptions { mode, parents }).await
    })
    .await?;
    Ok(Put { created, workspace_seq })
}

/// Removes a file, a link, an empty directory, or with `recursive` a tree.
pub async fn remove(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, carried: Carried, path: &str, recursive: bool) -> Result<i64> {
    let path = path.to_owned();
    let change = change(berth, caller, lease, carried, Kind::File, move |provider, provider_ref, grant| async move {
        provider.remove_file(&provider_ref, grant, &path, recursive).await
    });
    Ok(change.await?.1)
}

/// Makes a directory and its parents.
pub async fn make_directory(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, carried: Carried, path: &str) -> Result<i64> {
    let path = path.to_owned();
    let change = change(berth, caller, lease, carried, Kind::File, move |provider, provider_ref, grant| async move {
        provider.make_directory(&provider_ref, grant, &path).await
    });
    Ok(change.await?.1)
}

/// Renames inside the sandbox.
pub async fn rename(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    from: &str,
    to: &str,
    overwrite: bool,
) -> Result<i64> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let change = change(berth, caller, lease, carried, Kind::File, move |provider, provider_ref, grant| async move {
        provider.move_file(&provider_ref, grant, &from, &to, overwrite).await
    });
    Ok(change.await?.1)
}

/// Admits a change, makes it in a tracked task that no client's leaving cancels, and settles it.
pub(super) async fn change<T, F, W>(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    kind: Kind,
    work: F,
) -> Result<(T, i64)>
where
    T: Send + 'static,
    F: FnOnce(Arc<dyn Provider>, String, i64) -> W + Send + 'static,
    W: Future<Output = crate::provider::Result<T>> + Send + 'static,
{
    caller.require_on_lease(Scope::Write, lease)?;
    let admitted = admit::admit(berth, caller, lease, carried, caller.first_id(), kind, HOLD).await?;
    let (sender, receiver) = oneshot::channel();
    let task = Arc::clone(berth);
    let seq = admitted.operation.workspace_seq;
    berth.work.spawn(async move {
        let held = task.work.hold(admitted.claim);
        let provider = match task.provider_of(&admitted.instance).await {
            Ok(provider) => provider,
            Err(error) => {
                // Nothing was asked of anybody.
                if admit::settle(&task, &admitted, &admit::plain(Status::Exited, Some(1)), false).await.is_ok() {
                    held.settled();
                }
                sender.send(Err(error)).ok();
                return;
            }
        };
        let done = tokio::time::timeout(HOLD, work(provider, reference(&admitted.instance).to_owned(), admitted.operation.grant_seq)).await;
        let done = done.unwrap_or_else(|_| Err(ProviderError::new(ProviderKind::Indeterminate, "it did not answer in time")));
        let settlement = match &done {
            Ok(_) => admit::plain(Status::Exited, Some(0)),
            Err(error) if error.kind.is_transient() => admit::plain(Status::Unknown, None),
            Err(_) => admit::plain(Status::Exited, Some(1)),
        };
        let settled = admit::settle(&task, &admitted, &settlement, false).await;
        if settled.is_ok() {
            held.settled();
        }
        let told = match (done, settled) {
            (Ok(value), Ok(true)) => Ok((value, seq)),
            // Somebody ended it as unknown meanwhile; whether what was saved or handed on since has it, nobody can say.
            (Ok(_), Ok(false)) => Err(Error::new(Code::OperationUnknown, "The write was cut off; it may have happened. Read it back.")),
            (Err(error), _) if error.kind == ProviderKind::Fenced => Err(admit::overtaken(&task, &admitted.operation, &error).await),
            (Err(error), _) => Err(explain(&task, &admitted.instance, &error).await),
            (_, Err(error)) => Err(error),
        };
        sender.send(told).ok();
    });
    receiver.await.unwrap_or_else(|_| Err(Error::new(Code::OperationUnknown, "The write's task was lost; it may have happened.")))
}

/// The instance of a lease that may be read.
pub(super) async fn reach(berth: &Arc<Berth>, caller: &Caller, lease: Uuid) -> Result<(Arc<dyn Provider>, Instance)> {
    caller.require_on_lease(Scope::Read, lease)?;
    let (_, instance) = admit::readable(berth, caller, lease).await?;
    Ok((berth.provider_of(&instance).await?, instance))
}

pub(super) fn reference(instance: &Instance) -> &str {
    instance.provider_ref.as_deref().unwrap_or_default()
}

/// A not-found of the sandbox itself is answered by what one look says; a missing file never is.
pub(super) async fn explain(berth: &Arc<Berth>, instance: &Instance, error: &ProviderError) -> Error {
    if matches!(error.kind, ProviderKind::NotFound | ProviderKind::Refused) {
        return match loss::investigate(berth, instance).await {
            Ok(loss::Found::Lost) => crate::store::fence::instance_lost(),
            Ok(loss::Found::Stopped) => crate::store::fence::transition("The sandbox was found stopped; the next call starts it."),
            Ok(loss::Found::Unproven) => {
                Error::new(Code::ProviderUnavailable, "The provider does not reach the sandbox, and nothing proves that it is gone.")
                    .retry_after(Duration::from_secs(2))
            }
            Err(error) => error,
        };
    }
    super::provider_failed(error)
}
