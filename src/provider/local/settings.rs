//! What the provider on this machine has to be told.

use std::path::PathBuf;

/// Where a provider on this machine keeps its files.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The directory that holds one directory per instance and the binding's id file.
    pub root: PathBuf,
    /// The program that runs `berth shim`; the server's own executable.
    pub shim: PathBuf,
    /// What stands between commands and the machine.
    pub confinement: Confinement,
}

impl LocalSettings {
    /// The directory and the program, with everything else as it is unless somebody says otherwise.
    pub fn new(root: PathBuf, shim: PathBuf) -> Self {
        Self { root, shim, confinement: Confinement::default() }
    }
}

/// What stands between the commands of a provider on this machine and that machine.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Whether bubblewrap is to be used.
    pub bubblewrap: Wish,
    /// Its program: a path, or a name that is looked for in `PATH`.
    pub program: PathBuf,
    /// Whether commands have the machine's network, where bubblewrap is used; else they have a loopback of their own each.
    pub network: bool,
}

/// How much something is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It must not be.
    Never,
    /// Where it works.
    IfItWorks,
    /// It must be.
    Always,
}

impl Default for Confinement {
    fn default() -> Self {
        Self { bubblewrap: Wish::IfItWorks, program: "bwrap".into(), network: false }
    }
}
