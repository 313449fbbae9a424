//! A file read from the disk into the buffer, past the page cache.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::file::{self, Identity};
use super::{IoMode, Source, SourceInfo};

/// The size of the buffer through which reads go that are not aligned, in bytes.
const BOUNCE_BYTES: usize = 256 << 10;

/// A file that is read with direct I/O: O_DIRECT on Linux, F_NOCACHE on macOS. Other systems refuse it.
///
/// Direct reads must be aligned. The alignment is what the kernel says the file needs, where it says so
/// (Linux 6.1 and later), and otherwise a page; one real read proves it when the file is opened. Reads
/// at any other offset or into any other buffer are completed through a small aligned buffer.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    identity: Identity,
    alignment: usize,
    reason: String,
    /// Aligned buffers that are not in use.
    bounces: Mutex<Vec<Bounce>>,
}

impl DirectFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, is no regular file, or cannot be read directly: then
    /// [`BufferedFile`](super::BufferedFile) can.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = file::open_direct(path)?;
        let identity = Identity::of(&file)?;
        let (alignment, reason) = match file::direct_alignment(&file) {
            Some(0) => {
                let what = "the file system reads nothing past the page cache";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            Some(bytes) => (bytes, format!("the kernel allows it, aligned to {bytes} bytes")),
            None => (file::PAGE, format!("a read aligned to {} bytes succeeded", file::PAGE)),
        };
        if !alignment.is_power_of_two() || alignment > file::PAGE {
            let what = format!("direct reads of this file need an alignment of {alignment} bytes");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let mut probe = Bounce::new(alignment);
        file::read_at(&file, 0, &mut probe.bytes()[..alignment])?;
        Ok(DirectFile {
            file,
            path: path.to_owned(),
            identity,
            alignment,
            reason,
            bounces: Mutex::new(vec![probe]),
        })
    }

    /// Reads the aligned blocks around `offset` and copies what was asked for. When the buffer is in line
    /// with the file from the next block on, only the first block is read like this.
    fn read_unaligned(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let skip = self.misalignment(offset);
        let in_line = self.misalignment(buf.as_ptr().addr().wrapping_sub(skip) as u64) == 0;
        let span = if in_line && skip + buf.len() >= 2 * self.alignment {
            self.alignment
        } else {
            (skip + buf.len()).next_multiple_of(self.alignment).min(BOUNCE_BYTES)
        };
        let pool = || self.bounces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bounce = pool().pop().unwrap_or_else(|| Bounce::new(self.alignment));
        let read = file::read_at(&self.file, offset - skip as u64, &mut bounce.bytes()[..span]);
        let copied = read.map(|count| {
            let count = count.saturating_sub(skip).min(buf.len());
            buf[..count].copy_from_slice(&bounce.bytes()[skip..skip + count]);
            count
        });
        pool().push(bounce);
        copied
    }

    fn misalignment(&self, number: u64) -> usize {
        (number % self.alignment as u64) as usize
    }
}

impl Source for DirectFile {
    fn len(&self) -> u64 {
        self.identity.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let whole = buf.len() - buf.len() % self.alignment;
        let aligned = self.misalignment(offset) == 0 && self.misalignment(buf.as_ptr().addr() as u64) == 0;
        if aligned && whole != 0 {
            file::read_at(&self.file, offset, &mut buf[..whole])
        } else if buf.is_empty() {
            Ok(0)
        } else {
            self.read_unaligned(offset, buf)
        }
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn check(&self) -> io::Result<()> {
        self.identity.check(&self.file)
    }

    fn describe(&self) -> SourceInfo {
        SourceInfo {
            name: self.path.display().to_string(),
            mode: IoMode::Direct,
            reason: self.reason.clone(),
        }
    }
}

/// An aligned buffer.
#[derive(Debug)]
struct Bounce {
    room: Vec<u8>,
    begin: usize,
}

impl Bounce {
    fn new(alignment: usize) -> Self {
        let room = vec![0; BOUNCE_BYTES + alignment];
        let begin = room.as_ptr().align_offset(alignment);
        assert!(begin <= alignment, "no multiple of {alignment} in the first {begin} bytes");
        Bounce { room, begin }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.room[self.begin..][..BOUNCE_BYTES]
    }
}
