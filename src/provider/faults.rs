//! Wraps any provider and breaks it by script: fails before, fails after, hangs, delays or lies.

mod decorator;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::{Kind, Observation, Provider};

/// The cause of every scripted failure: text that no log, row, event, answer or metric may ever show.
pub const CAUSE: &str = "what a provider's own exception says";

/// A method of the contract that asks the provider something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the trait's method of the same name")]
pub enum Verb {
    Binding,
    Ensure,
    Find,
    Observe,
    Realize,
    Start,
    Stop,
    Destroy,
    List,
    Fence,
    Processes,
    Exec,
    StatWalk,
    ReadTree,
    WriteTree,
    Snapshot,
    Restore,
    ProbeSnapshot,
    ListSnapshots,
    DeleteSnapshot,
    ReadFile,
    WriteFile,
    RemoveFile,
    StatFile,
    ListFiles,
    MakeDirectory,
    MoveFile,
}

/// What goes wrong with one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing is done; the caller is told this kind.
    FailBefore(Kind),
    /// It is done; the caller is told this kind instead of the answer.
    FailAfter(Kind),
    /// It is done, later.
    Delay(Duration),
    /// It is done (except `observe`, which is not asked), and the answer is false.
    Lie(Lie),
}

/// A false answer.
#[derive(Clone, Debug)]
pub enum Lie {
    /// `ensure`, `find`, `snapshot` and `restore` name this ref.
    Ref(String),
    /// `observe` says this.
    Observed(Observation),
    /// `find` and `probe_snapshot` find nothing, `list` and `list_snapshots` are empty, `destroy` and `delete_snapshot` found nothing to end.
    Nothing,
}

/// One call that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which method.
    pub verb: Verb,
    /// The object it named, if it named one.
    pub provider_ref: Option<String>,
}

/// What one call does first and last.
enum Step {
    Fault(Fault),
    Hang { after: bool, gate: Gate },
}

/// The call's side of a `Release`.
struct Gate {
    reached: watch::Sender<bool>,
    open: watch::Receiver<bool>,
}

/// Holds a hanging call; dropping it lets the call go on.
#[derive(Debug)]
pub struct Release {
    reached: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl Release {
    /// Waits until the call hangs.
    pub async fn reached(&mut self) {
        // A call that was cancelled before has been reached too.
        let _ = self.reached.wait_for(|reached| *reached).await;
    }

    /// Lets the call go on.
    pub fn release(self) {
        self.open.send_replace(true);
    }
}

impl Gate {
    async fn pass(mut self) {
        self.reached.send_replace(true);
        // A dropped `Release` opens the gate as well.
        let _ = self.open.wait_for(|open| *open).await;
    }
}

#[derive(Default)]
struct Script {
    /// Steps by the number of the call, counted from the moment they were scripted.
    steps: HashMap<Verb, VecDeque<(usize, Step)>>,
    always: HashMap<Verb, Fault>,
    seen: Vec<Call>,
}

/// A provider under faults; clones share the script.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<dyn Provider>,
    script: Arc<Mutex<Script>>,
}

impl Faults {
    /// Wraps a provider; without a script it changes nothing.
    pub fn new(inner: Arc<dyn Provider>) -> Self {
        Self { inner, script: Arc::default() }
    }

