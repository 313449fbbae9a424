//! The states of pinned places and ring slots, as one value without threads, memory or files.
//!
//! A **place** is memory for one group at a time. A pinned group has a place of its own, its home; all
//! other groups share the slots of the ring. A place is in one of four states:
//!
//! ```text
//!            start(group)             last chunk, bytes accepted           claim
//!   Empty ────────────────► Loading ────────────────────────────► Ready ◄────────► Leased(n)
//!     ▲                        │                                    │      (home)      │
//!     ├────────────────────────┘ a chunk failed, the bytes were     │                  │
//!     │                          refused, or nobody wants it now    │                  │
//!     ├─────────────────────────────────────────────────────────────┘ its slot is      │
//!     │                                               wanted for a group needed sooner │
//!     └────────────────────────────────────────────────────────────────────────────────┘
//!                                                            last release of a slot
//! ```
//!
//! A lease of a group (`claim`, repeated after every wait) is this:
//!
//! ```text
//! claim(group):
//!   in a place, Ready or Leased  -> count one lease more, done
//!   in a place, Loading          -> wait: never read twice what is being read
//!   its last read failed         -> that error, once for each who waited; the next claim reads again
//!   a slot can be had            -> start loading, wait. Empty slots first, then the Ready slot whose group
//!                                   nobody waits for and which is expected last
//!   every slot is leased, by consumers who wait for a slot themselves -> stuck, an error
//!   otherwise                    -> wait; slots that load what nobody waits for are given up
//! ```
//!
//! Readers take the chunks of loading places one by one: first those of groups that somebody waits for,
//! then those of the ring, then those of pinned groups that are loaded in the background. There is no
//! queue of requests that could go stale.
//!
//! Read-ahead starts loads of expected groups in free slots and in slots whose groups are not expected
//! soon. It never takes a slot while a consumer waits for one, and it leaves alone a group whose last
//! read failed, until somebody asks for it.
//!
//! Every transition happens under one lock, so the exhaustive test beside this file, which walks through
//! every order of transitions of small rings, proves what the shell around it relies on.

use crate::depth::Depth;
use crate::options::ReadAhead;
use crate::sequence::Sequence;
use crate::stats::Found;

#[cfg(test)]
mod states;

/// Whoever holds leases and waits; in the shell a thread.
pub(crate) type Consumer = u64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Empty,
    Loading(Load),
    Ready,
    /// One entry per lease.
    Leased(Vec<Consumer>),
}

/// How far a load has come, in chunks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    chunks: u32,
    taken: u32,
    /// Taken by a reader who has not come back; 1 while a reader looks at the complete bytes.
    busy: u32,
    failed: bool,
    /// The group is not wanted any more; `at` does not point here.
    given_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    home: bool,
    group: usize,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    consumer: Consumer,
    group: usize,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The lease is counted, on this place.
    Leased(usize),
    /// To be repeated after the next change.
    Wait,
    /// The read that was waited for failed.
    Failed,
    /// It can never succeed.
    Stuck,
}

/// A chunk for a reader to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) place: usize,
    pub(crate) group: usize,
    pub(crate) chunk: u32,
}

/// What is to be done after a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing, other chunks are missing.
    More,
    /// Everything is read: look at the bytes, then call [`Ring::finish`].
    Complete,
    /// The load has failed, its place is empty.
    Failed,
    /// The load was given up, its slot is empty.
    GivenUp,
}

/// Who has something to do since this was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wakes {
    /// Readers: there are new chunks to take.
    pub(crate) readers: bool,
    /// Waiting consumers: a repeated claim may end differently.
    pub(crate) consumers: bool,
}

/// Each public method is one transition. After it, whoever [`Ring::take_wakes`] names must be woken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ring {
    places: Vec<Place>,
    /// Group to place: where it is, or is being loaded.
    at: Vec<Option<usize>>,
    /// Group to its own place, for pinned groups.
    homes: Vec<Option<usize>>,
    /// Group to its number of chunks.
    chunks: Vec<u32>,
    /// Groups whose last read failed and which nobody has asked for since.
    sour: Vec<bool>,
    waiting: Vec<Waiter>,
    /// Loading places with chunks to take, first come first.
    queue: Vec<usize>,
    sequence: Sequence,
    depth: Depth,
    wakes: Wakes,
}

