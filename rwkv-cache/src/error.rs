//! What can go wrong between a source and a lease.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::group::Extent;

/// An error of the cache. It can be cloned, because one failed read may have several waiters.
///
/// After an error the cache is still usable: nothing of the failed group is kept, and the next lease of
/// the group reads it again.
#[derive(Clone, Debug, thiserror::Error)]
pub struct CacheError {
    kind: ErrorKind,
    group: Option<String>,
    extent: Option<Extent>,
    origin: String,
    detail: String,
    #[source]
    source: Option<Arc<io::Error>>,
}

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The source refused to read, for example with EIO.
    Read,
    /// The source ended before the extent did: the file is shorter than it was.
    UnexpectedEnd,
    /// The source was changed after it was opened.
    Changed,
    /// The bytes were read, but the verify hook refused them.
    Verify,
    /// The source, the verify hook or the observer panicked in a reader thread.
    Panicked,
    /// Every slot is leased, by threads that wait here for another one: the lease can never succeed.
    NoSlot,
    /// A group's extent does not lie within the source, or is not aligned as a mapped lease needs.
    BadExtent,
    /// The plan was made for other groups, or needs a map that the source does not have.
    BadPlan,
    /// The operating system refused memory or threads.
    Resources,
    /// The file could not be opened in the mode that was asked for.
    Open,
}

impl CacheError {
    pub(crate) fn new(kind: ErrorKind, origin: impl Into<String>, detail: impl Into<String>) -> Self {
        CacheError {
            kind,
            group: None,
            extent: None,
            origin: origin.into(),
            detail: detail.into(),
            source: None,
        }
    }

    pub(crate) fn in_group(mut self, name: &str) -> Self {
        self.group = Some(name.to_owned());
        self
    }

    pub(crate) fn at(mut self, extent: Extent) -> Self {
        self.extent = Some(extent);
        self
    }

    pub(crate) fn because(mut self, source: io::Error) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The error of a read of `extent` that ended with `source`.
    pub(crate) fn read(origin: &str, extent: Extent, source: io::Error) -> Self {
        let (kind, detail) = match source.kind() {
            io::ErrorKind::UnexpectedEof => (ErrorKind::UnexpectedEnd, "the source ended early"),
            _ => (ErrorKind::Read, "read failed"),
        };
        CacheError::new(kind, origin, detail).at(extent).because(source)
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The name of the group it happened to, where it happened to one.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The bytes of the source that were being read, where it happened in a read.
    pub fn extent(&self) -> Option<Extent> {
        self.extent
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "group {group}: ")?;
        }
        if let Some(extent) = self.extent {
            write!(f, "{} bytes at {:#x} of {}: ", extent.len, extent.offset, self.origin)?;
        } else {
            write!(f, "{}: ", self.origin)?;
        }
        f.write_str(&self.detail)
    }
}
