//! A workspace of 1 GB in 80 000 files, a server of the local provider that holds it, and what plain tar and zstd make of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Connection, Server, request};

/// How many files there are.
pub const FILES: usize = 80_000;
/// How many bytes they have together.
pub const BYTES: usize = 1_000_000_000;
const WORKERS: u32 = 2;

/// A lease of a server on this machine.
pub struct Holder {
    pub server: Server,
    pub connection: Connection,
    pub lease: Value,
}

impl Holder {
    /// A server and a lease whose workspace is filled behind its back.
    pub async fn with_a_full_workspace(data: &Path) -> Self {
        let server = Server::berth(data, &[("BERTH_PROVIDERS", "local"), ("BERTH_PROVISION_WAIT_SECONDS", "600")]);
        let mut connection = Connection::open(server.address).await;
        let wanted = r#"{"environment":"default","holder":"bench","scope":{"session":"bench"}}"#;
        let lease = connection.json(&request("POST", "/v1/leases", wanted)).await;
        let holder = Self { server, connection, lease };
        fill(&holder.workspace());
        holder
    }

    /// Where the files of the lease are.
    pub fn workspace(&self) -> PathBuf {
        PathBuf::from(self.lease["workspace"]["path"].as_str().unwrap())
    }

    /// Asks for something under the lease, at its present generation.
    pub async fn ask(&mut self, path: &str, body: &str) -> Value {
        let path = format!("/v1/leases/{}/{path}", self.lease["id"].as_str().unwrap());
        let plain = request("POST", &path, body);
        let end = plain.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let fence = format!("\r\nBerth-Generation: {}", self.lease["generation"]);
        self.connection.json(&[&plain[..end], fence.as_bytes(), &plain[end..]].concat()).await
    }

    /// A number of kB that the kernel tells of the server, in MiB.
    pub fn memory(&self, what: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }
}

/// Files of a few sizes in 800 directories; a third of each is noise and the rest is text, so that it compresses as code does.
fn fill(root: &Path) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let noise: Vec<u8> = (0..1 << 17).flat_map(|_| next().to_le_bytes()).collect();
    let text = b"fn main() { let answer = compute(input, 42); println!(\"{answer}\"); }\n".repeat(1 << 10);
    let average = BYTES / FILES;
    for n in 0..FILES {
        let directory = root.join(format!("d{:02}/e{}", n / 1000, n / 100 % 10));
        if n % 100 == 0 {
            fs::create_dir_all(&directory).unwrap();
        }
        let size = average / 2 + (n * 7919) % average;
        let (from, third) = ((n * 4099) % (noise.len() - average), size / 3);
        let mut file = File::create(directory.join(format!("f{n}"))).unwrap();
        file.write_all(&noise[from..from + third]).unwrap();
        file.write_all(&text[..size - third]).unwrap();
    }
}

/// Sums what is written through it.
struct Summed<W>(W, Sha256);

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Tar, one digest, zstd at level 1 with two workers, into a synced file.
pub fn pack(from: &Path, to: &Path) {
    let mut zstd = zstd::Encoder::new(File::create(to).unwrap(), 1).unwrap();
    zstd.multithread(WORKERS).unwrap();
    let mut tar = tar::Builder::new(Summed(zstd, Sha256::new()));
    tar.follow_symlinks(false);
    tar.append_dir_all(".", from).unwrap();
    let Summed(zstd, sum) = tar.into_inner().unwrap();
    assert_eq!(sum.finalize().len(), 32);
    zstd.finish().unwrap().sync_all().unwrap();
}

/// The way back, in one thread.
pub fn unpack(from: &Path, to: &Path) {
    let mut tar = tar::Archive::new(zstd::Decoder::new(File::open(from).unwrap()).unwrap());
    tar.set_preserve_permissions(true);
    tar.unpack(to).unwrap();
}
