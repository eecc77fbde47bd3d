//! The limits a caller meets, each with its value, how much of it is used where that is counted, and who set it.

use super::{Berth, Caller};
use crate::error::Result;
use crate::model::key::Scope;

/// One limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// What is limited.
    pub name: String,
    /// The most there may be; `None` for no limit.
    pub value: Option<i64>,
    /// How much there is, where it is counted.
    pub usage: Option<i64>,
    /// `default`, `setting` or `environment`.
    pub source: &'static str,
}

/// Every limit of this deployment, and the quotas of the caller's environments.
pub async fn list(berth: &Berth, caller: &Caller) -> Result<Vec<Limit>> {
    caller.require(Scope::Read)?;
    let settings = &berth.settings;
    let setting = |value: u64, default: u64| if value == default { "default" } else { "setting" };
    let defaults = super::Settings::default();
    let whole = |value: u64| Some(i64::try_from(value).unwrap_or(i64::MAX));
    let mut limits = Vec::new();
    let mut say = |name: &str, value: Option<i64>, usage: Option<i64>, source: &'static str| {
        limits.push(Limit { name: name.to_owned(), value, usage, source });
    };
    let (rate, burst) = (u64::from(settings.rate_limit_per_second), u64::from(settings.rate_limit_burst));
    let rate_source = setting(rate, u64::from(defaults.rate_limit_per_second));
    say("requests_per_second", (rate > 0).then(|| whole(rate)).flatten(), None, rate_source);
    let burst_source = setting(burst, u64::from(defaults.rate_limit_burst));
    say("requests_burst", (rate > 0).then(|| whole(burst)).flatten(), None, burst_source);
    for (name, value, default) in [
        ("provision_wait_seconds", settings.provision_wait, defaults.provision_wait),
        ("provision_deadline_seconds", settings.provision_deadline, defaults.provision_deadline),
        ("capture_timeout_seconds", settings.capture_timeout, defaults.capture_timeout),
    ] {
        say(name, whole(value.as_secs()), None, setting(value.as_secs(), default.as_secs()));
    }
    for (name, value) in [
        ("wait_seconds", 300),
        ("json_body_bytes", 1 << 20),
        ("metadata_bytes", 64 << 10),
        ("scope_keys", 16),
        ("page_items", 100),
        ("exec_timeout_seconds", 3600),
        ("exec_output_bytes", 1 << 20),
        ("command_bytes", 128 << 10),
        ("collect_items", 1000),
        ("renew_items", 500),
        ("streams", 16),
    ] {
        say(name, Some(value), None, "default");
    }
    let mut tx = berth.store.read().await?;
    let (instances, leases) = tx.usage_of_organization(caller.organization).await?;
    say("live_instances", None, Some(instances), "default");
    say("live_leases", None, Some(leases), "default");
    for (environment, value, usage) in tx.quotas_of_organization(caller.organization).await? {
        say(&format!("environment.{environment}.max_live_instances"), Some(value), Some(usage), "environment");
    }
    Ok(limits)
}
