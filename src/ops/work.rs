//! Work that outlives the request that started it: tracked tasks, the claims they hold, and who waits for what.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

use super::Berth;
use crate::error::Result;
use crate::store::Claimed;
use crate::trace;

/// How often held claims are renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How many items the background works on at once, so that one hung provider delays few others.
const BACKGROUND_SLOTS: usize = 32;

/// Where the waiters of one sandbox stand.
#[derive(Default)]
pub struct Line {
    /// Passed round in order of arrival: whoever holds it is next.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Rung whenever something about the sandbox changed in this process.
    pub changed: Notify,
}

impl Line {
    /// Waits until something about the sandbox may have changed, here or in another process; false once `patience` is over.
    pub async fn until_changed(&self, patience: Instant) -> bool {
        if Instant::now() >= patience {
            return false;
        }
        tokio::select! {
            () = self.changed.notified() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            () = tokio::time::sleep_until(patience) => {}
        }
        true
    }
}

/// How often a waiter looks although nothing was rung: another process may have changed what it waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Tracked tasks, held claims, and who waits for what, in this process.
pub struct Work {
    /// This process, as owner of claims.
    pub owner: Uuid,
    tasks: TaskTracker,
    lines: Mutex<HashMap<Uuid, Arc<Line>>>,
    execs: Mutex<HashMap<Uuid, CancellationToken>>,
    dropped: Mutex<Vec<Claimed>>,
    busy: Arc<Mutex<HashSet<Uuid>>>,
    slots: Arc<Semaphore>,
    stopping: CancellationToken,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            owner: crate::id::new(),
            tasks: TaskTracker::new(),
            lines: Mutex::default(),
            execs: Mutex::default(),
            dropped: Mutex::default(),
            busy: Arc::default(),
            slots: Arc::new(Semaphore::new(BACKGROUND_SLOTS)),
            stopping: CancellationToken::new(),
        }
    }
}

impl Work {
    /// Runs work that nobody's leaving may cancel, for the trace and in the log's span of whoever began it.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(&self, work: F) {
        self.tasks.spawn(trace::within(trace::current(), work).in_current_span());
    }

    /// Runs a background item in a tracked task, unless it is being worked on already; false if it is.
    pub fn once<F: Future<Output = ()> + Send + 'static>(&self, item: Uuid, work: F) -> bool {
        if self.stopping.is_cancelled() || !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(item) {
            return false;
        }
        let slots = Arc::clone(&self.slots);
        let busy = Busy { item, all: Arc::clone(&self.busy) };
        self.tasks.spawn(async move {
            let _busy = busy;
            let _slot = slots.acquire_owned().await;
            work.await;
        });
        true
    }

    /// The line of a sandbox.
    pub fn line(&self, sandbox: Uuid) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() > 1024 {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        Arc::clone(lines.entry(sandbox).or_default())
    }

    /// Tells everybody who waits that something about this sandbox changed.
    pub fn ring(&self, sandbox: Uuid) {
        let line = self.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned();
        if let Some(line) = line {
            line.changed.notify_waiters();
        }
    }

    /// Remembers how to cancel a running exec of this process.
    pub fn register_exec(&self, id: Uuid, cancel: CancellationToken) {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner).insert(id, cancel);
    }

    /// Forgets a finished exec.
    pub fn forget_exec(&self, id: Uuid) {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Cancels an exec; false when this process does not run it.
    pub fn cancel_exec(&self, id: Uuid) -> bool {
        let found = self.execs.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        found.inspect(CancellationToken::cancel).is_some()
    }

    /// Guards a claim: if its work ends without settling it, by an error or a panic, it is given back.
    pub fn hold(&self, claimed: Claimed) -> Held<'_> {
        Held { claimed: Some(claimed), work: self }
    }

    /// Cancelled when the server stops: nothing new is begun.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// How many tracked tasks run, for tests that wait until nothing is under way.
    #[cfg(feature = "testing")]
    pub fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Begins nothing new and waits, bounded, for what runs. Commands would end with the process and nobody would know how, so they
    /// are cancelled while there is somebody to write it down.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.stopping.cancel();
        self.tasks.close();
        self.execs.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(CancellationToken::cancel);
        tokio::time::timeout(patience, self.tasks.wait()).await.is_ok()
    }
}

/// Marks a background item as worked on, until dropped.
struct Busy {
    item: Uuid,
    all: Arc<Mutex<HashSet<Uuid>>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.item);
    }
}

/// A claim in the hands of a running task.
pub struct Held<'a> {
    claimed: Option<Claimed>,
    work: &'a Work,
}

impl Held<'_> {
    /// The transaction that settled it committed.
    pub fn settled(mut self) {
        self.claimed = None;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            self.work.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(claimed);
        }
    }
}

impl Berth {
    /// Reads something of a sandbox again whenever the sandbox may have changed, until it is settled or the wait is over.
    pub(super) async fn long_poll<T, R: Future<Output = Result<T>>>(
        &self,
        sandbox: Uuid,
        wait: Duration,
        first: T,
        settled: impl Fn(&T) -> bool,
        read: impl Fn() -> R,
    ) -> Result<T> {
        let line = self.work.line(sandbox);
        let (mut seen, patience) = (first, Instant::now() + wait);
        while !settled(&seen) && line.until_changed(patience).await {
            seen = read().await?;
        }
        Ok(seen)
    }

    /// Renews what this process holds and gives back what its tasks dropped.
    pub async fn keep_claims(&self) -> Result<()> {
        let dropped = std::mem::take(&mut *self.work.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        let mut tx = self.store.begin().await?;
        let now = tx.now().await?;
        for claimed in &dropped {
            tx.drop_claim(claimed).await?;
        }
        tx.renew_claims(self.work.owner, now).await?;
        tx.note_alive(now).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Gives every claim of this process back, so that another server goes on at once; its work has ended or is abandoned.
    pub async fn give_up_claims(&self) {
        let given = async {
            let mut tx = self.store.begin().await?;
            tx.drop_claims_of(self.work.owner).await?;
            tx.commit().await
        };
        if given.await.is_err() {
            tracing::warn!("claims could not be given back; they lapse by themselves");
        }
    }

    /// Gives back what tasks dropped, at once.
    pub async fn give_back_claims(&self) -> Result<()> {
        let dropped = std::mem::take(&mut *self.work.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        if dropped.is_empty() {
            return Ok(());
        }
        let mut tx = self.store.begin().await?;
        for claimed in &dropped {
            tx.drop_claim(claimed).await?;
        }
        Ok(tx.commit().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Traceparent;

    #[tokio::test]
    async fn a_task_works_for_the_trace_of_whoever_began_it() {
        let (work, (told, heard)) = (Work::default(), tokio::sync::oneshot::channel());
        let trace = Traceparent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        trace::within(trace.clone(), async { work.spawn(async move { told.send(trace::current()).unwrap() }) }).await;
        assert_eq!((heard.await.unwrap(), trace.is_some()), (trace, true));
    }
}
