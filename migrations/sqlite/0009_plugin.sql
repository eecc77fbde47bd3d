-- Plugins: workers behind URLs, and what a row of the ledger has to say to the one that made its object.

CREATE TABLE plugin (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    token_secret TEXT,
    token_version INTEGER,
    handshake TEXT NOT NULL CHECK (json_valid(handshake)),
    deleted_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX plugin_name ON plugin (organization_id, name) WHERE deleted_at IS NULL;
CREATE INDEX plugin_by_organization ON plugin (organization_id, created_at, id);

ALTER TABLE instance ADD COLUMN plugin_id BLOB REFERENCES plugin (id);
ALTER TABLE instance ADD COLUMN provider_metadata TEXT CHECK (json_valid(provider_metadata));
CREATE INDEX instance_by_plugin ON instance (plugin_id) WHERE plugin_id IS NOT NULL;
