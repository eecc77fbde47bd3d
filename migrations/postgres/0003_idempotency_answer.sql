-- What a finished request answered that made no resource of its own, its secrets taken out.
ALTER TABLE idempotency ADD COLUMN answer JSONB;
CREATE UNIQUE INDEX idempotency_by_claim ON idempotency (claim_id);
