//! Whole trees in and out of a live sandbox.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::files::{self, reach, reference};
use super::{Berth, Caller, upload};
pub use crate::archive::incoming::Format;
use crate::archive::incoming::{Verdict, incoming, outgoing};
use crate::archive::{ArchiveCode, Limits};
use crate::error::Result;
use crate::model::capability;
use crate::model::key::Scope;
use crate::model::operation::Kind;
use crate::provider::ByteStream;
pub use crate::provider::{WORKSPACE, WriteMode};
use crate::store::Carried;

/// Lays a tree over a directory, or makes the directory exactly the tree; returns the sandbox's count of writes with this one.
/// What is not a whole, safe tar changes nothing.
pub async fn sync_in(
    berth: &Arc<Berth>,
    caller: &Caller,
    lease: Uuid,
    carried: Carried,
    path: String,
    mode: WriteMode,
    body: ByteStream,
) -> Result<i64> {
    let verdict = Arc::new(OnceLock::new());
    let told = Arc::clone(&verdict);
    let done = files::change(berth, caller, lease, carried, Kind::SyncIn, move |provider, provider_ref, grant| async move {
        // The body is read only now that the caller may write. Cancelled when the provider is through with the tar, so that no
        // thread waits for a body that nobody reads.
        let cancel = CancellationToken::new();
        let _until = cancel.clone().drop_guard();
        let (tar, verdict) = incoming(body, Limits::default(), cancel);
        told.set(verdict).ok();
        provider.write_tree(&provider_ref, grant, &path, tar, mode).await
    });
    match (done.await, verdict.get().and_then(Verdict::found)) {
        (Ok(((), seq)), _) => Ok(seq),
        (Err(_), Some(Err(refusal))) if is_the_archives_fault(refusal.code) => Err(upload::refused(&refusal)),
        (Err(error), _) => Err(error),
    }
}

fn is_the_archives_fault(code: ArchiveCode) -> bool {
    matches!(code, ArchiveCode::Unsafe | ArchiveCode::Invalid | ArchiveCode::Limit)
}

/// A directory as a tar. A stream that breaks off was not whole.
pub async fn sync_out(berth: &Arc<Berth>, caller: &Caller, lease: Uuid, path: &str, format: Format) -> Result<ByteStream> {
    let (provider, instance) = reach(berth, caller, lease).await?;
    match provider.read_tree(reference(&instance), path, &[]).await {
        Ok(tree) => Ok(outgoing(tree.tar, format, CancellationToken::new())),
        Err(error) => Err(files::explain(berth, &instance, &error).await),
    }
}

/// Each of the nine capabilities: its key, whether this lease has it, and why not.
pub async fn capabilities(berth: &Arc<Berth>, caller: &Caller, lease: Uuid) -> Result<Vec<(&'static str, bool, Option<&'static str>)>> {
    caller.require_on_lease(Scope::Read, lease)?;
    let view = super::lease::read(berth, caller.organization, lease).await?;
    if super::plugins::is_plugin(&view.provider) {
        return super::plugins::capabilities(berth, &view).await;
    }
    let provider = berth.providers.get(&view.provider);
    let has = |key: &str| provider.as_ref().is_some_and(|p| p.traits().capabilities.contains(&key));
    let told = |key: &&'static str| {
        let granted = has(key);
        (*key, granted, (!granted).then_some("the provider does not have it"))
    };
    Ok(capability::KEYS.iter().map(told).collect())
}
