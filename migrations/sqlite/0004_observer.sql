-- Which instances nobody has looked at for longest, by provider.
CREATE INDEX instance_unobserved ON instance (provider, COALESCE(observed_at, 0)) WHERE status IN ('running', 'stopped');
-- Leases whose release is stored and not carried out yet.
CREATE INDEX lease_releasing ON lease (updated_at) WHERE status = 'active' AND release IS NOT NULL;
