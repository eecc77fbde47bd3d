//! What is due: the queries that passes begin with. Each is answered from a partial index of the rows that may be due, so that a pass
//! costs what is due and not what there is. SQLite uses a partial index only where the index's own condition stands in the query, word for
//! word.

/// Leases whose time has passed. `$1` is now, `$2` how many, as in all of them.
pub const EXPIRED: &str = "SELECT id FROM lease WHERE status = 'active' AND expires_at <= $1 ORDER BY expires_at LIMIT $2";

/// Retained leases whose time has passed.
pub const RETAINED: &str = "SELECT id FROM lease WHERE status = 'retained' AND retain_until <= $1 ORDER BY retain_until LIMIT $2";

/// Pending leases that nobody is making ready.
pub const PENDING: &str = "SELECT l.id FROM lease l LEFT JOIN claim k ON k.subject_id = l.id AND k.kind = 'provision'
             WHERE l.status IN ('pending', 'pending_cleanup') AND l.status = 'pending' AND (k.claimed_until IS NULL OR k.claimed_until <= $1) ORDER BY l.updated_at LIMIT $2";

/// Stored releases that nobody is carrying out.
pub const RELEASES: &str = "SELECT l.id FROM lease l LEFT JOIN claim k ON k.subject_id = l.sandbox_id AND k.kind = 'gate'
             WHERE l.status = 'active' AND l.release IS NOT NULL AND (k.claimed_until IS NULL OR k.claimed_until <= $1)
             ORDER BY l.updated_at LIMIT $2";

/// Teardowns that nobody is trying.
pub const CLEANUPS: &str = "SELECT i.id FROM instance i LEFT JOIN claim k ON k.subject_id = i.id AND k.kind = 'cleanup'
             WHERE i.status = 'pending_cleanup' AND i.cleanup_next_at <= $1 AND (k.claimed_until IS NULL OR k.claimed_until <= $1)
             ORDER BY i.cleanup_next_at LIMIT $2";

/// Stops, starts, drains and creates that nobody is settling.
pub const INTENTS: &str = "SELECT i.id FROM instance i
             WHERE i.status IN ('creating', 'starting', 'stopping', 'draining')
               AND NOT EXISTS (SELECT 1 FROM claim k WHERE k.subject_id = i.id AND k.kind = 'cleanup' AND k.claimed_until > $1)
               AND NOT EXISTS (SELECT 1 FROM claim k WHERE k.subject_id = i.sandbox_id AND k.kind IN ('gate', 'recover') AND k.claimed_until > $1)
               AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.instance_id = i.id AND (l.status = 'pending' OR (l.status = 'active' AND l.release IS NOT NULL)))
             ORDER BY i.updated_at LIMIT $2";

/// All of them, by name.
pub const ALL: &[(&str, &str)] = &[
    ("expired", EXPIRED),
    ("retained", RETAINED),
    ("pending", PENDING),
    ("releases", RELEASES),
    ("cleanups", CLEANUPS),
    ("intents", INTENTS),
];
