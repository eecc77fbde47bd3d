-- What a finished request answered that made no resource of its own, its secrets taken out.
ALTER TABLE idempotency ADD COLUMN answer TEXT CHECK (json_valid(answer));
CREATE UNIQUE INDEX idempotency_by_claim ON idempotency (claim_id);
