//! Choosing how a file is read.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::{BufferedFile, DirectFile, MappedFile, Source};
use crate::error::{CacheError, ErrorKind};

/// How a file shall be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Io {
    /// Directly where the file system allows it, else buffered.
    #[default]
    Auto,
    /// From the disk into the buffer, past the page cache, or not at all.
    Direct,
    /// Through the page cache.
    Buffered,
    /// Through a memory map.
    Mapped,
}

/// Opens the file at `path`. [`Source::describe`] of the result says which mode it got and why.
///
/// # Errors
/// [`ErrorKind::Open`] when it cannot be opened in that mode.
pub fn open(path: impl AsRef<Path>, io: Io) -> Result<Arc<dyn Source>, CacheError> {
    let path = path.as_ref();
    let source: Result<Arc<dyn Source>, std::io::Error> = match io {
        Io::Auto => match DirectFile::open(path) {
            Ok(file) => Ok(Arc::new(file)),
            Err(refused) => BufferedFile::open(path)
                .map(|file| Arc::new(file.because(format!("no direct reads: {refused}"))) as Arc<dyn Source>),
        },
        Io::Direct => DirectFile::open(path).map(|file| Arc::new(file) as Arc<dyn Source>),
        Io::Buffered => BufferedFile::open(path).map(|file| Arc::new(file) as Arc<dyn Source>),
        Io::Mapped => MappedFile::open(path).map(|file| Arc::new(file) as Arc<dyn Source>),
    };
    let source = source.map_err(|error| {
        let detail = format!("cannot be opened in mode {io}");
        CacheError::new(ErrorKind::Open, path.display().to_string(), detail).because(error)
    })?;
    let info = source.describe();
    tracing::debug!(file = %info.name, mode = %info.mode, reason = %info.reason, "chose how to read");
    Ok(source)
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Io::Auto => "auto",
            Io::Direct => "direct",
            Io::Buffered => "buffered",
            Io::Mapped => "mmap",
        })
    }
}

/// A name that is none of the expected ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{found}`, expected {expected}")]
pub struct UnknownName {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    pub(crate) expected: &'static str,
}

impl FromStr for Io {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let expected = "auto, direct, buffered or mmap";
        [Io::Auto, Io::Direct, Io::Buffered, Io::Mapped]
            .into_iter()
            .find(|io| io.to_string() == name)
            .ok_or_else(|| UnknownName { what: "i/o mode", found: name.to_owned(), expected })
    }
}
