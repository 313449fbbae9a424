//! Counters that are always on and can be read while the cache runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::group::GroupId;
use crate::source::SourceInfo;

/// What an arriving consumer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// A pinned group, in memory.
    Pinned,
    /// In a slot, read ahead of use.
    Ready,
    /// Being read, but not there yet.
    Late,
    /// Neither in memory nor being read.
    Absent,
}

/// What happened to one group, or to all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Complete reads of a group.
    pub reads: u64,
    /// Bytes of complete and incomplete reads.
    pub bytes: u64,
    /// Loads that ended in an error.
    pub errors: u64,
    /// Leases.
    pub leases: u64,
    /// Leases of a pinned group that was in memory, and all leases of a mapped cache.
    pub hits: u64,
    /// Leases of a group that was there because it had been read ahead.
    pub ready: u64,
    /// Leases of a group whose read was under way.
    pub late: u64,
    /// Leases of a group that was not there and whose read had not begun.
    pub absent: u64,
    /// How long consumers waited for late and absent groups.
    pub wait: Duration,
}

/// A group's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Which group.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Whether it stays in memory.
    pub pinned: bool,
    /// What happened to it.
    pub counters: Counters,
}

/// A snapshot of everything the cache counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// All groups together.
    pub total: Counters,
    /// Each group, in the order of the list that the cache was made with.
    pub groups: Vec<GroupStats>,
    /// Reads beside the groups, by [`Cache::read_at`](crate::Cache::read_at).
    pub row_reads: u64,
    /// The bytes of those reads.
    pub row_bytes: u64,
    /// Where the bytes come from, in which mode, and why in that mode.
    pub source: SourceInfo,
    /// The memory of the pinned groups, in bytes.
    pub pinned_bytes: u64,
    /// The memory of the ring, in bytes.
    pub ring_bytes: u64,
    /// The number of ring slots.
    pub slots: usize,
    /// How many groups are read ahead of use at present.
    pub depth: usize,
    /// How many consumers wait for a lease at present.
    pub waiting: usize,
}

/// The living form of [`Counters`]. Each field is exact; fields read while the cache runs may be a few
/// events apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    found: [AtomicU64; 4],
    wait_ns: AtomicU64,
}

impl Tally {
    pub(crate) fn lease(&self, found: Found) {
        self.found[found as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self, count: u64) {
        self.bytes.fetch_add(count, Relaxed);
    }

    pub(crate) fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn wait(&self, wait: Duration) {
        self.wait_ns.fetch_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        let found = |found: Found| self.found[found as usize].load(Relaxed);
        let (hits, ready) = (found(Found::Pinned), found(Found::Ready));
        let (late, absent) = (found(Found::Late), found(Found::Absent));
        Counters {
            reads: self.reads.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            leases: hits + ready + late + absent,
            hits,
            ready,
            late,
            absent,
            wait: Duration::from_nanos(self.wait_ns.load(Relaxed)),
        }
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.leases += other.leases;
        self.hits += other.hits;
        self.ready += other.ready;
        self.late += other.late;
        self.absent += other.absent;
        self.wait += other.wait;
    }
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    /// What happened between two snapshots.
    fn sub(self, earlier: Self) -> Self {
        Counters {
            reads: self.reads - earlier.reads,
            bytes: self.bytes - earlier.bytes,
            errors: self.errors - earlier.errors,
            leases: self.leases - earlier.leases,
            hits: self.hits - earlier.hits,
            ready: self.ready - earlier.ready,
            late: self.late - earlier.late,
            absent: self.absent - earlier.absent,
            wait: self.wait - earlier.wait,
        }
    }
}
