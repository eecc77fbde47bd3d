//! Small tars for the engine to unpack: directories, and the beginning and end of one file.

use std::time::{SystemTime, UNIX_EPOCH};

use tar::{Builder, EntryType, Header};

use super::create::Owner;

/// A tar being written.
pub(super) struct Tarball {
    tar: Builder<Vec<u8>>,
    owner: Owner,
    seconds: u64,
}

impl Tarball {
    #[expect(clippy::disallowed_methods, reason = "the time of a file, which decides nothing")]
    pub(super) fn new(owner: Owner) -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { tar: Builder::new(Vec::new()), owner, seconds }
    }

    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_uid(self.owner.uid.into());
        header.set_gid(self.owner.gid.into());
        header.set_mtime(self.seconds);
        header
    }

    /// A directory; its name is relative and has no odd parts.
    pub(super) fn directory(&mut self, name: &[u8], mode: u32) {
        self.append(EntryType::Directory, name, mode, 0);
    }

    /// A directory and all above it.
    pub(super) fn directories(&mut self, name: &[u8], mode: u32) {
        for end in name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at) {
            self.directory(&name[..end], mode);
        }
        self.directory(name, mode);
    }

    /// The tar up to where a file's content begins, and what has to follow the content.
    pub(super) fn file(mut self, name: &[u8], mode: u32, size: u64) -> (Vec<u8>, Vec<u8>) {
        self.append(EntryType::Regular, name, mode, size);
        let padding = usize::try_from((512 - size % 512) % 512).unwrap_or(0);
        (std::mem::take(self.tar.get_mut()), vec![0; padding + 1024])
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(self.tar.get_mut());
        bytes.extend_from_slice(&[0; 1024]);
        bytes
    }

    fn append(&mut self, kind: EntryType, name: &[u8], mode: u32, size: u64) {
        use std::os::unix::ffi::OsStrExt;
        let mut header = self.header(kind, mode, size);
        // Without its content, which comes by itself; a vector takes every write.
        let _ = self.tar.append_data(&mut header, std::ffi::OsStr::from_bytes(name), std::io::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_parts_make_a_tar() {
        let mut tar = Tarball::new(Owner { uid: 5, gid: 6 });
        tar.directories(b"a/b", 0o755);
        let name = [b"a/b/".as_slice(), &[b'x'; 150]].concat();
        let (head, tail) = tar.file(&name, 0o640, 3);
        let whole = [head, b"abc".to_vec(), tail].concat();
        let mut archive = tar::Archive::new(whole.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (5, 6));
            seen.push((entry.path_bytes().len(), entry.header().mode().unwrap(), content));
        }
        let wanted = [(1, 0o755, ""), (3, 0o755, ""), (154, 0o640, "abc")];
        assert_eq!(seen, wanted.map(|(length, mode, content)| (length, mode, content.to_owned())));
    }
}
