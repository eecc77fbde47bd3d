//! What can go wrong, in the contract's words and free of HTTP; `http::problem` gives each code its one status.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

macro_rules! codes {
    ($($name:ident),* $(,)?) => {
        /// Every error code of the contract. The text is the variant's name in `snake_case`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each code is explained at /problems/{code}")]
        pub enum Code { $($name),* }

        impl Code {
            /// All codes, in the order the contract lists them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            fn variant(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

codes! {
    MalformedJson, InvalidCursor, InvalidPath,
    Unauthorized, InvalidToken,
    Forbidden, ScopeEscalation, ReadOnlyLease, CapabilityNotGranted,
    NotFound, RouteNotFound, FileNotFound, ExecNotFound, NoCurrentCheckpoint,
    MethodNotAllowed, NotAcceptable,
    LeaseConflict, LeaseNotActive, LeaseExpired, LeaseTakenOver, StaleGeneration, InstanceLost, InstanceNotRunning,
    CaptureInProgress, OperationsInProgress, TransitionInProgress, RotationInProgress, ConfigurationConflict, CaptureFailed,
    UnsavedChanges, Superseded, RevisionConflict, CheckpointIntegrity, CheckpointUnavailable, CheckpointRequired, CheckpointInUse,
    SandboxInUse, EnvironmentInUse, EnvironmentArchived, InUse, NameTaken, ResumeFailed, ResumeUnavailable,
    ProviderExpiryUnattested, OperationUnknown, IdempotencyKeyInUse, FileExists, IsADirectory, NotADirectory, DirectoryNotEmpty,
    LastAdminKey,
    EventsExpired, OutputExpired,
    PreconditionFailed,
    PayloadTooLarge, ArchiveLimitExceeded,
    UnsupportedMediaType,
    RangeNotSatisfiable,
    InvalidRequest, ConfigInvalid, SecretMissing, ArchiveUnsafe, ArchiveInvalid, DigestMismatch, DestinationNotAllowed,
    IdempotencyKeyMismatch,
    GenerationRequired, PreconditionRequired,
    RateLimited, QuotaExceeded,
    Internal, OrphanUnrecorded,
    ProviderError, ImageUnavailable,
    ProviderUnavailable, StorageUnavailable, ShuttingDown, Draining,
    ProviderTimeout,
    StorageFull,
}

impl Code {
    /// The code as the wire shows it.
    pub fn as_str(self) -> String {
        let mut text = String::new();
        for (index, letter) in self.variant().char_indices() {
            if letter.is_ascii_uppercase() && index > 0 {
                text.push('_');
            }
            text.push(letter.to_ascii_lowercase());
        }
        text
    }

    /// The code whose text this is.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// One thing wrong with one place of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// JSON pointer into the body, or `?name` for a query parameter.
    pub pointer: String,
    /// What is wrong there, for a person.
    pub message: String,
}

/// A refusal or failure, told so that the caller knows what to do next. Never carries a provider's own words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct Error {
    /// Which code of the contract.
    pub code: Code,
    /// One or two sentences for a person: what happened, and what to do.
    pub detail: String,
    /// Every place of the input that is wrong.
    pub errors: Vec<FieldError>,
    /// When the identical request may be sent again.
    pub retry_after: Option<Duration>,
    /// Verbs that are legal now.
    pub allowed_actions: Vec<&'static str>,
    /// Further members of the problem, such as `current`, `carried`, `integrity_code`.
    pub facts: Map<String, Value>,
}

impl Error {
    /// An error of this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), errors: Vec::new(), retry_after: None, allowed_actions: Vec::new(), facts: Map::new() }
    }

    /// 404: unknown here, or another organization's; the two are not told apart.
    pub fn not_found(noun: &str) -> Self {
        Self::new(Code::NotFound, format!("No such {noun}."))
    }

    /// 422 about one place of the input.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid_fields(vec![FieldError { pointer: pointer.into(), message: message.into() }])
    }

    /// 422 about several places of the input at once.
    pub fn invalid_fields(errors: Vec<FieldError>) -> Self {
        let detail = errors.iter().map(|e| format!("{} {}", e.pointer, e.message)).collect::<Vec<_>>().join("; ");
        let mut error = Self::new(Code::InvalidRequest, detail);
        error.errors = errors;
        error
    }

    /// Adds a member to the problem.
    #[must_use]
    pub fn fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Says which verbs are legal now.
    #[must_use]
    pub fn allow(mut self, actions: &[&'static str]) -> Self {
        self.allowed_actions = actions.to_vec();
        self
    }
}

/// A result whose failure is told in the contract's words.
pub type Result<T> = std::result::Result<T, Error>;