impl Ring {
    /// A ring for groups of so many chunks, those of `pinned` with homes, the places 0, 1, ...; the
    /// slots are the places after the homes.
    pub(crate) fn new(chunks: Vec<u32>, pinned: &[bool], slots: usize, read_ahead: ReadAhead) -> Self {
        assert_eq!(chunks.len(), pinned.len(), "one flag per group");
        let mut homes = vec![None; chunks.len()];
        let mut places = Vec::new();
        for group in (0..chunks.len()).filter(|&group| pinned[group]) {
            homes[group] = Some(places.len());
            places.push(Place { home: true, group, state: State::Empty });
        }
        places.extend((0..slots).map(|_| Place { home: false, group: 0, state: State::Empty }));
        let cycle: Vec<usize> = (0..chunks.len()).filter(|&group| !pinned[group]).collect();
        let depth = Depth::new(read_ahead, slots, cycle.len());
        Ring {
            places,
            at: vec![None; chunks.len()],
            homes,
            sour: vec![false; chunks.len()],
            chunks,
            waiting: Vec::new(),
            queue: Vec::new(),
            sequence: Sequence::new(cycle),
            depth,
            wakes: Wakes::default(),
        }
    }

    /// Who must be woken for what happened since the last call.
    pub(crate) fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    /// Starts loading every pinned group.
    pub(crate) fn load_pinned(&mut self) {
        for group in 0..self.homes.len() {
            if let (Some(home), None) = (self.homes[group], self.at[group]) {
                self.start(group, home);
            }
        }
    }

    /// Expects the groups of a sweep, then the whole cycle again.
    pub(crate) fn expect(&mut self, groups: impl Iterator<Item = usize>) {
        let homes = &self.homes;
        self.sequence.expect(groups.filter(|&group| homes[group].is_none()));
        self.read_ahead();
    }

    /// A consumer comes for a group: what it finds, before it claims.
    pub(crate) fn arrive(&mut self, group: usize) -> Found {
        let found = match self.at[group].map(|place| &self.places[place]) {
            None => Found::Absent,
            Some(Place { state: State::Loading(_), .. }) => Found::Late,
            Some(Place { home: true, .. }) => Found::Pinned,
            Some(Place { home: false, .. }) => Found::Ready,
        };
        if self.homes[group].is_none() {
            self.sequence.arrive(group);
            self.depth.adapt(found, self.sequence.len());
        }
        found
    }

    /// One attempt at a lease of a group; see the head of this file.
    pub(crate) fn claim(&mut self, group: usize, consumer: Consumer) -> Claim {
        let claim = self.try_claim(group, consumer);
        self.read_ahead();
        claim
    }

    fn try_claim(&mut self, group: usize, consumer: Consumer) -> Claim {
        if let Some(waiter) = self.waiting.iter().position(|waiter| waiter.consumer == consumer) {
            assert_eq!(self.waiting[waiter].group, group, "a consumer waits for one group at a time");
            if self.waiting.swap_remove(waiter).failed {
                return Claim::Failed;
            }
        }
        self.sour[group] = false;
        if let Some(place) = self.at[group] {
            let Place { home, state, .. } = &mut self.places[place];
            match state {
                State::Empty => unreachable!("group {group} is said to be in the empty place {place}"),
                State::Loading(_) => {}
                // The lease of a home is not counted: a home is never given to another group.
                State::Ready if *home => return Claim::Leased(place),
                State::Ready => {
                    *state = State::Leased(vec![consumer]);
                    return Claim::Leased(place);
                }
                State::Leased(holders) => {
                    holders.push(consumer);
                    return Claim::Leased(place);
                }
            }
        } else if let Some(place) = self.homes[group].or_else(|| self.free_slot()) {
            self.start(group, place);
        } else {
            self.give_up_unwanted();
            if let Some(place) = self.free_slot() {
                self.start(group, place);
            }
        }
        self.waiting.push(Waiter { consumer, group, failed: false });
        if self.at[group].is_none() && self.is_stuck() {
            self.waiting.pop();
            return Claim::Stuck;
        }
        Claim::Wait
    }

