//! The memory provider against the contract, and what only it can do.

use super::*;
use crate::provider::conformance::{Commands, Subject, all, command, outcome};
use crate::provider::faults::Faults;

fn spec() -> Spec {
    Spec { config: json!({}).into(), workspace_path: None }
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    all(Subject { provider: &Memory::new(), spec: &spec(), commands: Commands::Scripted }).await;
}

#[tokio::test]
async fn an_idle_decorator_keeps_the_contract() {
    all(Subject { provider: &Faults::new(Arc::new(Memory::new())), spec: &spec(), commands: Commands::Scripted }).await;
}

#[tokio::test]
async fn without_lookup_each_ensure_makes_another() {
    let memory = Memory::with_lookup(Lookup::None);
    let subject = Subject { provider: &memory, spec: &spec(), commands: Commands::Scripted };
    let sandbox = subject.sandbox().await;
    memory.ensure(&spec(), &sandbox.tag).await.unwrap();
    assert_eq!(memory.inventory().len(), 2);
    assert_eq!(memory.find(&sandbox.tag).await.unwrap_err().kind, Kind::Unsupported);
}

#[tokio::test]
async fn what_happens_behind_berths_back_is_seen() {
    let memory = Memory::new();
    let subject = Subject { provider: &memory, spec: &spec(), commands: Commands::Scripted };
    let sandbox = subject.sandbox().await;
    let running = sandbox.start(command(vec!["cat".to_owned()])).await;
    let binding = memory.binding().await.unwrap();
    assert!(memory.stop_behind(&sandbox.name));
    outcome(running).await;
    assert_eq!(memory.observe(&binding, &sandbox.name).await, Observation::Present(Presence::Stopped));
    let other = memory.rebind();
    assert_eq!(memory.observe(&binding, &sandbox.name).await, Observation::Unknown);
    assert!(memory.vanish(&sandbox.name) && !memory.vanish(&sandbox.name));
    assert_eq!(memory.observe(&other, &sandbox.name).await, Observation::Absent);
}
