//! Words of the wire: how enums, times and free-form objects appear in the API description.
//!
//! What a caller sends is a closed `enum`; what Berth answers is a string with `x-open-enum`, because later versions may add words.

use std::borrow::Cow;

use serde_json::json;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::schema::{AdditionalProperties, KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{Object, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::error::Code;
use crate::model::{checkpoint, environment, instance, key, lease, operation};

macro_rules! schema_only {
    ($name:ident, $schema:expr) => {
        #[doc = concat!("Schema of `", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::Object($schema))
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    };
}

macro_rules! open_words {
    ($($name:ident of $words:expr, $text:literal;)*) => { $(schema_only!($name, open($words, $text));)* };
}

macro_rules! closed_words {
    ($($name:ident of $words:expr, $text:literal;)*) => { $(schema_only!($name, closed($words, $text));)* };
}

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).description(Some(description))
}

fn open<'a>(words: impl IntoIterator<Item = &'a str>, description: &str) -> Object {
    let words: Vec<&str> = words.into_iter().collect();
    let extension = ExtensionsBuilder::new().add("x-open-enum", json!(words)).build();
    text(&format!("{description} One of {}; later versions may add words.", words.join(", "))).extensions(Some(extension)).build()
}

fn closed<'a>(words: impl IntoIterator<Item = &'a str>, description: &str) -> Object {
    text(description).enum_values(Some(words.into_iter().collect::<Vec<_>>())).build()
}

/// The words of one of the model's enums.
macro_rules! all {
    ($type:path) => {
        <$type>::ALL.iter().map(|one| one.as_str())
    };
}

open_words! {
    LeaseStatus of all!(lease::Status), "Where the lease stands.";
    CleanupStatus of ["none", "pending", "succeeded", "failed", "quarantined"], "How the teardown of the instance goes.";
    GrantedPolicy of all!(lease::Policy), "What happens to the instance when its lease ends.";
    GrantedAccess of all!(lease::Access), "What the holder may do.";
    AcquisitionOutcome of all!(lease::How), "How the acquire came by its instance.";
    InstanceStatus of all!(instance::Status), "Where the instance stands.";
    CheckpointStatus of all!(checkpoint::Status), "Where the checkpoint stands.";
    RetentionReason of ["current", "last_portable", "keep_last", "keep_for", "in_use", "surplus"], "Why a checkpoint stays; only `surplus` ones leave.";
    CheckpointKind of all!(checkpoint::Kind), "What the checkpoint is made of.";
    Consistency of all!(checkpoint::Consistency), "Whether anything could have written while the bytes were taken.";
    ExecStatus of all!(operation::Status), "Where the command stands.";
    Encoding of ["utf-8", "base64"], "How the stream's bytes are written here; `base64` when they are not valid UTF-8 or it was asked for.";
    IdleAction of all!(environment::OnIdle), "What an idle instance becomes.";
    SavePolicy of all!(lease::Save), "How the workspace is saved.";
    FileKind of ["file", "directory", "symlink", "other"], "What the entry is.";
    IsolationKind of ["none", "bubblewrap", "container", "remote"], "What stands between a command and the machine.";
    GrantedScope of all!(key::Scope), "What the key may do.";
    CredentialKind of ["api_key", "lease_token"], "What the request was made with.";
    ProbeStepName of ["create", "run", "destroy"], "Which step of a probe.";
    DestroyStatus of ["destroyed", "pending", "skipped_live", "failed"], "What became of the instance.";
    LimitSource of ["default", "setting", "environment"], "Who set the limit.";
    MaintenanceKind of ["lease", "instance", "object", "snapshot", "artifact"], "What was looked at.";
    MaintenanceAction of ["expire", "drain", "destroy", "delete", "destroyed", "already_gone", "would_destroy", "skipped"], "What is done with it, or would be.";
    ExecStreamEventType of ["start", "stdout", "stderr", "exit", "error", "heartbeat"], "What an event of a streamed command tells.";
    ActorKind of ["api_key", "lease_token", "system"], "Who caused something.";
    ReadyStatus of ["ready"], "Whether the service can do its work.";
    LiveStatus of ["ok"], "That the process lives.";
}

