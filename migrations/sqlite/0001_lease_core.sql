-- The lease core: who may use what, what exists, what must not be lost.

CREATE TABLE deployment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id BLOB NOT NULL,
    signing_key BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE organization (
    id BLOB PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    event_seq INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE api_key (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    secret_hash TEXT NOT NULL UNIQUE,
    expires_at INTEGER,
    revoked_at INTEGER,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at, id);

CREATE TABLE environment (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    provider TEXT NOT NULL,
    config TEXT NOT NULL CHECK (json_valid(config)),
    policy TEXT CHECK (policy IN ('ephemeral', 'reuse_by_environment', 'retain_on_failure')),
    ttl_ms INTEGER NOT NULL,
    max_ttl_ms INTEGER NOT NULL,
    idle_timeout_ms INTEGER NOT NULL,
    on_idle TEXT NOT NULL CHECK (on_idle IN ('stop', 'destroy')),
    retain_ms INTEGER NOT NULL,
    checkpoint_policy TEXT NOT NULL CHECK (json_valid(checkpoint_policy)),
    workspace_path TEXT,
    max_live_instances INTEGER,
    metadata TEXT NOT NULL CHECK (json_valid(metadata)),
    version INTEGER NOT NULL DEFAULT 1,
    archived_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (organization_id, id)
) STRICT;
CREATE UNIQUE INDEX environment_name ON environment (organization_id, name) WHERE archived_at IS NULL;
CREATE INDEX environment_by_organization ON environment (organization_id, created_at, id);

-- The sandbox row is the lock of everything below it: a transaction that writes a lease, an instance, a checkpoint or an
-- operation updates this row first.
CREATE TABLE sandbox (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL,
    environment_id BLOB NOT NULL,
    scope TEXT CHECK (json_valid(scope)),
    scope_key TEXT,
    generation INTEGER NOT NULL DEFAULT 1 CHECK (generation >= 1),
    workspace_seq INTEGER NOT NULL DEFAULT 0,
    synced_seq INTEGER,
    grant_seq INTEGER NOT NULL DEFAULT 0,
    pointer_seq INTEGER NOT NULL DEFAULT 0,
    lock_seq INTEGER NOT NULL DEFAULT 0,
    instance_id BLOB,
    current_checkpoint_id BLOB,
    pointer_is_attached INTEGER GENERATED ALWAYS AS (CASE WHEN current_checkpoint_id IS NULL THEN NULL ELSE TRUE END) STORED,
    diverged INTEGER NOT NULL DEFAULT FALSE,
    unsaved_loss INTEGER NOT NULL DEFAULT FALSE,
    process_open INTEGER NOT NULL DEFAULT FALSE,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CHECK (synced_seq IS NULL OR synced_seq <= workspace_seq),
    CHECK ((scope IS NULL) = (scope_key IS NULL)),
    UNIQUE (organization_id, id),
    UNIQUE (organization_id, environment_id, scope_key),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id),
    FOREIGN KEY (id, instance_id) REFERENCES instance (sandbox_id, id) DEFERRABLE INITIALLY DEFERRED,
    FOREIGN KEY (id, current_checkpoint_id, pointer_is_attached) REFERENCES checkpoint (sandbox_id, id, is_attached) DEFERRABLE INITIALLY DEFERRED
) STRICT;
CREATE INDEX sandbox_by_organization ON sandbox (organization_id, created_at, id);

