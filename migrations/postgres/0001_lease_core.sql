-- The lease core: who may use what, what exists, what must not be lost.

CREATE TABLE deployment (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    id UUID NOT NULL,
    signing_key BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE organization (
    id UUID PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    event_seq BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);

CREATE TABLE api_key (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    secret_hash TEXT NOT NULL UNIQUE,
    expires_at BIGINT,
    revoked_at BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at, id);

CREATE TABLE environment (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    provider TEXT NOT NULL,
    config JSONB NOT NULL,
    policy TEXT CHECK (policy IN ('ephemeral', 'reuse_by_environment', 'retain_on_failure')),
    ttl_ms BIGINT NOT NULL,
    max_ttl_ms BIGINT NOT NULL,
    idle_timeout_ms BIGINT NOT NULL,
    on_idle TEXT NOT NULL CHECK (on_idle IN ('stop', 'destroy')),
    retain_ms BIGINT NOT NULL,
    checkpoint_policy JSONB NOT NULL,
    workspace_path TEXT,
    max_live_instances BIGINT,
    metadata JSONB NOT NULL,
    version BIGINT NOT NULL DEFAULT 1,
    archived_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (organization_id, id)
);
CREATE UNIQUE INDEX environment_name ON environment (organization_id, name) WHERE archived_at IS NULL;
CREATE INDEX environment_by_organization ON environment (organization_id, created_at, id);

-- The sandbox row is the lock of everything below it: a transaction that writes a lease, an instance, a checkpoint or an
-- operation updates this row first.
CREATE TABLE sandbox (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL,
    environment_id UUID NOT NULL,
    scope JSONB,
    scope_key TEXT,
    generation BIGINT NOT NULL DEFAULT 1 CHECK (generation >= 1),
    workspace_seq BIGINT NOT NULL DEFAULT 0,
    synced_seq BIGINT,
    grant_seq BIGINT NOT NULL DEFAULT 0,
    pointer_seq BIGINT NOT NULL DEFAULT 0,
    lock_seq BIGINT NOT NULL DEFAULT 0,
    instance_id UUID,
    current_checkpoint_id UUID,
    pointer_is_attached BOOLEAN GENERATED ALWAYS AS (CASE WHEN current_checkpoint_id IS NULL THEN NULL ELSE TRUE END) STORED,
    diverged BOOLEAN NOT NULL DEFAULT FALSE,
    unsaved_loss BOOLEAN NOT NULL DEFAULT FALSE,
    process_open BOOLEAN NOT NULL DEFAULT FALSE,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CHECK (synced_seq IS NULL OR synced_seq <= workspace_seq),
    CHECK ((scope IS NULL) = (scope_key IS NULL)),
    UNIQUE (organization_id, id),
    UNIQUE (organization_id, environment_id, scope_key),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id)
);
CREATE INDEX sandbox_by_organization ON sandbox (organization_id, created_at, id);

CREATE TABLE instance (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL,
    environment_id UUID NOT NULL,
    sandbox_id UUID NOT NULL,
    generation BIGINT NOT NULL CHECK (generation >= 1),
    role TEXT NOT NULL CHECK (role IN ('current', 'successor', 'retired')),
    provider TEXT NOT NULL,
    binding TEXT,
    provider_ref TEXT,
    config JSONB NOT NULL,
    configured_path TEXT,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('creating', 'running', 'stopping', 'stopped', 'starting', 'draining', 'pending_cleanup', 'destroyed', 'lost')),
    quiet BOOLEAN NOT NULL DEFAULT TRUE,
    owed_fence BIGINT,
    hold_reason TEXT CHECK (hold_reason IN ('capture_failed')),
    retire_reason TEXT,
    disposition TEXT CHECK (disposition IN ('keep_running', 'stop_and_retain', 'destroy')),
    workspace_path TEXT,
    provider_expires_at BIGINT,
    observed_at BIGINT,
    create_called_at BIGINT,
    provision_deadline BIGINT NOT NULL,
    cleanup_attempts BIGINT NOT NULL DEFAULT 0,
    cleanup_next_at BIGINT,
    cleanup_error_kind TEXT,
    quarantine_reason TEXT,
    used_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    running_at BIGINT,
    stopped_at BIGINT,
    retired_at BIGINT,
    destroyed_at BIGINT,
    updated_at BIGINT NOT NULL,
    CHECK ((role = 'retired') = (status IN ('pending_cleanup', 'destroyed', 'lost'))),
    CHECK ((status = 'pending_cleanup') = (cleanup_next_at IS NOT NULL)),
    CHECK (hold_reason IS NULL OR role = 'current'),
    CHECK (provider_ref IS NULL OR binding IS NOT NULL),
    CHECK (status IN ('creating', 'pending_cleanup', 'destroyed', 'lost') OR provider_ref IS NOT NULL),
    UNIQUE (organization_id, id),
    UNIQUE (sandbox_id, id),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id)
);
CREATE UNIQUE INDEX instance_one_current_one_successor ON instance (sandbox_id, role) WHERE role <> 'retired';
CREATE UNIQUE INDEX instance_one_generation ON instance (sandbox_id, generation) WHERE retire_reason IS NULL OR retire_reason <> 'second_ref';
CREATE UNIQUE INDEX instance_one_owner_of_a_ref ON instance (provider, binding, provider_ref) WHERE role <> 'retired' AND provider_ref IS NOT NULL;
CREATE INDEX instance_by_organization ON instance (organization_id, created_at, id);
CREATE INDEX instance_by_ref ON instance (provider, provider_ref);
CREATE INDEX instance_cleanup_due ON instance (cleanup_next_at) WHERE status = 'pending_cleanup';
CREATE INDEX instance_unsettled ON instance (updated_at) WHERE status IN ('creating', 'starting', 'stopping', 'draining');
CREATE INDEX instance_idle ON instance (used_at) WHERE status IN ('running', 'stopped');

