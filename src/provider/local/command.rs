//! A command as a shim is told it: where it runs, and in which environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::confine::Bubblewrap;
use super::files::Workspace;
use super::wire::{Order, Task};
use super::{failed, layout};
use crate::provider::{ExecSpec, Kind, ProviderError, Result};

/// Every command's environment says which instance it belongs to; what lost its shim is found by that.
pub(super) const MARKER: &str = "BERTH_INSTANCE_ID";
/// And which operation it is.
const EXEC_MARKER: &str = "BERTH_EXEC_ID";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a shim is told: the command with its whole environment, and what stands around it. Nothing of the server's own is in it.
pub(super) fn order(instance: &Path, provider_ref: &str, spec: ExecSpec, bubblewrap: Option<&Bubblewrap>) -> Result<Order> {
    if spec.user.is_some() {
        return Err(ProviderError::new(Kind::Invalid, "this provider cannot choose a user"));
    }
    let bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    if spec.argv.is_empty()
        || spec.argv.iter().any(|word| word.contains('\0'))
        || spec.env.iter().any(|(name, value)| bad_name(name) || value.contains('\0'))
    {
        return Err(ProviderError::new(Kind::Invalid, "the command or its environment is malformed"));
    }
    if layout::state(instance).map_err(failed)? != layout::State::Running {
        return Err(ProviderError::new(Kind::Refused, "the instance is stopped"));
    }
    let cwd = Workspace::open(instance)?.working_directory(spec.cwd.as_deref())?;
    let shown = |path: PathBuf| path.into_os_string().into_string().map_err(|_| ProviderError::new(Kind::Invalid, "the root is not UTF-8"));
    let mut env: BTreeMap<String, String> =
        [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned())].map(|(k, v)| (k.to_owned(), v)).into();
    env.insert("HOME".to_owned(), shown(layout::workspace(instance))?);
    env.insert("TMPDIR".to_owned(), shown(layout::temporary(instance))?);
    let configured = fs::read(layout::environment(instance)).map_err(failed)?;
    let configured: BTreeMap<String, String> = serde_json::from_slice(&configured).map_err(|e| failed(e.into()))?;
    env.extend(configured);
    env.extend(spec.env);
    env.insert(MARKER.to_owned(), provider_ref.to_owned());
    env.insert(EXEC_MARKER.to_owned(), spec.id.to_string());
    Ok(Order {
        instance: instance.to_owned(),
        id: spec.id,
        grant_seq: spec.grant_seq,
        around: bubblewrap.map(|bubblewrap| bubblewrap.around(instance)).transpose()?,
        task: Task { argv: spec.argv, cwd, env: env.into_iter().collect() },
        timeout_ms: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
    })
}