    /// A consumer stops waiting.
    pub(crate) fn leave(&mut self, consumer: Consumer) {
        self.waiting.retain(|waiter| waiter.consumer != consumer);
        // The slot that was kept for it may be what somebody else waits for.
        self.wakes.consumers |= self.has_homeless();
        self.read_ahead();
    }

    /// Ends a lease of a slot. The last one frees the slot.
    pub(crate) fn release(&mut self, place: usize, consumer: Consumer) {
        if self.places[place].home {
            return;
        }
        let State::Leased(holders) = &mut self.places[place].state else {
            unreachable!("a lease of place {place} ends, which is {:?}", self.places[place].state)
        };
        let holder = holders.iter().position(|&holder| holder == consumer).expect("a holder of the lease");
        holders.swap_remove(holder);
        if holders.is_empty() {
            self.empty(place);
            self.read_ahead();
        }
    }

    /// The next chunk to read.
    pub(crate) fn take_chunk(&mut self) -> Option<Job> {
        let urgent = self.queue.iter().position(|&place| self.is_wanted(place));
        let slot = || self.queue.iter().position(|&place| !self.places[place].home);
        let next = urgent.or_else(slot).or(if self.queue.is_empty() { None } else { Some(0) })?;
        let place = self.queue[next];
        let group = self.places[place].group;
        let load = self.load(place);
        let chunk = load.taken;
        load.taken += 1;
        load.busy += 1;
        if load.taken == load.chunks {
            self.queue.remove(next);
        }
        Some(Job { place, group, chunk })
    }

    /// A reader is done with a chunk.
    pub(crate) fn chunk_done(&mut self, place: usize, succeeded: bool) -> After {
        let load = self.load(place);
        load.busy -= 1;
        load.failed |= !succeeded;
        let (failed, given_up) = (load.failed, load.given_up);
        if failed || given_up {
            load.taken = load.chunks;
            self.queue.retain(|&queued| queued != place);
        }
        let load = self.load(place);
        if load.busy != 0 || load.taken != load.chunks {
            After::More
        } else if failed || given_up {
            self.fail(place);
            self.read_ahead();
            if given_up { After::GivenUp } else { After::Failed }
        } else {
            load.busy = 1;
            After::Complete
        }
    }

    /// The bytes of a completely read place were looked at. Returns whether the group is there now.
    pub(crate) fn finish(&mut self, place: usize, accepted: bool) -> bool {
        let ready = accepted && !self.load(place).given_up;
        if ready {
            self.places[place].state = State::Ready;
            // Whoever waits for a slot can have this one if nobody waits for the group any more.
            self.wakes.consumers |= self.is_wanted(place) || self.has_homeless();
        } else {
            self.fail(place);
        }
        self.read_ahead();
        ready
    }

    /// Starts the reads ahead that are due. Every transition that may free a slot ends with it.
    fn read_ahead(&mut self) {
        if self.has_homeless() {
            return;
        }
        let soon: Vec<usize> = self.sequence.ahead().take(self.depth.groups()).collect();
        for &group in &soon {
            if self.at[group].is_some() || self.sour[group] {
                continue;
            }
            let is_idle = |place: &usize| match self.places[*place].state {
                State::Empty => true,
                State::Ready => !self.is_wanted(*place) && !soon.contains(&self.places[*place].group),
                _ => false,
            };
            let Some(place) = self.slots().find(is_idle) else { return };
            self.start(group, place);
        }
    }

    /// Whether a consumer waits for a slot.
    fn has_homeless(&self) -> bool {
        self.waiting.iter().any(|waiter| self.is_homeless(waiter))
    }

    /// How many groups are read ahead at present.
    pub(crate) fn depth(&self) -> usize {
        self.depth.groups()
    }

