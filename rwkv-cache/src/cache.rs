//! The cache: its construction, and what a consumer asks of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crate::error::{CacheError, ErrorKind};
use crate::event::EventKind;
use crate::group::{Extent, Group, GroupId};
use crate::lease::{Lease, this_consumer};
use crate::memory::Memory;
use crate::options::CacheOptions;
use crate::plan::Plan;
use crate::reader::{self, Split};
use crate::ring::Ring;
use crate::shared::Shared;
use crate::source::Source;
use crate::stats::{CacheStats, Counters, Found, GroupStats};

/// What a mapped lease is aligned to, in bytes. Leases of memory begin at a page.
const MAPPED_ALIGNMENT: u64 = 64;

/// Groups of a source, pinned or streaming, with bounded memory and reads ahead of use.
///
/// All methods may be called from several threads. Dropping the cache ends its reader threads after the
/// reads in flight; leases that still live keep their bytes.
pub struct Cache {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    plan: Plan,
}

impl Cache {
    /// A cache of `groups` of `source` by `plan`. Pinned groups begin to load at once, in the background
    /// and in the order of the list; see [`Cache::load_pinned`] to wait for them.
    ///
    /// # Errors
    /// [`ErrorKind::BadPlan`] when the plan was made for other groups, or needs a map and the source has
    /// none; [`ErrorKind::BadExtent`] for an extent outside of the source or, in a mapped plan, one that
    /// does not begin at a multiple of 64 bytes; [`ErrorKind::Resources`] when the system refuses memory
    /// or threads.
    pub fn new(
        source: Arc<dyn Source>,
        groups: Vec<Group>,
        plan: Plan,
        options: CacheOptions,
    ) -> Result<Cache, CacheError> {
        check(&*source, &groups, &plan)?;
        let name = source.describe().name;
        let refused = |what: &str, error| CacheError::new(ErrorKind::Resources, &name, what).because(error);
        let split = Split::new(options.chunk_bytes, source.alignment());

        let mut memories = Vec::new();
        let mut homes = vec![None; groups.len()];
        for id in plan.pinned() {
            homes[id.index()] = Some(memories.len());
            let memory = reserve(plan.len_of(id.index()).next_multiple_of(4096));
            memories.push(memory.map_err(|error| refused("no memory for a pinned group", error))?);
        }
        for _ in 0..plan.slots() {
            let memory = reserve(plan.slot_bytes());
            memories.push(memory.map_err(|error| refused("no memory for a ring slot", error))?);
        }
        let pinned: Vec<bool> = homes.iter().map(Option::is_some).collect();
        let chunks = groups.iter().map(|group| split.chunks(group.extent.len)).collect();
        let ring = Ring::new(chunks, &pinned, plan.slots(), options.read_ahead);

        let readers = if plan.is_mapped() { 0 } else { options.readers };
        let shared = Arc::new(Shared::new(source, groups, memories, homes, ring, split, options));
        let mut cache = Cache { shared, readers: Vec::new(), plan };
        for index in 0..readers {
            let shared = Arc::clone(&cache.shared);
            let builder = std::thread::Builder::new().name(format!("cache-reader-{index}"));
            let reader = builder.spawn(move || reader::run(&shared));
            // Dropping the unfinished cache ends the readers that were started.
            cache.readers.push(reader.map_err(|error| refused("no thread for a reader", error))?);
        }
        cache.shared.change(Ring::load_pinned);
        Ok(cache)
    }

