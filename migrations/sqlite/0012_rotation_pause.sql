-- A rotation that failed is tried again once the lead reaches to here.
ALTER TABLE instance ADD COLUMN rotate_after INTEGER NOT NULL DEFAULT 0;
