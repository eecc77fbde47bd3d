-- Captures whose capturer is gone are found without looking through every checkpoint.

CREATE INDEX checkpoint_capturing ON checkpoint (sandbox_id) WHERE status = 'capturing';
