//! What one scope's file may hold, as far as its holders know: what was acknowledged, what may yet land, and what was saved.

use std::collections::BTreeMap;

use uuid::Uuid;

/// The file's content; none where there is no file.
pub type Content = Option<String>;

/// What is known of the work in one scope.
#[derive(Debug, Default)]
pub struct Work {
    /// What the workspace may hold.
    may_hold: Vec<Content>,
    /// Writes of the present grant whose end nobody was told; they may land until the next grant, and not after it.
    in_flight: Vec<Content>,
    /// What each checkpoint may hold.
    saved: BTreeMap<Uuid, Vec<Content>>,
    /// The current checkpoint, when it was last looked at.
    pub pointer: Option<Uuid>,
    /// The pointer was moved away from the live workspace, so that either may be found.
    pub diverged: bool,
}

impl Work {
    /// A new scope: an empty workspace.
    pub fn new() -> Self {
        Self { may_hold: vec![None], ..Self::default() }
    }

    /// Whether this may be found.
    pub fn may_be(&self, found: &Content) -> bool {
        self.may_hold.contains(found) || self.in_flight.contains(found)
    }

    /// It may hold one of these as well from now on.
    pub fn widen(&mut self, by: impl IntoIterator<Item = Content>) {
        for content in by {
            if !self.may_hold.contains(&content) {
                self.may_hold.push(content);
            }
        }
    }

    /// A write was sent.
    pub fn sent(&mut self, text: &str) {
        self.in_flight.push(Some(text.to_owned()));
    }

    /// A write was acknowledged.
    pub fn landed(&mut self, text: &str) {
        self.refused(text);
        self.holds(Some(text.to_owned()));
    }

    /// A write was surely not done.
    pub fn refused(&mut self, text: &str) {
        self.in_flight.retain(|sent| sent.as_deref() != Some(text));
    }

    /// Somebody new has the scope: nothing of before lands any more.
    pub fn granted(&mut self) {
        let late = std::mem::take(&mut self.in_flight);
        self.widen(late);
    }

    /// It surely holds this, and what may yet land; but a workspace that has diverged gives way to the pointer.
    pub fn holds(&mut self, found: Content) {
        if !self.diverged {
            self.may_hold.clear();
        }
        self.widen([found]);
    }

    /// It surely is what this checkpoint holds.
    pub fn restored(&mut self, checkpoint: Uuid) {
        self.may_hold = self.of(Some(checkpoint));
    }

    /// A checkpoint is there: what it holds, the workspace held when it was made.
    pub fn noticed(&mut self, checkpoint: Uuid) {
        let held = self.may_hold.iter().chain(&self.in_flight).cloned().collect();
        self.saved.entry(checkpoint).or_insert(held);
    }

    /// What a checkpoint may hold; without one, nothing.
    pub fn of(&self, checkpoint: Option<Uuid>) -> Vec<Content> {
        checkpoint.map_or_else(|| vec![None], |id| self.saved.get(&id).cloned().unwrap_or_default())
    }

    /// Every checkpoint that was noticed.
    pub fn checkpoints(&self) -> Vec<Uuid> {
        self.saved.keys().copied().collect()
    }
}
