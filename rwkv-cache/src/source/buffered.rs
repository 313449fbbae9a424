//! A file read through the page cache, which is told not to keep a second copy.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::file::{self, Identity};
use super::{IoMode, Source, SourceInfo};

/// A file that is read through the page cache.
///
/// The system is told that reads come in no order it could guess, since the cache reads ahead itself,
/// and to forget what was read, so that the page cache holds no second copy of what the ring holds.
#[derive(Debug)]
pub struct BufferedFile {
    file: File,
    path: PathBuf,
    identity: Identity,
    reason: String,
}

impl BufferedFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, or is no regular file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = file::open(path)?;
        let identity = Identity::of(&file)?;
        file::expect_random(&file);
        Ok(BufferedFile { file, path: path.to_owned(), identity, reason: "asked for".into() })
    }

    /// Says why this mode was chosen.
    pub(crate) fn because(mut self, reason: String) -> Self {
        self.reason = reason;
        self
    }
}

impl Source for BufferedFile {
    fn len(&self) -> u64 {
        self.identity.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let count = file::read_at(&self.file, offset, buf)?;
        file::forget(&self.file, offset, count);
        Ok(count)
    }

    fn alignment(&self) -> usize {
        file::PAGE
    }

    fn check(&self) -> io::Result<()> {
        self.identity.check(&self.file)
    }

    fn describe(&self) -> SourceInfo {
        SourceInfo {
            name: self.path.display().to_string(),
            mode: IoMode::Buffered,
            reason: self.reason.clone(),
        }
    }
}
