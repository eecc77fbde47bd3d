-- Plugins: workers behind URLs, and what a row of the ledger has to say to the one that made its object.

CREATE TABLE plugin (
    id UUID PRIMARY KEY,
    organization_id UUID NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    token_secret TEXT,
    token_version BIGINT,
    handshake JSONB NOT NULL,
    deleted_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX plugin_name ON plugin (organization_id, name) WHERE deleted_at IS NULL;
CREATE INDEX plugin_by_organization ON plugin (organization_id, created_at, id);

ALTER TABLE instance ADD COLUMN plugin_id UUID REFERENCES plugin (id);
ALTER TABLE instance ADD COLUMN provider_metadata JSONB;
CREATE INDEX instance_by_plugin ON instance (plugin_id) WHERE plugin_id IS NOT NULL;