    /// The bytes of a group, waiting for them if they are not in memory.
    ///
    /// A pinned group that is loaded costs no lock. At most [`Plan::slots`] groups that are not pinned
    /// can be leased at the same time; several leases of one group share its slot. A lease beyond that
    /// waits until another thread drops one.
    ///
    /// # Errors
    /// [`ErrorKind::Read`], [`ErrorKind::UnexpectedEnd`], [`ErrorKind::Changed`] or
    /// [`ErrorKind::Panicked`] when reading the group failed, [`ErrorKind::Verify`] when its bytes were
    /// refused: the next lease of it tries again. [`ErrorKind::NoSlot`] when every slot is leased by
    /// threads that wait in this function, so that the lease could never succeed; a lease counts for the
    /// thread that took it, even when it was sent to another one.
    ///
    /// # Panics
    /// When the cache has no group of this id.
    pub fn lease(&self, id: GroupId) -> Result<Lease, CacheError> {
        let group = id.index();
        assert!(group < self.shared.groups.len(), "group {id} of {}", self.shared.groups.len());
        if self.plan.is_mapped() {
            return self.lease_mapped(id);
        }
        if let Some(home) = self.shared.homes[group]
            && self.shared.resident[group].load(Ordering::Acquire)
        {
            self.shared.tallies[group].lease(Found::Pinned);
            self.shared.tell(id, EventKind::Find(Found::Pinned));
            self.shared.tell(id, EventKind::Lease);
            return Ok(Lease::pinned(Arc::clone(&self.shared), id, home));
        }
        let consumer = this_consumer();
        let taken = self.shared.lease(id, consumer)?;
        self.shared.tallies[group].lease(taken.found);
        self.shared.tallies[group].wait(taken.waited);
        // Made before the observer is told, so that the lease ends if the observer panics.
        let place = taken.place;
        let lease = Lease::new(Arc::clone(&self.shared), id, taken, consumer);
        self.shared.tell_at(id, EventKind::Lease, place);
        Ok(lease)
    }

    fn lease_mapped(&self, id: GroupId) -> Result<Lease, CacheError> {
        let group = id.index();
        let lease = Lease::mapped(Arc::clone(&self.shared), id);
        self.shared.tell(id, EventKind::Find(Found::Pinned));
        self.shared.verify_once(group, &lease).map_err(|refused| {
            let Group { name, extent, .. } = &self.shared.groups[group];
            self.shared.tallies[group].error();
            CacheError::new(ErrorKind::Verify, &self.shared.info.name, refused).in_group(name).at(*extent)
        })?;
        self.shared.tallies[group].lease(Found::Pinned);
        self.shared.tell(id, EventKind::Lease);
        Ok(lease)
    }

    /// Waits until every pinned group is in memory.
    ///
    /// # Errors
    /// The first error of a load, as [`Cache::lease`]. Calling again tries again.
    pub fn load_pinned(&self) -> Result<(), CacheError> {
        for id in self.plan.pinned() {
            if !self.shared.resident[id.index()].load(Ordering::Acquire) {
                self.shared.lease(id, this_consumer())?;
            }
        }
        Ok(())
    }

    /// Says which groups will be leased next, in which order; after them the whole list is expected
    /// again from its beginning. For a sweep that leaves groups out or takes them in another order, so
    /// that nothing is read ahead that is not needed. Groups may be pinned or not.
    ///
    /// It is only a prediction: leasing other groups is slower, never wrong.
    ///
    /// # Panics
    /// When the cache has no group of one of the ids.
    pub fn expect(&self, groups: &[GroupId]) {
        let count = self.shared.groups.len();
        for id in groups {
            assert!(id.index() < count, "group {id} of {count}");
        }
        self.shared.change(|ring| ring.expect(groups.iter().map(|id| id.index())));
    }

