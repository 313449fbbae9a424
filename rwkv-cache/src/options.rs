//! How a cache reads.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::event::Observer;
use crate::group::GroupId;
use crate::source::UnknownName;

/// How far ahead of use groups are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadAhead {
    /// Not at all: a group is read when it is leased.
    Off,
    /// One group ahead.
    Next,
    /// One group ahead, and one more each time the consumer has to wait, as far as there are slots; one
    /// less after a long time without a wait.
    #[default]
    Adaptive,
}

impl fmt::Display for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadAhead::Off => "off",
            ReadAhead::Next => "next",
            ReadAhead::Adaptive => "adaptive",
        })
    }
}

impl FromStr for ReadAhead {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let expected = "off, next or adaptive";
        [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive]
            .into_iter()
            .find(|read_ahead| read_ahead.to_string() == name)
            .ok_or_else(|| UnknownName { what: "read-ahead", found: name.to_owned(), expected })
    }
}

/// Which reads of a group are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VerifyReads {
    /// The first one, which finds a damaged file.
    #[default]
    First,
    /// Every one, which also finds a disk or a cable that errs now and then and does not know it.
    Every,
}

impl fmt::Display for VerifyReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerifyReads::First => "first",
            VerifyReads::Every => "every",
        })
    }
}

impl FromStr for VerifyReads {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        [VerifyReads::First, VerifyReads::Every]
            .into_iter()
            .find(|reads| reads.to_string() == name)
            .ok_or_else(|| UnknownName {
                what: "choice of reads",
                found: name.to_owned(),
                expected: "first or every",
            })
    }
}

/// Looks at the bytes of a group.
pub(crate) type Verify = dyn Fn(GroupId, &[u8]) -> Result<(), String> + Send + Sync;

/// How a cache reads; the default suits a solid-state disk.
#[derive(Clone)]
pub struct CacheOptions {
    pub(crate) read_ahead: ReadAhead,
    pub(crate) readers: usize,
    pub(crate) chunk_bytes: usize,
    pub(crate) verify: Option<Arc<Verify>>,
    pub(crate) verify_reads: VerifyReads,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            read_ahead: ReadAhead::default(),
            readers: 4,
            chunk_bytes: 1 << 20,
            verify: None,
            verify_reads: VerifyReads::default(),
            observer: None,
        }
    }
}

impl CacheOptions {
    /// How far ahead of use groups are read. The default is [`ReadAhead::Adaptive`].
    pub fn read_ahead(mut self, read_ahead: ReadAhead) -> Self {
        self.read_ahead = read_ahead;
        self
    }

    /// How many reads are in flight at most, each on a thread of its own. The default is 4.
    ///
    /// # Panics
    /// When it is 0.
    pub fn readers(mut self, readers: usize) -> Self {
        assert!(readers >= 1, "{readers} readers");
        self.readers = readers;
        self
    }

    /// The least size of the reads into which a group is split, in bytes; reads are less than twice as
    /// large. The default is 1 MiB.
    ///
    /// # Panics
    /// When it is 0.
    pub fn chunk_bytes(mut self, chunk_bytes: usize) -> Self {
        assert!(chunk_bytes >= 1, "chunks of {chunk_bytes} bytes");
        self.chunk_bytes = chunk_bytes;
        self
    }

    /// A check of the bytes of each group, made when the group was read and before anybody sees them:
    /// the first time, or [every time](CacheOptions::verify_reads). It runs on a reader thread, in a
    /// mapped cache on the thread of the first lease. A refusal becomes an error of the leases that wait,
    /// the refused bytes are dropped, and the next lease reads and checks again.
    pub fn verify<F>(mut self, verify: F) -> Self
    where
        F: Fn(GroupId, &[u8]) -> Result<(), String> + Send + Sync + 'static,
    {
        self.verify = Some(Arc::new(verify));
        self
    }

    /// Which reads of a group the check is made for. The default is [`VerifyReads::First`]. In a mapped
    /// cache there are no reads, and the first lease is checked.
    pub fn verify_reads(mut self, reads: VerifyReads) -> Self {
        self.verify_reads = reads;
        self
    }

    /// Someone to be told what happens.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("read_ahead", &self.read_ahead)
            .field("readers", &self.readers)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("verify", &self.verify.is_some())
            .field("verify_reads", &self.verify_reads)
            .field("observer", &self.observer.is_some())
            .finish()
    }
}
