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

/// Whether nobody uses the instance `i` of the environment `e`, for longer than its time-out; `$1` is now.
macro_rules! idle {
    () => {
        "i.hold_reason IS NULL
           AND (i.disposition IN ('stop_and_retain', 'destroy') OR i.used_at <= $1 - CASE WHEN i.status = 'running' THEN e.idle_timeout_ms ELSE e.retain_ms END)
           AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.sandbox_id = i.sandbox_id AND l.status IN ('pending', 'active'))
           AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.instance_id = i.id AND l.status = 'retained')"
    };
}

/// Instances whose use is worth a look.
macro_rules! to_check {
    () => {
        "SELECT i.id FROM instance i JOIN environment e ON e.id = i.environment_id
         WHERE i.status IN ('running', 'stopped') AND i.idle_check_at <= $1 AND "
    };
}

/// Running instances that nobody uses.
pub const IDLE: &str = concat!(to_check!(), "i.status = 'running' AND ", idle!(), " ORDER BY i.idle_check_at LIMIT $2");

/// Stopped instances that nobody came back for.
pub const FORGOTTEN: &str = concat!(to_check!(), "i.status = 'stopped' AND ", idle!(), " ORDER BY i.idle_check_at LIMIT $2");

/// Puts the look at instances that are in use off to when they may be idle at the earliest. Rows that changed a moment ago are left for
/// the next pass: on PostgreSQL a lease that ends meanwhile may still be seen as it was, and its instance would be forgotten till then.
macro_rules! put_off {
    ($lock:literal) => {
        concat!(
            "UPDATE instance SET idle_check_at = (SELECT max(n.at) FROM (
                 SELECT instance.used_at + CASE WHEN instance.status = 'running' THEN e.idle_timeout_ms ELSE e.retain_ms END AS at
                     FROM environment e WHERE e.id = instance.environment_id
                 UNION ALL SELECT l.expires_at FROM lease l WHERE l.sandbox_id = instance.sandbox_id AND l.status IN ('pending', 'active')
                 UNION ALL SELECT l.retain_until FROM lease l WHERE l.instance_id = instance.id AND l.status = 'retained'
                 UNION ALL SELECT $1 + 1000) AS n)
             WHERE id IN (",
            to_check!(),
            "i.idle_check_at <= $1 - 30000 AND NOT (",
            idle!(),
            ") ORDER BY i.idle_check_at LIMIT $2",
            $lock,
            ")"
        )
    };
}

/// The look is put off, on SQLite.
pub const PUT_OFF_SQLITE: &str = put_off!("");
/// The look is put off, on PostgreSQL, where several servers look at once.
pub const PUT_OFF_POSTGRES: &str = put_off!(" FOR UPDATE OF i SKIP LOCKED");

/// Instances that their provider ends by itself, by the end, but for those that were tried a moment ago. `$1` is until when.
pub const ENDING: &str = "SELECT id FROM instance
             WHERE status IN ('running', 'stopped') AND provider_expires_at IS NOT NULL AND provider_expires_at <= $1
               AND rotate_after <= $1
             ORDER BY provider_expires_at LIMIT $2";

/// All of them, by name.
pub const ALL: &[(&str, &str)] = &[
    ("expired", EXPIRED),
    ("retained", RETAINED),
    ("pending", PENDING),
    ("releases", RELEASES),
    ("cleanups", CLEANUPS),
    ("intents", INTENTS),
    ("idle", IDLE),
    ("forgotten", FORGOTTEN),
    ("ending", ENDING),
];