CREATE TABLE instance (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL,
    environment_id BLOB NOT NULL,
    sandbox_id BLOB NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 1),
    role TEXT NOT NULL CHECK (role IN ('current', 'successor', 'retired')),
    provider TEXT NOT NULL,
    binding TEXT,
    provider_ref TEXT,
    config TEXT NOT NULL CHECK (json_valid(config)),
    configured_path TEXT,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('creating', 'running', 'stopping', 'stopped', 'starting', 'draining', 'pending_cleanup', 'destroyed', 'lost')),
    quiet INTEGER NOT NULL DEFAULT TRUE,
    owed_fence INTEGER,
    hold_reason TEXT CHECK (hold_reason IN ('capture_failed')),
    retire_reason TEXT,
    disposition TEXT CHECK (disposition IN ('keep_running', 'stop_and_retain', 'destroy')),
    workspace_path TEXT,
    provider_expires_at INTEGER,
    observed_at INTEGER,
    create_called_at INTEGER,
    provision_deadline INTEGER NOT NULL,
    cleanup_attempts INTEGER NOT NULL DEFAULT 0,
    cleanup_next_at INTEGER,
    cleanup_error_kind TEXT,
    quarantine_reason TEXT,
    used_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    running_at INTEGER,
    stopped_at INTEGER,
    retired_at INTEGER,
    destroyed_at INTEGER,
    updated_at INTEGER NOT NULL,
    CHECK ((role = 'retired') = (status IN ('pending_cleanup', 'destroyed', 'lost'))),
    CHECK ((status = 'pending_cleanup') = (cleanup_next_at IS NOT NULL)),
    CHECK (hold_reason IS NULL OR role = 'current'),
    CHECK (provider_ref IS NULL OR binding IS NOT NULL),
    CHECK (status IN ('creating', 'pending_cleanup', 'destroyed', 'lost') OR provider_ref IS NOT NULL),
    UNIQUE (organization_id, id),
    UNIQUE (sandbox_id, id),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id)
) STRICT;
CREATE UNIQUE INDEX instance_one_current_one_successor ON instance (sandbox_id, role) WHERE role <> 'retired';
CREATE UNIQUE INDEX instance_one_generation ON instance (sandbox_id, generation) WHERE retire_reason IS NULL OR retire_reason <> 'second_ref';
CREATE UNIQUE INDEX instance_one_owner_of_a_ref ON instance (provider, binding, provider_ref) WHERE role <> 'retired' AND provider_ref IS NOT NULL;
CREATE INDEX instance_by_organization ON instance (organization_id, created_at, id);
CREATE INDEX instance_by_ref ON instance (provider, provider_ref);
CREATE INDEX instance_cleanup_due ON instance (cleanup_next_at) WHERE status = 'pending_cleanup';
CREATE INDEX instance_unsettled ON instance (updated_at) WHERE status IN ('creating', 'starting', 'stopping', 'draining');
CREATE INDEX instance_idle ON instance (used_at) WHERE status IN ('running', 'stopped');

CREATE TABLE lease (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL,
    sandbox_id BLOB NOT NULL,
    environment_id BLOB NOT NULL,
    instance_id BLOB,
    generation INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 1,
    grant_seq INTEGER NOT NULL DEFAULT 0,
    status TEXT NOT NULL CHECK (status IN ('pending', 'active', 'retained', 'pending_cleanup', 'released', 'expired', 'failed')),
    ends_as TEXT CHECK (ends_as IN ('released', 'expired', 'failed')),
    policy TEXT NOT NULL CHECK (policy IN ('ephemeral', 'reuse_by_environment', 'retain_on_failure')),
    access TEXT NOT NULL CHECK (access IN ('read_write', 'read_only')),
    holder TEXT NOT NULL,
    harness TEXT,
    ttl_ms INTEGER NOT NULL CHECK (ttl_ms > 0),
    expires_at INTEGER,
    max_expires_at INTEGER,
    requested_expires_at INTEGER,
    require_provider_expiry INTEGER NOT NULL DEFAULT FALSE,
    retain_until INTEGER,
    evidence INTEGER NOT NULL DEFAULT FALSE,
    plan TEXT NOT NULL CHECK (json_valid(plan)),
    acquisition TEXT CHECK (json_valid(acquisition)),
    release TEXT CHECK (json_valid(release)),
    failure_code TEXT,
    failure_reason TEXT,
    failure_facts TEXT CHECK (json_valid(failure_facts)),
    metadata TEXT NOT NULL CHECK (json_valid(metadata)),
    acquired_at INTEGER,
    renewed_at INTEGER,
    released_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CHECK ((status = 'pending_cleanup') = (ends_as IS NOT NULL)),
    CHECK (status <> 'active' OR (expires_at IS NOT NULL AND instance_id IS NOT NULL)),
    CHECK (status <> 'pending' OR expires_at IS NULL),
    CHECK ((status = 'retained') = (retain_until IS NOT NULL)),
    UNIQUE (organization_id, id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id),
    FOREIGN KEY (sandbox_id, instance_id) REFERENCES instance (sandbox_id, id)
) STRICT;
CREATE UNIQUE INDEX lease_one_writer ON lease (sandbox_id) WHERE status IN ('pending', 'active') AND access = 'read_write';
CREATE UNIQUE INDEX lease_one_of_a_holder ON lease (sandbox_id, holder) WHERE status IN ('pending', 'active');
CREATE INDEX lease_by_organization ON lease (organization_id, created_at, id);
CREATE INDEX lease_by_sandbox ON lease (sandbox_id, created_at);
CREATE INDEX lease_by_instance ON lease (instance_id);
CREATE INDEX lease_due ON lease (expires_at) WHERE status = 'active';
CREATE INDEX lease_retained_due ON lease (retain_until) WHERE status = 'retained';
CREATE INDEX lease_unsettled ON lease (updated_at) WHERE status IN ('pending', 'pending_cleanup');

CREATE TABLE claim (
    subject_id BLOB NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('provision', 'gate', 'cleanup', 'recover', 'operation', 'idempotency')),
    token BLOB NOT NULL,
    owner BLOB NOT NULL,
    detail TEXT NOT NULL,
    claimed_until INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (subject_id, kind)
) STRICT;
CREATE INDEX claim_by_owner ON claim (owner);

