//! The life of a plugin's sandbox: made, resumed, stopped, ended; each answer held against the exact object it is about.

use std::time::Duration;

use serde_json::{Value, json};

use super::failure::{Creation, left_behind};
use super::handshake::Driver;
use super::{Plugin, binding};
use crate::clock::Time;
use crate::provider::{Destroyed, Kind, Made, Observation, OwnerTag, Presence, ProviderError, Result, Spec};

/// How long a lifecycle call may take.
const LIFECYCLE: Duration = Duration::from_secs(60);
/// What is added to a time that the worker itself keeps.
const MARGIN: Duration = Duration::from_secs(30);
/// The most bytes, as JSON, that are kept of what a worker says of its object.
const MOST_KEPT: usize = 64 << 10;
/// The longest name of an object, and of a directory.
const LONGEST: usize = 1024;

impl Plugin {
    /// What every call carries: whose it is, and the driver's own configuration.
    pub(super) fn base(&self) -> Value {
        let row = &self.0.row;
        json!({
            "driverKey": row.driver_key, "companyId": row.organization, "environmentId": row.environment, "issueId": null,
            "config": row.config.reveal(),
        })
    }

    /// The lease as the worker knows it.
    pub(super) fn lease(&self, provider_ref: &str) -> Value {
        let expires_at = self.0.row.provider_expires_at.map(|at| at.to_string());
        json!({ "providerLeaseId": provider_ref, "metadata": self.0.row.metadata, "expiresAt": expires_at })
    }

    fn about(&self, provider_ref: &str) -> Value {
        let lease = json!({ "providerLeaseId": provider_ref, "leaseMetadata": self.0.row.metadata });
        with(self.base(), lease)
    }

    /// Makes a sandbox. Asked once: nobody could say whether a lost answer made one.
    pub(super) async fn acquire(&self, tag: &OwnerTag) -> Result<Made> {
        let row = &self.0.row;
        let mut params = with(self.base(), json!({ "runId": row.run }));
        if let Some(harness) = &row.harness {
            params["adapterType"] = json!(harness);
        }
        if let Some(at) = row.requested_expires_at {
            params["requestedExpiresAt"] = json!(at.to_string());
        }
        let call = self.asks("environmentAcquireLease", params, self.acquire_takes(), Some(tag.instance.to_string()));
        let lease = match self.0.worker.http.call(call?).await {
            Ok(answer) => {
                self.0.worker.heard_from(answer.generation.as_deref()).await;
                answer.result
            }
            Err(failure) => {
                let creation = Creation { organization: row.organization, environment: row.environment, run: row.run.to_string() };
                let left = left_behind(&failure, &creation).filter(|left| is_ref(left) && !row.config.is_told_by(left));
                let error = ProviderError::from(failure);
                return Err(match left {
                    Some(left) => error.leaving(left),
                    None => error,
                });
            }
        };
        let nameless = || ProviderError::new(Kind::Indeterminate, "the plugin did not say what it made");
        let provider_ref = lease["providerLeaseId"].as_str().filter(|name| is_ref(name)).ok_or_else(nameless)?.to_owned();
        if row.config.is_told_by(&provider_ref) {
            return Err(ProviderError::new(Kind::Indeterminate, "the object's name gives a secret away"));
        }
        let metadata = Some(&lease["metadata"]).filter(|metadata| metadata.is_object()).map(|metadata| row.config.stripped(metadata));
        if metadata.as_ref().is_some_and(|metadata| metadata.to_string().len() > MOST_KEPT) {
            return Err(ProviderError::new(Kind::Failed, "the plugin says more of its object than is kept").leaving(provider_ref));
        }
        Ok(Made { provider_ref, provider_expires_at: lease["expiresAt"].as_str().and_then(Time::parse), metadata })
    }

    fn acquire_takes(&self) -> Duration {
        self.0.traits.ensure_takes.unwrap_or(LIFECYCLE)
    }

    /// Resumes exactly this sandbox. `NotFound` only when the worker says with an empty name that it is gone; `Mismatch` when what came
    /// back has not the files it had.
    pub(super) async fn resume(&self, provider_ref: &str) -> Result<()> {
        let lease = self.call("environmentResumeLease", self.about(provider_ref), LIFECYCLE).await?;
        match lease.get("providerLeaseId") {
            Some(Value::Null) => return Err(ProviderError::new(Kind::NotFound, gone(&lease["metadata"]))),
            Some(Value::String(name)) if name.is_empty() => return Err(ProviderError::new(Kind::NotFound, gone(&lease["metadata"]))),
            Some(Value::String(name)) if name == provider_ref => {}
            // A stranger's is nothing of ours: it is neither used nor ended.
            _ => return Err(ProviderError::new(Kind::Failed, "the plugin resumed something else")),
        }
        let sentinel = lease["metadata"]["workspaceSentinel"]["result"].as_str();
        if sentinel.is_some_and(|result| result != "matched") || !self.is_ours(provider_ref).await? {
            return Err(ProviderError::new(Kind::Mismatch, "what came back has not the files it had"));
        }
        Ok(())
    }

    pub(super) async fn look(&self, bound: &str, provider_ref: &str) -> Observation {
        if self.0.row.at_rest || bound != binding(self.0.row.registration) {
            return Observation::Unknown;
        }
        match self.resume(provider_ref).await {
            Ok(()) => Observation::Present(Presence::Running),
            Err(error) if error.kind == Kind::NotFound => Observation::Absent,
            Err(_) => Observation::Unknown,
        }
    }