    /// How many consumers wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn slots(&self) -> std::ops::Range<usize> {
        self.places.partition_point(|place| place.home)..self.places.len()
    }

    fn load(&mut self, place: usize) -> &mut Load {
        match &mut self.places[place].state {
            State::Loading(load) => load,
            state => unreachable!("place {place} is not loading but {state:?}"),
        }
    }

    /// Whether somebody waits for the group that this place loads or holds.
    fn is_wanted(&self, place: usize) -> bool {
        let group = self.places[place].group;
        let waits = |waiter: &Waiter| waiter.group == group && !waiter.failed;
        self.at[group] == Some(place) && self.waiting.iter().any(waits)
    }

    /// Whether a waiter waits for a slot, rather than for a read.
    fn is_homeless(&self, waiter: &Waiter) -> bool {
        self.at[waiter.group].is_none() && !waiter.failed
    }

    fn start(&mut self, group: usize, place: usize) {
        if !matches!(self.places[place].state, State::Empty) {
            self.empty(place);
        }
        let load = Load { chunks: self.chunks[group], taken: 0, busy: 0, failed: false, given_up: false };
        self.places[place].group = group;
        self.places[place].state = State::Loading(load);
        self.at[group] = Some(place);
        self.queue.push(place);
        self.wakes.readers = true;
    }

    /// An empty slot, or else the one whose group is not waited for and is needed last.
    fn free_slot(&self) -> Option<usize> {
        let empty = |place: &usize| self.places[*place].state == State::Empty;
        let idle = |place: &usize| self.places[*place].state == State::Ready && !self.is_wanted(*place);
        self.slots().find(empty).or_else(|| {
            let idle = self.slots().filter(idle);
            idle.max_by_key(|&place| self.sequence.distance(self.places[place].group))
        })
    }

    /// Gives up the load that is needed last of those that nobody waits for.
    fn give_up_unwanted(&mut self) {
        let is_loading = |place: &usize| match &self.places[*place].state {
            State::Loading(_) => !self.is_wanted(*place),
            _ => false,
        };
        // One slot is enough: if one is about to be free already, no other load is given up.
        let given_up =
            |place: usize| matches!(&self.places[place].state, State::Loading(load) if load.given_up);
        let homeless = self.waiting.iter().filter(|waiter| self.is_homeless(waiter)).count();
        if self.slots().filter(|&place| given_up(place)).count() > homeless {
            return;
        }
        let unwanted = self.slots().filter(is_loading).filter(|&place| !given_up(place));
        let distance = |&place: &usize| self.sequence.distance(self.places[place].group);
        let Some(place) = unwanted.max_by_key(distance) else { return };
        self.at[self.places[place].group] = None;
        self.queue.retain(|&queued| queued != place);
        let load = self.load(place);
        load.given_up = true;
        load.taken = load.chunks;
        if load.busy == 0 {
            self.empty(place);
        }
    }

    /// Ends a load without success: those who waited for it learn it.
    fn fail(&mut self, place: usize) {
        let group = self.places[place].group;
        if self.at[group] == Some(place) {
            self.sour[group] = true;
            for waiter in self.waiting.iter_mut().filter(|waiter| waiter.group == group) {
                waiter.failed = true;
                self.wakes.consumers = true;
            }
        }
        self.empty(place);
    }

    fn empty(&mut self, place: usize) {
        let group = self.places[place].group;
        if self.at[group] == Some(place) {
            self.at[group] = None;
        }
        self.places[place].state = State::Empty;
        self.wakes.consumers |= self.has_homeless();
    }

    /// Whether every slot is held by a consumer who waits for a slot.
    fn is_stuck(&self) -> bool {
        let waits = |consumer: &Consumer| {
            self.waiting.iter().any(|waiter| waiter.consumer == *consumer && self.is_homeless(waiter))
        };
        self.slots().all(|place| match &self.places[place].state {
            State::Leased(holders) => holders.iter().any(waits),
            _ => false,
        })
    }
}