closed_words! {
    UnsavedChanges of ["fail", "capture", "discard"], "What to do with unsaved work.";
    RecordedKind of all!(checkpoint::Kind), "What the checkpoint is made of.";
    Access of all!(lease::Access), "`read_write`: the one writer. `read_only`: looks on and runs nothing.";
    Policy of all!(lease::Policy), "`ephemeral`: destroyed at the end. `reuse_by_environment`: stopped and kept for the next lease of the scope. `retain_on_failure`: destroyed, but kept as evidence when the run failed.";
    OnSameHolder of all!(lease::OnSameHolder), "When the holder has a live lease already: `attach` gives it, `take_over` gives it at the next epoch and fences the former process off, `refuse` refuses.";
    OnUnavailable of all!(lease::OnUnavailable), "When the selected checkpoint cannot be had: `fail` creates nothing, `older_revision` uses the newest older portable one, `empty` starts empty knowingly.";
    Outcome of all!(lease::Outcome), "How the run went.";
    Disposition of all!(lease::Disposition), "What becomes of the instance.";
    Save of all!(lease::Save), "`auto`: nothing if clean, else a portable archive. `none`: consent to lose what is unsaved.";
    OnIdle of all!(environment::OnIdle), "What an idle instance becomes: `stop` keeps it, `destroy` captures it if dirty and ends it.";
    CaptureKind of ["auto", "provider_native", "portable_workspace"], "`auto`: nothing if the sandbox is clean, else a portable archive.";
    OutputEncoding of ["auto", "base64"], "`auto`: text where the bytes are valid UTF-8, base64 where they are not.";
    StdinEncoding of ["utf-8", "base64"], "How `stdin` is written here.";
    OnDisconnect of ["kill", "keep"], "When the client leaves before the answer: `kill` ends the command and its whole tree, `keep` lets it run.";
    KeyScope of all!(key::Scope), "`admin` contains `write` contains `read`; `operator` stands alone.";
}

schema_only!(
    Timestamp,
    text("A moment: RFC 3339, UTC, with milliseconds.")
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples([json!("2026-11-29T15:04:05.123Z")])
        .build()
);

schema_only!(
    Scope,
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Object))
        .description(Some("The caller's own name for a logical sandbox: a flat object of 1 to 16 strings. Two scopes with the same pairs are the same scope."))
        .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(Schema::Object(text("Any text.").max_length(Some(256)).build())))))
        .min_properties(Some(1))
        .max_properties(Some(16))
        .build()
);

schema_only!(
    EnvironmentVariables,
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Object))
        .description(Some("Variables by name."))
        .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(Schema::Object(text("The value.").build())))))
        .build()
);

macro_rules! free_form {
    ($($name:ident, $text:literal;)*) => { $(schema_only!(
        $name,
        ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::Object))
            .description(Some($text))
            .additional_properties(Some(AdditionalProperties::FreeForm(true)))
            .build()
    );)* };
}

free_form! {
    Metadata, "Anything the caller wants to find again; at most 64 KiB as JSON. Never interpreted.";
    ProviderConfig, "The provider's configuration, as its `config_schema` says.";
    TaskReport, "What the pass counted, by name.";
    EventData, "Identifiers and words; which ones depends on the event's type.";
    ConfigSchema, "A JSON Schema (2020-12).";
    PluginManifest, "A plugin's manifest: its id, version, displayName and environmentDrivers with their configSchema.";
    Description, "An `OpenAPI` 3.1 document.";
}

schema_only!(ErrorCode, {
    let words: Vec<String> = Code::ALL.iter().map(|code| code.as_str()).collect();
    open(words.iter().map(String::as_str), "Which problem; each is explained at `/problems/{code}`.")
});

schema_only!(
    AnyValue,
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some("A value whose type depends on the code.")).build()
);

/// The words of one of the model's enums, for a filter.
pub fn of<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().copied().map(word).collect()
}
