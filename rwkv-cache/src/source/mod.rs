//! Where the bytes come from.

mod buffered;
mod direct;
mod fault;
mod file;
mod mapped;
mod open;

use std::fmt;
use std::io;

pub use buffered::BufferedFile;
pub use direct::DirectFile;
pub use fault::{EIO, Fault, FaultSource, When};
pub use mapped::MappedFile;
pub use open::{Io, UnknownName, open};

/// Something with a length whose bytes can be read at any offset, by several threads at once.
///
/// An implementation writes [`Source::read_at`], which may return fewer bytes than were asked for; the
/// cache reads through [`Source::read_exact_at`], which completes short reads, repeats interrupted ones
/// and reports an early end as an error.
///
/// A source may be read at any offset into any buffer. Reads whose offset and buffer address are
/// multiples of [`Source::alignment`] are those that cost no extra copy, and the cache makes such reads
/// where the extents allow it.
pub trait Source: Send + Sync {
    /// The length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads some bytes at `offset` into the front of `buf` and returns how many; 0 means the end.
    ///
    /// # Errors
    /// Whatever the system reports. [`io::ErrorKind::Interrupted`] is repeated by
    /// [`Source::read_exact_at`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Fills the whole of `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the source ends before `buf` is full, else the first error
    /// of [`Source::read_at`] that is not an interruption. The contents of `buf` are then unspecified.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset.checked_add(filled as u64).ok_or(io::ErrorKind::InvalidInput)?;
            match self.read_at(at, &mut buf[filled..]) {
                Ok(0) => {
                    let what = format!("no bytes at {at:#x}, {} more were expected", buf.len() - filled);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The power of two to which offsets and buffers are best aligned, in bytes; 1 when it is all the
    /// same.
    fn alignment(&self) -> usize {
        1
    }

    /// All the bytes, where the source has them in memory: a memory map, or a plain array.
    fn mapped(&self) -> Option<&[u8]> {
        None
    }

    /// Whether the source is still what it was when it was opened. The cache asks after every group
    /// that it has read, before it hands the bytes out.
    ///
    /// # Errors
    /// Says what has changed.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// What the source is, for errors and statistics.
    fn describe(&self) -> SourceInfo;
}

/// What a source is and how it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Its name, for a file the path.
    pub name: String,
    /// How it reads.
    pub mode: IoMode,
    /// Why it reads like that, in a few words.
    pub reason: String,
}

/// How a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoMode {
    /// From the disk into the buffer, past the page cache.
    Direct,
    /// Through the page cache, which is told to forget what was read.
    Buffered,
    /// From a memory map, which the page cache backs.
    Mapped,
    /// From something that is no file.
    Other,
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::Direct => "direct",
            IoMode::Buffered => "buffered",
            IoMode::Mapped => "mmap",
            IoMode::Other => "other",
        })
    }
}

/// Bytes in memory are a source too: for tests, and for files that were read by other means.
impl Source for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|start| self.get(start..)).unwrap_or(&[]);
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn mapped(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn describe(&self) -> SourceInfo {
        SourceInfo { name: "memory".into(), mode: IoMode::Other, reason: "given as bytes".into() }
    }
}
