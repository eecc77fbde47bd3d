-- Secrets: named values that configurations refer to, each version sealed; and which rows of the ledger name them.

CREATE TABLE secret (
    id BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    name TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (organization_id, name)
) STRICT;
CREATE INDEX secret_by_organization ON secret (organization_id, created_at, id);

CREATE TABLE secret_version (
    secret_id BLOB NOT NULL REFERENCES secret (id),
    version INTEGER NOT NULL CHECK (version >= 1),
    sealed BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (secret_id, version)
) STRICT;

CREATE TABLE instance_secret (
    instance_id BLOB NOT NULL REFERENCES instance (id),
    organization_id BLOB NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (instance_id, name)
) STRICT;
CREATE INDEX instance_secret_by_name ON instance_secret (organization_id, name);

-- Tells whether a server's key is the one that the stored secrets were sealed with.
ALTER TABLE deployment ADD COLUMN secret_check BLOB;
