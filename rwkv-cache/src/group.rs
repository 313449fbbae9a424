//! What is cached: groups, which are named extents of a source.

use std::fmt;

/// The index of a group in the list that the cache was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// The id of the group at `index` of the list.
    ///
    /// # Panics
    /// When `index` does not fit 32 bits.
    pub fn new(index: usize) -> Self {
        GroupId(u32::try_from(index).expect("a group index of at most 32 bits"))
    }

    /// The place of the group in the list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A run of bytes of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where it begins, in bytes from the start of the source.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
}

impl Extent {
    /// The first offset past the extent, or `None` when that overflows.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.offset, self.offset.saturating_add(self.len))
    }
}

/// A unit of caching: what is read, kept, leased and counted as one.
///
/// The list of groups that a cache is made with is also the order of a sweep: groups are expected to
/// be leased from the first to the last, and then from the first again. Groups that stream should be
/// of about one size, because the largest of them decides the size of every ring slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name that errors, statistics and traces use.
    pub name: String,
    /// Where its bytes are.
    pub extent: Extent,
    /// Whether it stays in memory whatever the budget.
    pub always: bool,
}

impl Group {
    /// A group that may stay or may stream, as the budget decides.
    pub fn swept(name: impl Into<String>, extent: Extent) -> Self {
        Group { name: name.into(), extent, always: false }
    }

    /// A group that stays in memory under any budget.
    pub fn always(name: impl Into<String>, extent: Extent) -> Self {
        Group { name: name.into(), extent, always: true }
    }
}
