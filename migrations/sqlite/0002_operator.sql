-- What an operator steers: organizations and sandboxes that are gone for their callers while the ledger still names them, and the
-- deployment's draining.

ALTER TABLE organization ADD COLUMN deleted_at INTEGER;
ALTER TABLE sandbox ADD COLUMN deleted_at INTEGER;
ALTER TABLE deployment ADD COLUMN draining_since INTEGER;
ALTER TABLE deployment ADD COLUMN draining_reason TEXT;
