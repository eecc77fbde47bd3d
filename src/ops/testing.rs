//! A whole server for tests beside the code: embedded database, memory provider, a key that may do everything.

use std::sync::Arc;

use super::{Berth, Settings};
use crate::archive::Blobs;
use crate::provider::memory::Memory;
use crate::provider::registry::Registry;
use crate::store::Store;

/// The API key of a test's server: admin and operator.
pub const KEY: &str = "a-key-of-the-tests-that-is-long-enough-0123456789";

/// A new server with environment `default` on the memory provider.
///
/// # Panics
/// When it cannot be made: then the test has failed.
pub async fn berth() -> Arc<Berth> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::connect(&format!("sqlite:{}", dir.path().join("berth.db").display()), 2).await.unwrap();
    store.migrate().await.unwrap();
    let providers = Registry::new(vec![Arc::new(Memory::new())]).unwrap();
    let blobs = Blobs::open(&format!("file:{}", dir.path().join("archives").display())).unwrap();
    let berth = Berth::open(store, providers, blobs, Settings::default()).await.unwrap();
    super::boot::first_start(&berth, Some(KEY)).await.unwrap();
    berth.scratch.set(dir).unwrap();
    berth
}
