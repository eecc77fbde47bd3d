-- A rotation that failed is tried again once the lead reaches to here.
ALTER TABLE instance ADD COLUMN rotate_after BIGINT NOT NULL DEFAULT 0;
