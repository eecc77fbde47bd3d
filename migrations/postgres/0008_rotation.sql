-- Instances that their provider ends by itself, by the end.
CREATE INDEX instance_ending ON instance (provider_expires_at) WHERE status IN ('running', 'stopped') AND provider_expires_at IS NOT NULL;
