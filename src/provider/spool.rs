//! Content on its way into a sandbox, kept until it is known to be whole.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ByteStream, Kind, ProviderError, Result, stream};

/// What is kept in memory; more goes to a file that has no name.
const IN_MEMORY: usize = 1 << 20;

/// Whole content.
pub(super) enum Spool {
    Memory(Vec<u8>),
    File(File, u64),
}

fn failed(error: io::Error) -> ProviderError {
    let kind = if error.kind() == io::ErrorKind::StorageFull { Kind::Full } else { Kind::Transient };
    ProviderError::new(kind, "the server's scratch directory could not be used").because(error)
}

impl Spool {
    /// Reads a stream to its end; one that breaks off leaves nothing.
    pub(super) async fn fill(mut body: ByteStream, scratch: &Path) -> Result<Self> {
        let broke_off = |e| ProviderError::new(Kind::Refused, "the body broke off; nothing was changed").because(e);
        let mut small = Vec::new();
        let most = u64::try_from(IN_MEMORY).unwrap_or(u64::MAX);
        (&mut body).take(most).read_to_end(&mut small).await.map_err(broke_off)?;
        if small.len() < IN_MEMORY {
            return Ok(Self::Memory(small));
        }
        let mut file = tokio::fs::File::from_std(nameless(scratch).map_err(failed)?);
        file.write_all(&small).await.map_err(failed)?;
        let (mut buffer, mut length) = (vec![0; 64 * 1024], most);
        loop {
            let read = body.read(&mut buffer).await.map_err(broke_off)?;
            if read == 0 {
                break;
            }
            file.write_all(&buffer[..read]).await.map_err(failed)?;
            length += u64::try_from(read).unwrap_or(0);
        }
        file.flush().await.map_err(failed)?;
        Ok(Self::File(file.into_std().await, length))
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::File(_, length) => *length,
        }
    }

    /// The content from its beginning.
    pub(super) fn read(self) -> Result<ByteStream> {
        match self {
            Self::Memory(bytes) => Ok(stream::from_bytes(bytes)),
            Self::File(mut file, _) => {
                file.rewind().map_err(failed)?;
                Ok(Box::pin(tokio::fs::File::from_std(file)))
            }
        }
    }

    /// The content for blocking code, which may rewind it.
    pub(super) fn blocking(self) -> Result<Box<dyn ReadSeek>> {
        match self {
            Self::Memory(bytes) => Ok(Box::new(io::Cursor::new(bytes))),
            Self::File(mut file, _) => {
                file.rewind().map_err(failed)?;
                Ok(Box::new(file))
            }
        }
    }
}

/// Something that can be read again from its beginning.
pub(super) trait ReadSeek: io::Read + Seek + Send {}
impl<T: io::Read + Seek + Send> ReadSeek for T {}

/// A file that nobody finds, and that is gone with whoever holds it.
fn nameless(directory: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    std::fs::create_dir_all(directory)?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        return Ok(file.into());
    }
    // A file system that knows no nameless files.
    let path = directory.join(crate::id::new().to_string());
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}
