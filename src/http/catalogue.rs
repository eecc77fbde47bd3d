//! The catalogue of problems: each code's one status, title, whether a retry can help, what it means and what to do.

use crate::error::Code;

/// What is always true of one code.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The one HTTP status.
    pub status: u16,
    /// Whether the identical request may succeed later.
    pub retryable: bool,
    /// A short headline.
    pub title: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

macro_rules! catalogue {
    ($($code:ident $status:literal $retry:ident $title:literal $meaning:literal $advice:literal)*) => {
        /// The entry of a code; a code without one does not compile.
        pub fn entry(code: Code) -> Entry {
            match code {
                $(Code::$code => Entry { status: $status, retryable: retry!($retry), title: $title, meaning: $meaning, advice: $advice }),*
            }
        }
    };
}

macro_rules! retry {
    (again) => {
        true
    };
    (never) => {
        false
    };
}

catalogue! {
    MalformedJson 400 never "The body is not JSON"
        "The request body could not be read as one JSON value, or is nested deeper than 64 levels."
        "Send one JSON object encoded as UTF-8; `detail` says where reading stopped."
    InvalidCursor 400 never "The cursor is not valid"
        "The cursor was not made by this list, or the filters changed since it was made."
        "Begin again without a cursor, and keep the filters the same from page to page."
    InvalidPath 400 never "The path cannot be used"
        "The path leaves the sandbox, climbs above the workspace, or cannot be a path at all."
        "Use a path relative to the workspace, or an absolute one inside the sandbox."
    Unauthorized 401 never "No valid key"
        "The request carries no API key or lease token, or one that is unknown, expired or revoked."
        "Send `Authorization: Bearer berth_sk_…` with a living key."
    InvalidToken 401 never "The lease token is not valid"
        "The bearer looks like a lease token but was not signed by this deployment."
        "Use the `token` of the latest acquire, renew or recover answer."
    Forbidden 403 never "Not allowed"
        "The credential is valid but lacks the scope this needs, or a lease token may never do this."
        "Use a key with the scope that `detail` names."
    ScopeEscalation 403 never "A key cannot grant what it lacks"
        "The new key was to have a scope that its maker does not have."
        "Ask for a subset of your own key's scopes, or use a key that has them."
    ReadOnlyLease 403 never "The lease is read-only"
        "A read-only lease looks on; it runs and changes nothing."
        "Acquire with `access: read_write`, or do this from the writer's lease."
    CapabilityNotGranted 403 never "The sandbox cannot do this"
        "The environment's provider does not have the capability this needs."
        "See `GET /v1/providers` for what each provider can do, and choose another environment."
    NotFound 404 never "Not found"
        "There is no such thing in this organization. Another organization's things answer the same."
        "Check the id, and that the key belongs to the organization that owns it."
    RouteNotFound 404 never "No such route"
        "No operation of the API has this path."
        "See `/docs` or `/openapi.json` for every path."
    FileNotFound 404 never "No such file"
        "The sandbox is fine; it has no file or directory at this path."
        "List the parent directory, or put the file first."
    ExecNotFound 404 never "No such exec"
        "The lease has no exec with this id, or it is older than the 24 h for which execs are kept."
        "List the lease's execs."
    NoCurrentCheckpoint 404 never "No current checkpoint"
        "Nothing was captured yet, or the pointer was rolled back to none."
        "Capture from the live lease, or go on without one."
    MethodNotAllowed 405 never "The method is not allowed"
        "The path exists, but not with this method."
        "The `Allow` header lists the methods."
    NotAcceptable 406 never "No acceptable form"
        "None of the media types in `Accept` can be produced here."
        "Accept one of the types that the API description lists."
    LeaseConflict 409 again "Another holder has the sandbox"
        "Only one lease may write to a sandbox, and another holder's is live."
        "Wait and send the request again, or raise `wait_seconds` to wait in line; `detail` names holder and expiry."
    LeaseNotActive 409 never "The lease is not active"
        "The lease is pending, or over; nothing can be done under it."
        "Acquire again, or look at the lease's `status`."
    LeaseExpired 409 never "The lease has expired"
        "The time to live passed before this request; an expired lease does nothing more."
        "Acquire again, and renew in good time."
    LeaseTakenOver 409 never "The lease was taken over"
        "Another process of the same holder took the lease over; this epoch is fenced off for good."
        "Stop. The process with the current epoch goes on with the work."
    StaleGeneration 409 never "The sandbox has moved on"
        "The request was made for an incarnation that no longer exists; its effect would be lost or wrong."
        "Read the lease, look at what is in the workspace now, and decide anew; never resend it blindly."
    InstanceLost 409 never "The instance is gone"
        "The provider proved that the sandbox's instance no longer exists."
        "Recover the lease: `POST /v1/leases/{id}/recover` restores the current checkpoint."
    InstanceNotRunning 409 never "The instance is not running"
        "What was asked needs a running instance and may not start one."
        "Let a writer acquire or resume it first."
    CaptureInProgress 409 again "A capture is going on"
        "The workspace is being captured, and writes wait for that."
        "Send the same request again after `Retry-After`."
    OperationsInProgress 409 again "Operations are going on"
        "Commands or writes are running, and this has to wait for them."
        "Send it again after `Retry-After`, or cancel the work (`cancel_active_work` at a release)."
    TransitionInProgress 409 again "A transition is going on"
        "The sandbox is being stopped, started, released or recovered."
        "Send the same request again after `Retry-After`."
    RotationInProgress 409 again "A rotation is going on"
        "The instance is being replaced before its provider ends it."
        "Send the same request again after `Retry-After`."
    ConfigurationConflict 409 never "The live instance is configured differently"
        "The sandbox's instance was made with another configuration and cannot be replaced now."
        "Wait until the other leases end, or consent to lose unsaved work with `discard_workspace: true`."
    CaptureFailed 409 never "The workspace could not be captured"
        "The work could not be saved, so the instance was not touched."
        "Try again, or consent to lose it with `discard_workspace: true`."
    UnsavedChanges 409 never "There are unsaved changes"
        "The workspace holds work that no checkpoint has."
        "Say what to do with it: `unsaved_changes: capture` or `discard`."
    Superseded 409 never "A later checkpoint is current"
        "A later revision became current; going back must be meant."
        "Send `move_back: true` if it is meant."
    RevisionConflict 409 never "The revision is recorded differently"
        "A checkpoint with this revision exists, with another generation, kind or reference."
        "A revision names one content; make a new one."
    CheckpointIntegrity 409 never "The checkpoint is damaged"
        "The artifact does not match what was recorded; `integrity_code` says how. Nothing was restored."
        "Restore an older revision (`on_unavailable: older_revision`), or start empty knowingly."
    CheckpointUnavailable 409 never "The checkpoint cannot be had"
        "The selected revision is gone, bound to another account, or work was lost without consent."
        "Choose `on_unavailable: older_revision` or `empty`."
    CheckpointRequired 409 never "A checkpoint is required first"
        "The environment demands a verified portable checkpoint before an instance goes, and there is none up to date."
        "Capture first, then repeat."
    CheckpointInUse 409 never "The checkpoint is current"
        "The current checkpoint is what the sandbox would be restored from; it cannot be deleted."
        "Attach another one first."
    SandboxInUse 409 never "The sandbox has live leases"
        "A sandbox with live leases is not deleted."
        "Release the leases first."
    EnvironmentInUse 409 never "The environment has live instances"
        "An environment with live instances is not deleted; the counts are in the problem."
        "Release them first, or ask for their destruction with `?destroy=true`."
    EnvironmentArchived 409 never "The environment is archived"
        "The environment was deleted; its checkpoints can be read, nothing new starts in it."
        "Use another environment."
    InUse 409 never "Something still needs this"
        "Unfinished work names it."
        "Repeat when that work has ended."
    NameTaken 409 never "The name is taken"
        "Another one of this organization has the name."
        "Choose another name."
    ResumeFailed 409 never "The stopped instance could not be started"
        "The provider refused to start exactly the stopped instance. It is preserved; nothing was replaced."
        "Try again later, or give it up with `discard_workspace: true` or DELETE."
    ResumeUnavailable 409 never "The provider no longer resumes"
        "The provider no longer offers what is needed to start the stopped instance. It is preserved."
        "Bring the provider back, or give the instance up with `discard_workspace: true` or DELETE."
    ProviderExpiryUnattested 409 never "The provider attests no expiry"
        "`require_provider_expiry` was asked, and the provider does not promise the requested end."
        "Leave it out, or use a provider that attests its expiry."
    OperationUnknown 409 never "It may or may not have happened"
        "The answer to an earlier operation was lost. Berth never runs it a second time by itself."
        "Look at the workspace, then decide whether to run it again as a new operation."
    IdempotencyKeyInUse 409 again "The same request is still running"
        "Another request with this Idempotency-Key has not finished."
        "Send the same request again after `Retry-After`."
    FileExists 409 never "The target exists"
        "Something is at the target path already."
        "Choose another path, or send `overwrite: true`."
    IsADirectory 409 never "It is a directory"
        "A file was expected at this path."
        "List it, or name a file in it; removing a whole tree needs `recursive=true`."
    NotADirectory 409 never "It is not a directory"
        "A directory was expected at this path."
        "Name a directory."
    DirectoryNotEmpty 409 never "The directory is not empty"
        "Only an empty directory is removed without `recursive`."
        "Send `recursive=true` if the whole tree is meant."
    LastAdminKey 409 never "The last admin key stays"
        "Without it nobody could administer the organization."
        "Make another admin key first."
    EventsExpired 410 never "These events are no longer kept"
        "The position is older than the oldest kept event, which `oldest_seq` names."
        "Read the present state, then go on from `oldest_seq`."
    OutputExpired 410 never "The output is no longer kept"
        "Output is kept for 24 h."
        "Run the command again if its output is needed."
    PreconditionFailed 412 never "It was changed in between"
        "The version in `If-Match` is not the current one."
        "Read it again and repeat the change on the present version."
    PayloadTooLarge 413 never "The body is too large"
        "A JSON body has at most 1 MiB."
        "Send less; files and archives have their own routes."
    ArchiveLimitExceeded 413 never "The archive is too large"
        "The archive has too many entries, unpacks to too much, or is compressed beyond belief."
        "Send a smaller tree, or leave out what can be made again."
    UnsupportedMediaType 415 never "The media type is not supported"
        "The body's `Content-Type` or `Content-Encoding` is not one this operation reads."
        "Send `Content-Type: application/json`, not compressed."
    RangeNotSatisfiable 416 never "No such range"
        "The range lies outside the content."
        "Ask for a range within the size that `Content-Range` tells."
    InvalidRequest 422 never "The request is not valid"
        "Fields or parameters are missing, unknown or have values that are not allowed; `errors` lists every one."
        "Correct each place that `errors` points at."
    ConfigInvalid 422 never "The configuration is not valid"
        "The provider's schema does not allow this `config`."
        "Compare with `config_schema` in `GET /v1/providers`."
    SecretMissing 422 never "A secret is missing"
        "The configuration refers to a secret that does not exist."
        "Put the secret first, or correct its name."
    ArchiveUnsafe 422 never "The archive is not safe"
        "An entry would leave the workspace, write through a link, or is a device or a pipe."
        "Make the archive of regular files, directories and links inside it."
    ArchiveInvalid 422 never "The archive is not valid"
        "The bytes are not a complete archive of a known kind."
        "Send a complete tar, plain or compressed with zstd."
    DigestMismatch 422 never "The digest does not match"
        "The bytes that arrived are not the bytes that were announced."
        "Send them again."
    DestinationNotAllowed 422 never "The destination is not allowed"
        "The address lies where this deployment does not connect to."
        "Use a public https address, or ask the operator to allow it."
    IdempotencyKeyMismatch 422 never "The key belongs to another request"
        "This Idempotency-Key was used with another body."
        "Use a new key for a new request."
    GenerationRequired 428 never "The generation is required"
        "A write with an API key must say which incarnation it is meant for."
        "Send `Berth-Generation` with the lease's `generation`, or use the lease's token."
    PreconditionRequired 428 never "A precondition is required"
        "The change must say which version it was made for."
        "Send `If-Match`."
    RateLimited 429 again "Too many requests"
        "The key sends more requests than it may."
        "Slow down and send it again after `Retry-After`."
    QuotaExceeded 429 again "A quota is used up"
        "The organization or environment has as many as it may; `limit`, `value` and `usage` say of what."
        "Release what is not needed, or ask for a higher quota."
    Internal 500 never "Something failed in Berth"
        "This is a defect, not something the request did."
        "Tell the operator the `request_id`."
    OrphanUnrecorded 500 never "An object could not be recorded"
        "Something was made at the provider while the database was away. Its name is kept and it will be cleaned up."
        "Look at the lease before trying again."
    ProviderError 502 never "The provider failed"
        "The provider refused or failed in a way that does not pass by itself."
        "Check the environment's configuration and the provider's own state."
    ImageUnavailable 502 never "The image cannot be had"
        "The provider could not find or fetch the image."
        "Check the image's name and the registry's credentials."
    ProviderUnavailable 503 again "The provider does not answer"
        "The provider is down or overloaded."
        "Send the same request again after `Retry-After`."
    StorageUnavailable 503 again "The storage does not answer"
        "The database or the archive store cannot be used now."
        "Send the same request again after `Retry-After`."
    ShuttingDown 503 again "The server is stopping"
        "This server finishes what it has and takes nothing new."
        "Send the same request again after `Retry-After`."
    Draining 503 again "The deployment is draining"
        "An operator stopped new work; renew, release and delete go on."
        "Send the same request again after `Retry-After`."
    ProviderTimeout 504 never "The provider took too long"
        "The provider did not answer in time; whether it acted is being found out."
        "Look at the lease, then decide."
    StorageFull 507 never "The storage is full"
        "There is no room for these bytes."
        "Remove what is not needed, or ask the operator for room."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained_and_has_an_error_status() {
        for code in Code::ALL {
            let entry = entry(*code);
            assert!((400..600).contains(&entry.status), "{code:?}");
            for text in [entry.title, entry.meaning, entry.advice] {
                assert!(text.len() > 5, "{code:?}");
            }
            if matches!(entry.status, 429 | 503) {
                assert!(entry.retryable, "{code:?}");
            }
        }
    }
}