    /// Stops it by the worker's own verb, else by its release; the receipt is about exactly this object.
    pub(super) async fn stop_lease(&self, provider_ref: &str) -> Result<()> {
        if self.has("environmentStopLease") {
            let more = json!({ "cancelActiveWork": true, "resourceDisposition": "stop_and_retain" });
            let receipt = self.call("environmentStopLease", with(self.about(provider_ref), more), LIFECYCLE).await?;
            return if Receipt::of(&receipt, provider_ref) == Receipt::Stopped { Ok(()) } else { Err(unconfirmed()) };
        }
        let receipt = self.call("environmentReleaseLease", self.about(provider_ref), LIFECYCLE).await?;
        match Receipt::of(&receipt, provider_ref) {
            Receipt::Stopped => Ok(()),
            // Without a receipt the next resume decides, unless somebody wants to be sure.
            Receipt::None if !self.0.row.stop_confirmed => Ok(()),
            Receipt::Destroyed => Err(ProviderError::new(Kind::NotFound, "not_found")),
            Receipt::None | Receipt::Wrong => Err(unconfirmed()),
        }
    }

    /// Ends it.
    pub(super) async fn destroy_lease(&self, provider_ref: &str) -> Result<Destroyed> {
        let destroys = self.has("environmentDestroyLease");
        let method = if destroys { "environmentDestroyLease" } else { "environmentReleaseLease" };
        let receipt = self.call(method, self.about(provider_ref), LIFECYCLE).await?;
        match Receipt::of(&receipt, provider_ref) {
            Receipt::Destroyed => Ok(Destroyed::Ended),
            Receipt::None if destroys => Ok(Destroyed::Ended),
            _ => Err(unconfirmed()),
        }
    }

    /// The working directory: the worker's word, else what it said of its object, else what was configured; made, and marked as ours.
    pub(super) async fn realize_workspace(&self, provider_ref: &str, spec: &Spec) -> Result<String> {
        let mut said = Value::Null;
        if self.has("environmentRealizeWorkspace") {
            let workspace = json!({ "remotePath": spec.workspace_path });
            let params = with(self.base(), json!({ "lease": self.lease(provider_ref), "workspace": workspace }));
            said = self.call("environmentRealizeWorkspace", params, LIFECYCLE).await?["cwd"].clone();
        }
        let remote = self.0.row.metadata["remoteCwd"].as_str();
        let said = [said.as_str(), remote, spec.workspace_path.as_deref()];
        let path = said.into_iter().flatten().map(str::trim).find(|path| !path.is_empty()).unwrap_or("/workspace");
        let path = path.trim_end_matches('/');
        let fits =
            path.starts_with('/') && path.len() <= LONGEST && !path.contains(['\0', '\n']) && !path.split('/').any(|part| part == "..");
        if self.0.row.config.is_told_by(path) {
            return Err(ProviderError::new(Kind::Failed, "the plugin's working directory gives a secret away"));
        }
        if !fits {
            return Err(ProviderError::new(Kind::Failed, "the plugin's working directory is no absolute path of one"));
        }
        self.mark(provider_ref, path).await?;
        Ok(path.to_owned())
    }
}

/// How long making a sandbox may take: the larger of what the configuration and the driver say, and 30 s more.
pub(super) fn acquire_timeout(config: &Value, driver: &Driver) -> Duration {
    let of = |key: &str| config[key].as_u64().filter(|ms| *ms > 0);
    let said = of("timeoutMs").or(driver.default_acquire_timeout_ms).max(of("bridgeRequestTimeoutMs"));
    said.map_or(LIFECYCLE, |ms| Duration::from_millis(ms.min(3_600_000)) + MARGIN)
}

/// Parameters with more of them.
pub(super) fn with(mut params: Value, more: Value) -> Value {
    if let (Value::Object(params), Value::Object(more)) = (&mut params, more) {
        params.extend(more);
    }
    params
}

/// Why a worker says that a sandbox is gone.
fn gone(metadata: &Value) -> &'static str {
    let sentinel = metadata["workspaceSentinel"]["result"].as_str();
    if sentinel.is_some_and(|result| result != "matched") {
        "identity_mismatch"
    } else if metadata["expired"] == true {
        "not_found"
    } else {
        "expired"
    }
}

fn is_ref(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn unconfirmed() -> ProviderError {
    ProviderError::new(Kind::Indeterminate, "the plugin did not confirm it")
}

/// What a worker confirmed, of exactly this object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receipt {
    Stopped,
    Destroyed,
    None,
    Wrong,
}

impl Receipt {
    fn of(said: &Value, provider_ref: &str) -> Self {
        if said.is_null() {
            return Self::None;
        }
        match said["state"].as_str().filter(|_| said["providerLeaseId"] == provider_ref) {
            Some("stopped") => Self::Stopped,
            Some("destroyed") => Self::Destroyed,
            _ => Self::Wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_about_one_object_and_one_end() {
        assert_eq!(Receipt::of(&json!({ "providerLeaseId": "a", "state": "stopped" }), "a"), Receipt::Stopped);
        assert_eq!(Receipt::of(&json!({ "providerLeaseId": "a", "state": "destroyed" }), "a"), Receipt::Destroyed);
        assert_eq!(Receipt::of(&Value::Null, "a"), Receipt::None);
        for wrong in [
            json!({ "providerLeaseId": "b", "state": "stopped" }),
            json!({ "state": "stopped" }),
            json!({ "providerLeaseId": "a", "state": "gone" }),
            json!({}),
            json!(true),
        ] {
            assert_eq!(Receipt::of(&wrong, "a"), Receipt::Wrong, "{wrong}");
        }
    }

    #[test]
    fn why_it_is_gone() {
        assert_eq!(gone(&json!({ "workspaceSentinel": { "result": "missing" }, "expired": true })), "identity_mismatch");
        assert_eq!(gone(&json!({ "workspaceSentinel": { "result": "matched" }, "expired": true })), "not_found");
        assert_eq!(gone(&json!({})), "expired");
    }
}
