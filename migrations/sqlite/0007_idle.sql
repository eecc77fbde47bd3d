-- When it is next worth looking whether nobody uses an instance: not before its lease ends.
ALTER TABLE instance ADD COLUMN idle_check_at INTEGER NOT NULL DEFAULT 0;
DROP INDEX instance_idle;
CREATE INDEX instance_idle ON instance (idle_check_at) WHERE status IN ('running', 'stopped');
