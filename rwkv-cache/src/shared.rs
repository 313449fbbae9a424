//! What the consumers, the leases and the readers share: the ring under its lock, and the memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{CacheError, ErrorKind};
use crate::event::{Event, EventKind};
use crate::group::{Group, GroupId};
use crate::memory::Memory;
use crate::options::{CacheOptions, VerifyReads};
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
    /// The first place that is a slot; those before it are homes.
    first_slot: usize,
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
            first_slot: homes.iter().flatten().count(),
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
        self.tell_of(group, kind, None);
    }

    /// Tells the observer what happens in a place.
    pub(crate) fn tell_at(&self, group: GroupId, kind: EventKind, place: usize) {
        self.tell_of(group, kind, place.checked_sub(self.first_slot));
    }

    fn tell_of(&self, group: GroupId, kind: EventKind, slot: Option<usize>) {
        if let Some(observer) = &self.options.observer {
            observer.event(Event { at: Instant::now(), group, kind, slot });
        }
    }

    /// Makes one transition of the ring and wakes whom it concerns.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Ring) -> T) -> T {
        let mut locked = self.lock();
        let result = change(&mut locked.ring);
        self.wake(&mut locked);
        result
    }

    fn wake(&self, locked: &mut Locked) {
        let wakes = locked.ring.take_wakes();
        if wakes.readers {
            self.work.notify_all();
        }
        if wakes.consumers {
            self.done.notify_all();
        }
    }

    /// A lease of a group that is not known to be resident.
    pub(crate) fn lease(&self, id: GroupId, consumer: Consumer) -> Result<Taken, CacheError> {
        let group = id.index();
        // In one step, so that what was found cannot be given to another group before it is claimed.
        let (found, claim) = self.change(|ring| (ring.arrive(group), ring.claim(group, consumer)));
        if let Claim::Leased(place) = claim {
            let taken = Taken { place, found, waited: Duration::ZERO };
            self.tell_or_undo(id, EventKind::Find(found), |ring| ring.release(place, consumer));
            return Ok(taken);
        }
        let begin = Instant::now();
        for kind in [EventKind::Find(found), EventKind::WaitBegin] {
            self.tell_or_undo(id, kind, |ring| ring.leave(consumer));
        }
        let place = self.wait_for(group, consumer, claim);
        let waited = begin.elapsed();
        let undo = |ring: &mut Ring| place.iter().for_each(|&place| ring.release(place, consumer));
        self.tell_or_undo(id, EventKind::WaitEnd, undo);
        Ok(Taken { place: place?, found, waited })
    }

    /// Tells the observer, and takes back what the consumer has of the ring if the observer panics.
    fn tell_or_undo(&self, id: GroupId, kind: EventKind, undo: impl Fn(&mut Ring)) {
        if self.options.observer.is_some() {
            let told = catch_unwind(AssertUnwindSafe(|| self.tell(id, kind)));
            if let Err(panic) = told {
                self.change(undo);
                resume_unwind(panic);
            }
        }
    }

    fn wait_for(&self, group: usize, consumer: Consumer, mut claim: Claim) -> Result<usize, CacheError> {
        let mut locked = self.lock();
        loop {
            match claim {
                Claim::Leased(place) => return Ok(place),
                Claim::Failed => return Err(self.last_error(&locked, group)),
                Claim::Stuck => return Err(self.no_slot(group)),
                Claim::Wait => {}
            }
            claim = locked.ring.claim(group, consumer);
            self.wake(&mut locked);
            if claim == Claim::Wait {
                locked = self.done.wait(locked).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn last_error(&self, locked: &Locked, group: usize) -> CacheError {
        locked.errors[group].clone().unwrap_or_else(|| {
            CacheError::new(ErrorKind::Read, &self.info.name, "read failed")
                .in_group(&self.groups[group].name)
        })
    }

    fn no_slot(&self, group: usize) -> CacheError {
        let slots = self.memories.len() - self.first_slot;
        let detail = format!("all {slots} slots are leased by threads that wait for one more");
        CacheError::new(ErrorKind::NoSlot, &self.info.name, detail).in_group(&self.groups[group].name)
    }

    /// The end of a lease of a slot.
    pub(crate) fn release(&self, place: usize, consumer: Consumer) {
        self.change(|ring| ring.release(place, consumer));
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

    /// Hands a chunk back.
    pub(crate) fn chunk_done(&self, job: Job, result: Result<(), CacheError>) -> After {
        let mut locked = self.lock();
        let succeeded = result.is_ok();
        self.note(&mut locked, job.group, result);
        let after = locked.ring.chunk_done(job.place, succeeded);
        if after == After::Failed {
            self.tallies[job.group].error();
        }
        self.wake(&mut locked);
        after
    }

    /// Hands a complete group over, or drops it when it was refused.
    pub(crate) fn finish(&self, job: Job, result: Result<(), CacheError>) {
        let mut locked = self.lock();
        let accepted = result.is_ok();
        self.note(&mut locked, job.group, result);
        let ready = locked.ring.finish(job.place, accepted);
        if !accepted {
            self.tallies[job.group].error();
        } else if ready {
            self.tallies[job.group].read();
            // Readers hand their chunks over under the lock, and this store makes all their bytes
            // visible to those who read the flag without it.
            self.resident[job.group].store(self.homes[job.group].is_some(), Ordering::Release);
        }
        self.wake(&mut locked);
    }

    fn note(&self, locked: &mut Locked, group: usize, result: Result<(), CacheError>) {
        if let Err(error) = result {
            locked.errors[group] = Some(error);
        }
    }

    /// Runs the verify hook on bytes that were read, unless the group was accepted before and that is enough.
    pub(crate) fn verify_read(&self, group: usize, bytes: &[u8]) -> Result<(), String> {
        match (&self.options.verify, self.options.verify_reads) {
            (Some(verify), VerifyReads::Every) => verify(GroupId::new(group), bytes),
            _ => self.verify_once(group, bytes),
        }
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

    /// Ends the readers once their reads in flight are done.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
    }
}
