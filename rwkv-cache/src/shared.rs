//! What the consumers, the leases and the readers share: the ring under its lock, and the memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{CacheError, ErrorKind};
use crate::event::{Event, EventKind};
use crate::group::{Group, GroupId};
use crate::memory::Memory;
use crate::options::CacheOptions;
use crate::reader::Split;
use crate::ring::{After, Claim, Consumer, Job, Ring};
use crate::source::{Source, SourceInfo};
use crate::stats::{Found, Tally};

pub(crate) struct Shared {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) info: SourceInfo,
    pub(crate) groups: Vec<Group>,
    /// Place to memory.
    pub(crate) memories: Vec<Memory>,
    /// Group to its own place, for pinned groups.
    pub(crate) homes: Vec<Option<usize>>,
    /// Whether a pinned group is in memory, and will stay there.
    pub(crate) resident: Vec<AtomicBool>,
    verified: Vec<AtomicBool>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) row_reads: AtomicU64,
    pub(crate) row_bytes: AtomicU64,
    pub(crate) split: Split,
    pub(crate) options: CacheOptions,
    locked: Mutex<Locked>,
    /// Told when a load has ended or a slot was freed.
    done: Condvar,
    /// Told when there are chunks to read, and at the end.
    work: Condvar,
}

/// A lease that the ring has counted.
pub(crate) struct Taken {
    pub(crate) place: usize,
    pub(crate) found: Found,
    pub(crate) waited: Duration,
}

struct Locked {
    ring: Ring,
    /// Group to the error of its last failed load.
    errors: Vec<Option<CacheError>>,
    closing: bool,
}

impl Shared {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        groups: Vec<Group>,
        memories: Vec<Memory>,
        homes: Vec<Option<usize>>,
        ring: Ring,
        split: Split,
        options: CacheOptions,
    ) -> Self {
        let flags = || groups.iter().map(|_| AtomicBool::new(false)).collect();
        Shared {
            info: source.describe(),
            source,
            memories,
            homes,
            resident: flags(),
            verified: flags(),
            tallies: groups.iter().map(|_| Tally::default()).collect(),
            row_reads: AtomicU64::new(0),
            row_bytes: AtomicU64::new(0),
            split,
            options,
            locked: Mutex::new(Locked { ring, errors: vec![None; groups.len()], closing: false }),
            done: Condvar::new(),
            work: Condvar::new(),
            groups,
        }
    }

    /// No user code runs under the lock and no state is left half changed, so a poisoned lock would only
    /// turn one panic into many.
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, group: GroupId, kind: EventKind) {
        if let Some(observer) = &self.options.observer {
            observer.event(Event { at: Instant::now(), group, kind });
        }
    }

    /// Changes the ring and wakes the readers when that gave them something to do.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Ring) -> T) -> T {
        let mut locked = self.lock();
        let result = change(&mut locked.ring);
        self.wake_readers(&locked);
        result
    }

    fn wake_readers(&self, locked: &Locked) {
        if locked.ring.has_chunks() {
            self.work.notify_all();
        }
    }

    /// A lease of a group that is not known to be resident.
    pub(crate) fn lease(&self, id: GroupId, consumer: Consumer) -> Result<Taken, CacheError> {
        let group = id.index();
        let found = self.change(|ring| ring.arrive(group));
        self.tell(id, EventKind::Find(found));
        let mut waiting = None;
        let mut locked = self.lock();
        let place = loop {
            let claim = locked.ring.claim(group, consumer);
            locked.ring.read_ahead();
            self.wake_readers(&locked);
            match claim {
                Claim::Leased(place) => break Ok(place),
                Claim::Failed => break Err(self.last_error(&locked, group)),
                Claim::Stuck => break Err(self.no_slot(group)),
                Claim::Wait => {}
            }
            if waiting.is_none() {
                waiting = Some(Instant::now());
                if self.options.observer.is_some() {
                    // An observer is called outside of the lock, and what it misses is looked up again.
                    drop(locked);
                    self.tell(id, EventKind::WaitBegin);
                    locked = self.lock();
                    continue;
                }
            }
            locked = self.done.wait(locked).unwrap_or_else(PoisonError::into_inner);
        };
        drop(locked);
        let waited = waiting.map_or(Duration::ZERO, |begin| begin.elapsed());
        if waiting.is_some() {
            self.tell(id, EventKind::WaitEnd);
        }
        Ok(Taken { place: place?, found, waited })
    }

    fn last_error(&self, locked: &Locked, group: usize) -> CacheError {
        locked.errors[group].clone().unwrap_or_else(|| {
            CacheError::new(ErrorKind::Read, &self.info.name, "read failed")
                .in_group(&self.groups[group].name)
        })
    }

    fn no_slot(&self, group: usize) -> CacheError {
        let slots = self.memories.len() - self.homes.iter().flatten().count();
        let detail = format!("all {slots} slots are leased by threads that wait for one more");
        CacheError::new(ErrorKind::NoSlot, &self.info.name, detail).in_group(&self.groups[group].name)
    }

    /// The end of a lease of a slot.
    pub(crate) fn release(&self, place: usize, consumer: Consumer) {
        let mut locked = self.lock();
        locked.ring.release(place, consumer);
        locked.ring.read_ahead();
        self.wake_readers(&locked);
        if locked.ring.has_homeless() {
            self.done.notify_all();
        }
    }

    /// Waits for the next chunk to read; `None` at the end.
    pub(crate) fn next_job(&self) -> Option<Job> {
        let mut locked = self.lock();
        loop {
            if locked.closing {
                return None;
            }
            if let Some(job) = locked.ring.take_chunk() {
                return Some(job);
            }
            locked = self.work.wait(locked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn chunk_done(&self, job: Job, result: Result<(), CacheError>) -> After {
        let mut locked = self.lock();
        let after = locked.ring.chunk_done(job.place, result.is_ok());
        if let Err(error) = result {
            locked.errors[job.group] = Some(error);
        }
        match after {
            After::More | After::Complete => {}
            After::GivenUp => self.settle(locked),
            After::Failed => {
                self.tallies[job.group].error();
                self.settle(locked);
            }
        }
        after
    }

    pub(crate) fn finish(&self, job: Job, result: Result<(), CacheError>) {
        let mut locked = self.lock();
        locked.ring.finish(job.place, result.is_ok());
        match result {
            Ok(()) => {
                self.tallies[job.group].read();
                if self.homes[job.group].is_some() {
                    // The bytes were written under locks of this mutex or read by this thread; the
                    // release makes them visible to who acquires the flag without the lock.
                    self.resident[job.group].store(true, Ordering::Release);
                }
            }
            Err(error) => {
                locked.errors[job.group] = Some(error);
                self.tallies[job.group].error();
            }
        }
        self.settle(locked);
    }

    /// After a load has ended: read on, and wake who waits.
    fn settle(&self, mut locked: MutexGuard<'_, Locked>) {
        locked.ring.read_ahead();
        self.wake_readers(&locked);
        self.done.notify_all();
    }

    /// Runs the verify hook unless the group was accepted before.
    pub(crate) fn verify_once(&self, group: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(verify) = &self.options.verify else { return Ok(()) };
        if !self.verified[group].load(Ordering::Acquire) {
            verify(GroupId::new(group), bytes)?;
            self.verified[group].store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn depth(&self) -> usize {
        self.lock().ring.depth()
    }

    /// Ends the readers once their reads in flight are done.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
    }
}