CREATE TABLE lease (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL,
    sandbox_id UUID NOT NULL,
    environment_id UUID NOT NULL,
    instance_id UUID,
    generation BIGINT NOT NULL,
    epoch BIGINT NOT NULL DEFAULT 1,
    grant_seq BIGINT NOT NULL DEFAULT 0,
    status TEXT NOT NULL CHECK (status IN ('pending', 'active', 'retained', 'pending_cleanup', 'released', 'expired', 'failed')),
    ends_as TEXT CHECK (ends_as IN ('released', 'expired', 'failed')),
    policy TEXT NOT NULL CHECK (policy IN ('ephemeral', 'reuse_by_environment', 'retain_on_failure')),
    access TEXT NOT NULL CHECK (access IN ('read_write', 'read_only')),
    holder TEXT NOT NULL,
    harness TEXT,
    ttl_ms BIGINT NOT NULL CHECK (ttl_ms > 0),
    expires_at BIGINT,
    max_expires_at BIGINT,
    requested_expires_at BIGINT,
    require_provider_expiry BOOLEAN NOT NULL DEFAULT FALSE,
    retain_until BIGINT,
    evidence BOOLEAN NOT NULL DEFAULT FALSE,
    plan JSONB NOT NULL,
    acquisition JSONB,
    release JSONB,
    failure_code TEXT,
    failure_reason TEXT,
    failure_facts JSONB,
    metadata JSONB NOT NULL,
    acquired_at BIGINT,
    renewed_at BIGINT,
    released_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CHECK ((status = 'pending_cleanup') = (ends_as IS NOT NULL)),
    CHECK (status <> 'active' OR (expires_at IS NOT NULL AND instance_id IS NOT NULL)),
    CHECK (status <> 'pending' OR expires_at IS NULL),
    CHECK ((status = 'retained') = (retain_until IS NOT NULL)),
    UNIQUE (organization_id, id),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, environment_id) REFERENCES environment (organization_id, id),
    FOREIGN KEY (sandbox_id, instance_id) REFERENCES instance (sandbox_id, id)
);
CREATE UNIQUE INDEX lease_one_writer ON lease (sandbox_id) WHERE status IN ('pending', 'active') AND access = 'read_write';
CREATE UNIQUE INDEX lease_one_of_a_holder ON lease (sandbox_id, holder) WHERE status IN ('pending', 'active');
CREATE INDEX lease_by_organization ON lease (organization_id, created_at, id);
CREATE INDEX lease_by_sandbox ON lease (sandbox_id, created_at);
CREATE INDEX lease_by_instance ON lease (instance_id);
CREATE INDEX lease_due ON lease (expires_at) WHERE status = 'active';
CREATE INDEX lease_retained_due ON lease (retain_until) WHERE status = 'retained';
CREATE INDEX lease_unsettled ON lease (updated_at) WHERE status IN ('pending', 'pending_cleanup');

CREATE TABLE claim (
    subject_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('provision', 'gate', 'cleanup', 'recover', 'operation', 'idempotency')),
    token UUID NOT NULL,
    owner UUID NOT NULL,
    detail TEXT NOT NULL,
    claimed_until BIGINT NOT NULL,
    deadline BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (subject_id, kind)
);
CREATE INDEX claim_by_owner ON claim (owner);

CREATE TABLE artifact (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL REFERENCES organization (id),
    kind TEXT NOT NULL CHECK (kind IN ('provider_native', 'portable_workspace')),
    provider TEXT,
    binding TEXT,
    object_key TEXT NOT NULL,
    archive_sha256 TEXT,
    size_bytes BIGINT,
    tree JSONB,
    sandbox_id UUID,
    status TEXT NOT NULL CHECK (status IN ('stored', 'deleting', 'deleted')),
    attempts BIGINT NOT NULL DEFAULT 0,
    next_attempt_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (organization_id, id),
    UNIQUE (kind, object_key)
);
CREATE INDEX artifact_deletion_due ON artifact (next_attempt_at) WHERE status = 'deleting';