    /// Fills `buf` with the bytes of the source at `offset`, past the cache, and counts it. For what is
    /// fetched by row, such as a table of embeddings: neither `offset` nor `buf` need be aligned.
    ///
    /// # Errors
    /// [`ErrorKind::Read`], [`ErrorKind::UnexpectedEnd`], [`ErrorKind::Changed`] or [`ErrorKind::Panicked`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), CacheError> {
        let extent = Extent { offset, len: buf.len() as u64 };
        reader::guarded(&self.shared, None, || {
            let result = self.shared.source.read_exact_at(offset, buf);
            result.map_err(|error| CacheError::read(&self.shared.info.name, extent, error))?;
            self.shared.source.check().map_err(|changed| {
                CacheError::new(ErrorKind::Changed, &self.shared.info.name, changed.to_string()).at(extent)
            })
        })?;
        self.shared.row_reads.fetch_add(1, Ordering::Relaxed);
        self.shared.row_bytes.fetch_add(extent.len, Ordering::Relaxed);
        Ok(())
    }

    /// The groups, in the order of their ids.
    pub fn groups(&self) -> &[Group] {
        &self.shared.groups
    }

    /// What is pinned and what streams.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sum of the counters of all groups, without allocating.
    pub fn totals(&self) -> Counters {
        let mut total = Counters::default();
        self.shared.tallies.iter().for_each(|tally| total += tally.snapshot());
        total
    }

    /// All the counters.
    pub fn stats(&self) -> CacheStats {
        let group = |(index, group): (usize, &Group)| GroupStats {
            id: GroupId::new(index),
            name: group.name.clone(),
            pinned: self.plan.is_pinned(GroupId::new(index)),
            counters: self.shared.tallies[index].snapshot(),
        };
        let groups: Vec<GroupStats> = self.shared.groups.iter().enumerate().map(group).collect();
        let mut total = Counters::default();
        groups.iter().for_each(|group| total += group.counters);
        let (depth, waiting) = self.shared.change(|ring| (ring.depth(), ring.waiting()));
        CacheStats {
            total,
            groups,
            row_reads: self.shared.row_reads.load(Ordering::Relaxed),
            row_bytes: self.shared.row_bytes.load(Ordering::Relaxed),
            source: self.shared.info.clone(),
            pinned_bytes: self.plan.pinned_bytes(),
            ring_bytes: self.plan.memory_bytes() - self.plan.pinned_bytes(),
            slots: self.plan.slots(),
            depth,
            waiting,
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.shared.close();
        let this = std::thread::current().id();
        for reader in self.readers.drain(..) {
            // An observer may hold the last handle, and drop it on a reader thread.
            if reader.thread().id() != this {
                // Readers do not panic; if one did, there is nothing left to tell it to.
                let _ = reader.join();
            }
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("source", &self.shared.info)
            .field("groups", &self.shared.groups.len())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

fn reserve(bytes: u64) -> std::io::Result<Memory> {
    let len = usize::try_from(bytes).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
    Memory::reserve(len)
}

/// Refuses a plan for other groups and extents that the source does not have.
fn check(source: &dyn Source, groups: &[Group], plan: &Plan) -> Result<(), CacheError> {
    let info = source.describe();
    let bad_plan = |detail: String| Err(CacheError::new(ErrorKind::BadPlan, &info.name, detail));
    if plan.groups() != groups.len() {
        return bad_plan(format!("a plan for {} groups, there are {}", plan.groups(), groups.len()));
    }
    if plan.is_mapped() && source.mapped().is_none() {
        return bad_plan(format!("a plan for a map, the source reads in mode {}", info.mode));
    }
    for (index, group) in groups.iter().enumerate() {
        let extent = group.extent;
        if plan.len_of(index) != extent.len {
            let planned = plan.len_of(index);
            return bad_plan(format!(
                "a plan for {planned} bytes of group {}, it has {}",
                group.name, extent.len
            ));
        }
        let bad_extent = |detail: String| {
            Err(CacheError::new(ErrorKind::BadExtent, &info.name, detail).in_group(&group.name))
        };
        if extent.end().is_none_or(|end| end > source.len()) {
            return bad_extent(format!("extent {extent} ends past the source ({} bytes)", source.len()));
        }
        if plan.is_mapped() && !extent.offset.is_multiple_of(MAPPED_ALIGNMENT) {
            return bad_extent(format!(
                "extent {extent} of a map begins at no multiple of {MAPPED_ALIGNMENT}"
            ));
        }
    }
    Ok(())
}
