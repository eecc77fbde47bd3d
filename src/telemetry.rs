//! What an operator sees: logs and metrics, neither of which ever holds a caller's content.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Bounds of the request histogram, in seconds: from an attach to a provision wait.
const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];
/// How long recorded durations lie unfolded.
const UPKEEP: Duration = Duration::from_secs(5);
const REQUESTS: &str = "berth_http_requests_total";
/// Counted by `provider::counted`, which describes the outcomes.
const PROVIDER_CALLS: &str = "berth_provider_calls_total";
const DURATIONS: &str = "berth_http_request_duration_seconds";

/// One recorder a process; installed when metrics are first touched.
static METRICS: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Full(DURATIONS.to_owned()), &BUCKETS);
    let recorder = builder.unwrap_or_else(|_| unreachable!("the buckets are not empty")).build_recorder();
    let handle = recorder.handle();
    // A process that embeds Berth may have its own recorder; then Berth's numbers go there.
    let _ = metrics::set_global_recorder(recorder);
    metrics::describe_counter!(REQUESTS, "Requests by method, route template and status.");
    metrics::describe_counter!(PROVIDER_CALLS, "Calls of providers by provider, verb and outcome.");
    metrics::describe_histogram!(DURATIONS, "How long requests took, in seconds.");
    handle
});

/// The series that were ever set, by gauge and value; both come from the code, so they are few.
static SERIES: Mutex<BTreeSet<(&str, String)>> = Mutex::new(BTreeSet::new());

/// Counts one answered request. The route is a template, so that no path and no tenant becomes a label.
pub fn count_request(method: &'static str, route: &str, status: u16, took: Duration) {
    LazyLock::force(&METRICS);
    let labels = [("method", method.to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
    metrics::counter!(REQUESTS, &labels).increment(1);
    metrics::histogram!(DURATIONS, &labels[..2]).record(took);
}

/// Sets every series of a gauge; one that is not among them any more is 0. Without a label the gauge is alone.
pub fn gauge(name: &'static str, label: &'static str, series: Vec<(String, f64)>) {
    LazyLock::force(&METRICS);
    let set = |value: String, to: f64| {
        if label.is_empty() { metrics::gauge!(name).set(to) } else { metrics::gauge!(name, label => value).set(to) }
    };
    let mut known = SERIES.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, value) in known.iter().filter(|(of, _)| *of == name) {
        set(value.clone(), 0.0);
    }
    for (value, to) in series {
        set(value.clone(), to);
        known.insert((name, value));
    }
}

/// Every metric as Prometheus reads it.
pub fn rendered() -> String {
    METRICS.render()
}

/// Records from now on, and folds what was recorded into the histograms for as long as it is awaited; else every duration stays in
/// memory until somebody reads them.
pub async fn upkeep() {
    LazyLock::force(&METRICS);
    loop {
        tokio::time::sleep(UPKEEP).await;
        METRICS.run_upkeep();
    }
}

/// Starts logging to standard error; `filter` is `BERTH_LOG`, such as `info` or `berth=debug`. A second start changes nothing.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("BERTH_LOG: {error}"))?;
    let pretty = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error here means that something logs already; its choice stands.
    let _ = if pretty { logs.try_init() } else { logs.json().flatten_event(true).with_span_list(false).try_init() };
    std::panic::set_hook(Box::new(|panic| {
        // Where, and never what: a panic's text may hold a caller's content.
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        tracing::error!(place, "panicked");
    }));
    Ok(())
}