CREATE TABLE checkpoint (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL,
    sandbox_id UUID NOT NULL,
    instance_id UUID,
    generation BIGINT NOT NULL,
    workspace_seq BIGINT,
    kind TEXT NOT NULL CHECK (kind IN ('provider_native', 'portable_workspace')),
    status TEXT NOT NULL CHECK (status IN ('capturing', 'recorded', 'attached', 'detached', 'failed', 'superseded')),
    is_attached BOOLEAN GENERATED ALWAYS AS (status = 'attached') STORED,
    artifact_id UUID,
    parent_id UUID,
    provider_ref TEXT,
    workspace_revision TEXT,
    consistency TEXT CHECK (consistency IN ('quiescent', 'paused', 'live')),
    warnings JSONB NOT NULL,
    source_turn_id TEXT,
    source_tool_call_id TEXT,
    failure_code TEXT,
    attached_at BIGINT,
    detached_at BIGINT,
    superseded_by UUID,
    expires_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    CHECK (status NOT IN ('recorded', 'attached', 'detached') OR workspace_revision IS NOT NULL),
    CHECK (status <> 'attached' OR attached_at IS NOT NULL),
    CHECK (status <> 'detached' OR detached_at IS NOT NULL),
    UNIQUE (organization_id, id),
    UNIQUE (sandbox_id, id, is_attached),
    UNIQUE (sandbox_id, workspace_revision),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, artifact_id) REFERENCES artifact (organization_id, id)
);
CREATE INDEX checkpoint_by_sandbox ON checkpoint (sandbox_id, created_at, id);
CREATE INDEX checkpoint_capturing ON checkpoint (sandbox_id) WHERE status = 'capturing';
CREATE INDEX checkpoint_by_artifact ON checkpoint (artifact_id);

CREATE TABLE operation (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL,
    sandbox_id UUID NOT NULL,
    instance_id UUID NOT NULL,
    lease_id UUID NOT NULL,
    epoch BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    grant_seq BIGINT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('exec', 'file', 'sync_in')),
    status TEXT NOT NULL CHECK (status IN ('running', 'exited', 'timed_out', 'cancelled', 'lost', 'unknown')),
    workspace_seq BIGINT NOT NULL,
    exit_code BIGINT,
    signal BIGINT,
    process_tree_killed BOOLEAN NOT NULL DEFAULT FALSE,
    lease_expires_at BIGINT,
    stdout BYTEA,
    stdout_bytes BIGINT NOT NULL DEFAULT 0,
    stderr BYTEA,
    stderr_bytes BIGINT NOT NULL DEFAULT 0,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    CHECK ((status = 'running') = (ended_at IS NULL)),
    FOREIGN KEY (organization_id, sandbox_id) REFERENCES sandbox (organization_id, id),
    FOREIGN KEY (organization_id, lease_id) REFERENCES lease (organization_id, id),
    FOREIGN KEY (sandbox_id, instance_id) REFERENCES instance (sandbox_id, id)
);
CREATE INDEX operation_running ON operation (sandbox_id) WHERE status = 'running';
CREATE INDEX operation_by_instance ON operation (instance_id, grant_seq);
CREATE INDEX operation_by_lease ON operation (lease_id, started_at, id);
CREATE INDEX operation_ended ON operation (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE event (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL REFERENCES organization (id),
    seq BIGINT,
    type TEXT NOT NULL,
    time BIGINT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id UUID NOT NULL,
    generation BIGINT,
    actor_kind TEXT NOT NULL,
    actor_id UUID,
    actor_name TEXT,
    data JSONB NOT NULL,
    UNIQUE (organization_id, seq)
);
CREATE INDEX event_unpublished ON event (organization_id, id) WHERE seq IS NULL;
CREATE INDEX event_by_subject ON event (subject_id, seq);
CREATE INDEX event_by_time ON event (time);

CREATE TABLE idempotency (
    organization_id UUID NOT NULL REFERENCES organization (id),
    credential UUID NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    claim_id UUID NOT NULL,
    resource_kind TEXT,
    resource_id UUID,
    http_status BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    PRIMARY KEY (organization_id, credential, method, path, key),
    CHECK ((http_status IS NULL) = (finished_at IS NULL))
);
CREATE INDEX idempotency_by_time ON idempotency (created_at);

-- The pointers of a sandbox: to a live row of its own, and to an attached checkpoint of its own.
ALTER TABLE sandbox ADD FOREIGN KEY (id, instance_id) REFERENCES instance (sandbox_id, id) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE sandbox ADD FOREIGN KEY (id, current_checkpoint_id, pointer_is_attached) REFERENCES checkpoint (sandbox_id, id, is_attached) DEFERRABLE INITIALLY DEFERRED;

INSERT INTO deployment (one, id, signing_key, created_at)
VALUES (1, gen_random_uuid(), uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
