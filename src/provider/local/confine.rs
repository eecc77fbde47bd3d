//! What a command sees of the machine where bubblewrap stands around it: the system's programs, read-only; the workspace, at its own
//! path; temporary files of its sandbox; and neither Berth's data, nor other sandboxes, nor other processes, nor, unless allowed, the
//! network.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::instances::Instances;
use super::purge::purge;
use super::{failed, layout};
use crate::id;
use crate::provider::{Kind, LocalSettings, ProviderError, Result, Wish};

/// Programs and libraries.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
/// What programs look up in `/etc`. Named one by one, since root reads everything in there, keys and passwords too.
const ETC: [&str; 33] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "protocols",
    "resolv.conf",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];
/// What root could change the whole machine with, though it has no capability.
const KERNEL: [&str; 2] = ["/proc/sys", "/proc/sysrq-trigger"];
/// Where the shim's program is, inside.
const SHIM: &str = "/run/berth";
/// How long the trial may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How bubblewrap is called.
#[derive(Debug)]
pub(super) struct Bubblewrap {
    /// The program, and what it is told whatever the instance.
    fixed: Vec<String>,
    /// The shim's program.
    shim: String,
    /// Instances lie below `/tmp`, which then cannot be the sandbox's own directory: what is mounted in it would be found in there.
    below_tmp: bool,
}

/// Bubblewrap, if it is wished for and works; which of them it is goes to the log.
pub(super) fn choose(settings: &LocalSettings, instances: &Instances, shim: &Path) -> Result<Option<Bubblewrap>> {
    let wish = settings.confinement.bubblewrap;
    if wish == Wish::Never {
        tracing::info!(isolation = "none", "commands of the provider local run without isolation, as was asked for");
        return Ok(None);
    }
    match Bubblewrap::tried(settings, instances, shim) {
        Ok(bubblewrap) => {
            tracing::info!(isolation = "bubblewrap", network = settings.confinement.network, "commands of the provider local are isolated");
            Ok(Some(bubblewrap))
        }
        Err(why) if wish == Wish::IfItWorks => {
            tracing::warn!(isolation = "none", %why, "commands of the provider local run without isolation: bubblewrap does not work here");
            Ok(None)
        }
        Err(why) => {
            tracing::error!(%why, "bubblewrap does not work here");
            Err(ProviderError::new(Kind::Invalid, "bubblewrap does not work here, and commands must be isolated").because(why))
        }
    }
}

impl Bubblewrap {
    /// Works out the arguments, and runs the shim's program under them in a directory made for it.
    fn tried(settings: &LocalSettings, instances: &Instances, shim: &Path) -> io::Result<Self> {
        let root = instances.root();
        if let Some(above) = SYSTEM.iter().find(|above| root.starts_with(above)) {
            return Err(io::Error::other(format!("the data directory lies in {above}, which every command sees")));
        }
        let program = find(&settings.confinement.program)?;
        let bubblewrap =
            Self { fixed: fixed(text(&program)?, settings.confinement.network)?, shim: text(shim)?, below_tmp: root.starts_with("/tmp") };
        let (making, name) = (root.join("making"), format!("trial.{}", id::new()));
        let place = making.join(&name);
        let run = || {
            for directory in [place.clone(), layout::workspace(&place), layout::temporary(&place)] {
                fs::create_dir(directory)?;
            }
            let words = bubblewrap.enclosed(&place, &["--version"])?;
            let child = Command::new(&words[0])
                .args(&words[1..])
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            succeeds(child)
        };
        let ran = run();
        purge(&making, &name)?;
        ran.map(|()| bubblewrap)
    }

    /// What a command of this instance is started within: bubblewrap, and in it a shim that waits to be told the command.
    pub(super) fn around(&self, instance: &Path) -> Result<Vec<String>> {
        self.enclosed(instance, &["shim", "inside"]).map_err(failed)
    }

    fn enclosed(&self, instance: &Path, shim: &[&str]) -> io::Result<Vec<String>> {
        let (workspace, temporary) = (text(&layout::workspace(instance))?, text(&layout::temporary(instance))?);
        let mut all = self.fixed.clone();
        let mut say = |words: &[&str]| all.extend(words.iter().map(|word| (*word).to_owned()));
        if self.below_tmp {
            say(&["--tmpfs", "/tmp"]);
        } else {
            say(&["--bind", &temporary, "/tmp"]);
        }
        // At their own paths, so that a path means the same to a command and to Berth.
        say(&["--bind", &temporary, &temporary, "--bind", &workspace, &workspace]);
        say(&["--ro-bind", &self.shim, SHIM, "--remount-ro", "/", "--", SHIM]);
        say(shim);
        Ok(all)
    }
}

/// What does not depend on the instance.
fn fixed(program: String, network: bool) -> io::Result<Vec<String>> {
    let mut all = vec![program];
    let mut say = |words: &[&str]| all.extend(words.iter().map(|word| (*word).to_owned()));
    // The shim inside is the namespace's first process: nobody inside can kill it, and with it everything ends.
    say(&["--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]);
    if !network {
        say(&["--unshare-net"]);
    }
    say(&["--cap-drop", "ALL"]);
    for directory in SYSTEM {
        match fs::symlink_metadata(directory) {
            Ok(found) if found.is_symlink() => say(&["--symlink", &text(&fs::read_link(directory)?)?, directory]),
            Ok(_) => say(&["--ro-bind", directory, directory]),
            Err(_) => {}
        }
    }
    let java = fs::read_dir("/etc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|name| name.starts_with("java"));
    for name in ETC.iter().map(|name| (*name).to_owned()).chain(java) {
        let path = format!("/etc/{name}");
        say(&["--ro-bind-try", &path, &path]);
    }
    say(&["--proc", "/proc", "--dev", "/dev", "--dir", "/var", "--dir", "/root"]);
    for path in KERNEL {
        say(&["--ro-bind-try", path, path]);
    }
    Ok(all)
}

/// Waits until a child ends well; what it complained about is why it did not.
fn succeeds(mut child: Child) -> io::Result<()> {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                child.kill()?;
                break child.wait()?;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut complaint = String::new();
    if let Some(errors) = child.stderr.take() {
        errors.take(1000).read_to_string(&mut complaint)?;
    }
    Err(io::Error::other(format!("{status}: {}", complaint.trim())))
}

/// The whole path of a program.
fn find(program: &Path) -> io::Result<PathBuf> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no program {}", program.display()));
    if program.components().count() > 1 {
        return fs::canonicalize(program).map_err(|_| missing());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|found| found.is_file()).ok_or_else(missing)
}

fn text(path: &Path) -> io::Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| io::Error::other("a path is not UTF-8"))
}