    /// The next call of this verb that has no step yet meets this fault.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.add(verb, None, Step::Fault(fault));
    }

    /// The n-th call of this verb from now on (1 is the next) meets this fault.
    pub fn nth(&self, verb: Verb, n: usize, fault: Fault) {
        self.add(verb, Some(n), Step::Fault(fault));
    }

    /// Every call of this verb without a step of its own meets this fault, until `clear`.
    pub fn always(&self, verb: Verb, fault: Fault) {
        self.lock().always.insert(verb, fault);
    }

    /// The next call of this verb hangs before anything is done.
    pub fn hang(&self, verb: Verb) -> Release {
        self.hang_at(verb, false)
    }

    /// The next call of this verb is done, and hangs before it answers.
    pub fn hang_after(&self, verb: Verb) -> Release {
        self.hang_at(verb, true)
    }

    /// Forgets every fault; calls that hang go on hanging.
    pub fn clear(&self) {
        let mut script = self.lock();
        script.steps.clear();
        script.always.clear();
    }

    /// Every call seen, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().seen.clone()
    }

    /// How often a verb was called.
    pub fn count(&self, verb: Verb) -> usize {
        self.lock().seen.iter().filter(|call| call.verb == verb).count()
    }

    fn hang_at(&self, verb: Verb, after: bool) -> Release {
        let (reached, is_reached) = watch::channel(false);
        let (open, is_open) = watch::channel(false);
        self.add(verb, None, Step::Hang { after, gate: Gate { reached, open: is_open } });
        Release { reached: is_reached, open }
    }

    fn add(&self, verb: Verb, n: Option<usize>, step: Step) {
        let mut script = self.lock();
        let steps = script.steps.entry(verb).or_default();
        let n = n.unwrap_or_else(|| (1..=steps.len()).find(|n| steps.iter().all(|(taken, _)| taken != n)).unwrap_or(steps.len() + 1));
        steps.push_back((n, step));
    }

    fn lock(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call and takes its step off the script.
    fn step(&self, verb: Verb, provider_ref: Option<&str>) -> Option<Step> {
        let mut script = self.lock();
        script.seen.push(Call { verb, provider_ref: provider_ref.map(str::to_owned) });
        let mut due = None;
        if let Some(steps) = script.steps.get_mut(&verb) {
            let mut later = VecDeque::new();
            for (n, step) in steps.drain(..) {
                if n == 1 && due.is_none() { due = Some(step) } else { later.push_back((n.saturating_sub(1).max(1), step)) }
            }
            *steps = later;
        }
        due.or_else(|| script.always.get(&verb).cloned().map(Step::Fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id;
    use crate::provider::memory::Memory;
    use crate::provider::{Destroyed, OwnerTag, Presence, Spec};

    fn under_test() -> (Memory, Faults, Spec, OwnerTag) {
        let memory = Memory::new();
        let faults = Faults::new(Arc::new(memory.clone()));
        let spec = Spec { config: serde_json::json!({}).into(), workspace_path: None };
        let tag = OwnerTag { deployment: id::new(), organization: id::new(), sandbox: id::new(), instance: id::new(), generation: 1 };
        (memory, faults, spec, tag)
    }

    #[tokio::test]
    async fn a_lost_answer_leaves_what_was_made() {
        let (memory, faults, spec, tag) = under_test();
        faults.next(Verb::Ensure, Fault::FailBefore(Kind::Refused));
        faults.next(Verb::Ensure, Fault::FailAfter(Kind::Indeterminate));
        assert_eq!(faults.ensure(&spec, &tag).await.unwrap_err().kind, Kind::Refused);
        assert!(memory.inventory().is_empty());
        assert_eq!(faults.ensure(&spec, &tag).await.unwrap_err().kind, Kind::Indeterminate);
        let made = faults.ensure(&spec, &tag).await.unwrap();
        assert_eq!(memory.inventory().len(), 1);
        assert_eq!((faults.count(Verb::Ensure), memory.calls(Verb::Ensure)), (3, 2));
        faults.nth(Verb::Destroy, 2, Fault::Lie(Lie::Nothing));
        assert_eq!(faults.destroy(&made.provider_ref).await.unwrap(), Destroyed::Ended);
        assert_eq!(faults.calls().last(), Some(&Call { verb: Verb::Destroy, provider_ref: Some(made.provider_ref) }));
    }

    #[tokio::test]
    async fn a_look_lies_fails_and_recovers() {
        let (memory, faults, spec, tag) = under_test();
        let name = faults.ensure(&spec, &tag).await.unwrap().provider_ref;
        let binding = faults.binding().await.unwrap();
        faults.next(Verb::Observe, Fault::Lie(Lie::Observed(Observation::Absent)));
        assert_eq!(faults.observe(&binding, &name).await, Observation::Absent);
        faults.always(Verb::Observe, Fault::FailBefore(Kind::Transient));
        assert_eq!(faults.observe(&binding, &name).await, Observation::Unknown);
        faults.clear();
        assert_eq!(faults.observe(&binding, &name).await, Observation::Present(Presence::Running));
        assert!(memory.vanish(&name));
        assert_eq!(faults.observe(&binding, &name).await, Observation::Absent);
    }

    #[tokio::test]
    async fn a_hanging_call_goes_on_when_it_is_released() {
        let (memory, faults, spec, tag) = under_test();
        let mut release = faults.hang_after(Verb::Ensure);
        let mut call = std::pin::pin!(faults.ensure(&spec, &tag));
        tokio::select! {
            biased;
            _ = &mut call => panic!("did not hang"),
            () = release.reached() => {}
        }
        assert_eq!(memory.inventory().len(), 1);
        release.release();
        call.await.unwrap();
    }
}
