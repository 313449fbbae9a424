//! A file mapped into memory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::file::{self, Identity};
use super::{IoMode, Source, SourceInfo};

/// A file in a memory map: leases are slices of the map, and the page cache decides what stays.
///
/// The file must not change while it is mapped. When it is cut, touching the missing pages kills the
/// process with SIGBUS on Unix; a mode that reads reports an error instead.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    map: Mmap,
    path: PathBuf,
    identity: Identity,
}

impl MappedFile {
    /// Opens and maps the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is no regular file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = file::open(path)?;
        let identity = Identity::of(&file)?;
        // SAFETY: the map is read-only. That the file does not change while it is mapped is a condition
        // of this type, which its documentation states; bytes carry no invariant that a change breaks.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { file, map, path: path.to_owned(), identity })
    }
}

impl Source for MappedFile {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Copies from the file, not from the map, so that a file that was cut is an error here.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        file::read_at(&self.file, offset, buf)
    }

    fn mapped(&self) -> Option<&[u8]> {
        Some(&self.map)
    }

    fn check(&self) -> io::Result<()> {
        self.identity.check(&self.file)
    }

    fn describe(&self) -> SourceInfo {
        SourceInfo { name: self.path.display().to_string(), mode: IoMode::Mapped, reason: "asked for".into() }
    }
}