CREATE TABLE artifact (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    kind TEXT NOT NULL CHECK (kind IN ('provider_native', 'portable_workspace')),
    provider TEXT,
    binding TEXT,
    object_key TEXT NOT NULL,
    archive_sha256 TEXT,
    size_bytes INTEGER,
    tree TEXT CHECK (json_valid(tree)),
    sandbox_id BLOB,
    status TEXT NOT NULL CHECK (status IN ('stored', 'deleting', 'deleted')),
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (organization_id, id),
    UNIQUE (kind, object_key)
) STRICT;
CREATE INDEX artifact_deletion_due ON artifact (next_attempt_at) WHERE status = 'deleting';

CREATE TABLE checkpoint (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL,
    sandbox_id BLOB NOT NULL,
    instance_id BLOB,
    generation INTEGER NOT NULL,
    workspace_seq INTEGER,
    kind TEXT NOT NULL CHECK (kind IN ('provider_native', 'portable_workspace')),
    status TEXT NOT NULL CHECK (status IN ('capturing', 'recorded', 'attached', 'detached', 'failed', 'superseded')),
    is_attached INTEGER GENERATED ALWAYS AS (status = 'attached') STORED,
    artifact_id BLOB,
    parent_id BLOB,
    provider_ref TEXT,
    workspace_revision TEXT,
    consistency TEXT CHECK (consistency IN ('quiescent', 'paused', 'live')),
    warnings TEXT NOT NULL CHECK (json_valid(warnings)),
    source_turn_id TEXT,
    source_tool_call_id TEXT,
    failure_code TEXT,
    attached_at INTEGER,
    detached_at INTEGER,
    superseded_by BLOB,
    expires_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CHECK (status NOT IN ('recorded', 'attached', 'detached') OR workspace_revision IS NOT NULL),
    CHECK (status <> 'attached' OR attached_at IS NOT NULL),
    CHECK (status <> 'detached' OR detached_at IS NOT NULL),
    UNIQUE (organization_id, id),
    UNIQUE (sandbox_id, id, is_attached),
    UNIQUE (sandbox_id, workspace_revision),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, artifact_id) REFERENCES artifact (organization_id, id)
) STRICT;
CREATE INDEX checkpoint_by_sandbox ON checkpoint (sandbox_id, created_at, id);
CREATE INDEX checkpoint_capturing ON checkpoint (sandbox_id) WHERE status = 'capturing';
CREATE INDEX checkpoint_by_artifact ON checkpoint (artifact_id);

CREATE TABLE operation (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL,
    sandbox_id BLOB NOT NULL,
    instance_id BLOB NOT NULL,
    lease_id BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    grant_seq INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('exec', 'file', 'sync_in')),
    status TEXT NOT NULL CHECK (status IN ('running', 'exited', 'timed_out', 'cancelled', 'lost', 'unknown')),
    workspace_seq INTEGER NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    process_tree_killed INTEGER NOT NULL DEFAULT FALSE,
    lease_expires_at INTEGER,
    stdout BLOB,
    stdout_bytes INTEGER NOT NULL DEFAULT 0,
    stderr BLOB,
    stderr_bytes INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    CHECK ((status = 'running') = (ended_at IS NULL)),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, lease_id) REFERENCES lease (organization_id, id),
    FOREIGN KEY (sandbox_id, instance_id) REFERENCES instance (sandbox_id, id)
) STRICT;
CREATE INDEX operation_running ON operation (sandbox_id) WHERE status = 'running';
CREATE INDEX operation_by_instance ON operation (instance_id, grant_seq);
CREATE INDEX operation_by_lease ON operation (lease_id, started_at, id);
CREATE INDEX operation_ended ON operation (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE event (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    seq INTEGER,
    type TEXT NOT NULL,
    time INTEGER NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id BLOB NOT NULL,
    generation INTEGER,
    actor_kind TEXT NOT NULL,
    actor_id BLOB,
    actor_name TEXT,
    data TEXT NOT NULL CHECK (json_valid(data)),
    UNIQUE (organization_id, seq)
) STRICT;
CREATE INDEX event_unpublished ON event (organization_id, id) WHERE seq IS NULL;
CREATE INDEX event_by_subject ON event (subject_id, seq);
CREATE INDEX event_by_time ON event (time);

CREATE TABLE idempotency (
    organization_id BLOB NOT NULL REFERENCES organization (id),
    credential BLOB NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    claim_id BLOB NOT NULL,
    resource_kind TEXT,
    resource_id BLOB,
    http_status INTEGER,
    created_at INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (organization_id, credential, method, path, key),
    CHECK ((http_status IS NULL) = (finished_at IS NULL))
) STRICT;
CREATE INDEX idempotency_by_time ON idempotency (created_at);

INSERT INTO deployment (one, id, signing_key, created_at)
VALUES (1, randomblob(16), randomblob(48), CAST(unixepoch('subsec') * 1000 AS INTEGER));
