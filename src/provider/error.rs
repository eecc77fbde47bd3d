//! What a provider may say went wrong; the kind decides what Berth may do next.

use std::fmt;
use std::time::Duration;

/// Why a provider call did not do what was asked. Only certainty deletes: everything but `Refused`, `NotFound`,
/// `Invalid`, `Failed`, `NoImage` and `Unsupported` leaves open whether it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Surely did not happen: refused before it began (also connection refused, or a missing socket, on create).
    Refused,
    /// Structural proof that this exact ref does not exist. Believed only under the row's own binding.
    NotFound,
    /// What came back under this exact ref has not the files that it had.
    Mismatch,
    /// The provider has no such verb.
    Unsupported,
    /// Too many calls; try again after the span.
    Throttled(Duration),
    /// Network, time-out on connect, 5xx: try again.
    Transient,
    /// The answer was lost; only a look can tell whether it happened.
    Indeterminate,
    /// The configuration can never work.
    Invalid,
    /// The provider answered that it failed, and not in a way that passes; a create left nothing but what it named.
    Failed,
    /// The image is not to be had; nothing was made.
    NoImage,
    /// Storage at the provider is full.
    Full,
    /// A newer fence was found: the command was not started, or the change not made, and never will be.
    Fenced,
    /// A path of the caller's: it leaves the sandbox or is malformed.
    Path,
    /// A file of the caller's does not exist.
    FileNotFound,
    /// A file of the caller's is a directory.
    IsADirectory,
    /// A path component of the caller's is no directory.
    NotADirectory,
    /// A directory of the caller's has entries.
    DirectoryNotEmpty,
    /// A file of the caller's exists already.
    FileExists,
}

impl Kind {
    /// The kind as metrics and rows name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Mismatch => "identity_mismatch",
            Self::Unsupported => "unsupported",
            Self::Throttled(_) => "throttled",
            Self::Transient => "transient",
            Self::Indeterminate => "indeterminate",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
            Self::NoImage => "no_image",
            Self::Full => "full",
            Self::Fenced => "fenced",
            Self::Path => "path",
            Self::FileNotFound => "file_not_found",
            Self::IsADirectory => "is_a_directory",
            Self::NotADirectory => "not_a_directory",
            Self::DirectoryNotEmpty => "directory_not_empty",
            Self::FileExists => "file_exists",
        }
    }

    /// Whether repeating the same call later may succeed.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Transient | Self::Throttled(_) | Self::Indeterminate)
    }
}

/// A provider's failure: a kind, a safe message of our own words, and a source that is kept from logs, rows and answers.
pub struct ProviderError {
    /// What may be concluded.
    pub kind: Kind,
    /// Berth's own words; never the provider's.
    pub message: &'static str,
    /// The provider's name of what was left behind and is to be torn down, if it says that there is something.
    pub left: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ProviderError {
    /// A failure of this kind, in our own words.
    pub fn new(kind: Kind, message: &'static str) -> Self {
        Self { kind, message, left: None, source: None }
    }

    /// What every verb about snapshots answers at a provider that takes none.
    pub fn no_snapshots() -> Self {
        Self::new(Kind::Unsupported, "this provider takes no snapshots of its own")
    }

    /// Says what was left behind, to be torn down.
    #[must_use]
    pub fn leaving(mut self, provider_ref: String) -> Self {
        self.left = Some(provider_ref);
        self
    }

    /// Keeps the cause for a debugger; it is never shown, stored or logged.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// What everything of a grant below the fence is answered.
    pub fn fenced() -> Self {
        Self::new(Kind::Fenced, "the sandbox's fence is higher than the grant")
    }

    /// The cause, for tests.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync)> {
        self.source.as_deref()
    }
}

impl fmt::Debug for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderError({}, {:?})", self.kind.as_str(), self.message)
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)
    }
}

impl std::error::Error for ProviderError {}
