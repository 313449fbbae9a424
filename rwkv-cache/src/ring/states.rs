//! Every order of transitions of small rings: consumers, readers, failures and sleepers.
//!
//! A world is a ring with consumers that follow a script and readers that take chunks, each of which may
//! fail as long as there are faults left. A thread that finds nothing to do sleeps, and goes on only when
//! the ring says that it must be woken, so a wake-up that the ring forgets is a deadlock here. From the
//! first world every transition that is possible is taken, until no new world appears. In each one:
//!
//! - a group that is leased has all its chunks, of this group, read without a fault;
//! - no chunk is read into a place that is leased, and none is read twice at a time;
//! - what is there for a consumer who waits for it stays until that consumer has it, and nothing is
//!   read ahead while a consumer waits for a slot;
//! - if nothing can move, everybody is done; and from everywhere this end can be reached;
//! - a lease fails only after a fault, and is called hopeless only when it is.

use std::collections::HashMap;

use super::{After, Claim, Job, Ring, State};
use crate::options::ReadAhead;

#[derive(Clone, Debug)]
enum Op {
    Lease(usize),
    Release(usize),
    Expect(Vec<usize>),
}

use Op::{Expect, Lease, Release};

/// One small cache, and what its consumers do.
#[derive(Clone)]
struct Setup {
    chunks: Vec<u32>,
    pinned: Vec<bool>,
    slots: usize,
    read_ahead: ReadAhead,
    readers: usize,
    faults: u8,
    /// Whether consumers may stop at any point of their script.
    quitting: bool,
    /// Whether a lease may turn out to be hopeless.
    hopeless: bool,
    scripts: Vec<Vec<Op>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Person {
    step: usize,
    /// Group and place of each lease.
    held: Vec<(usize, usize)>,
    waiting: bool,
    asleep: bool,
    quits: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    Asleep,
    Reading(Job),
    Looking(Job),
}

/// What a place's memory holds: per chunk the group, `None` where a read failed or is under way.
type Bytes = Vec<Option<usize>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    ring: Ring,
    memory: Vec<Bytes>,
    people: Vec<Person>,
    readers: Vec<Reader>,
    faults: u8,
}

impl World {
    fn new(setup: &Setup) -> Self {
        let homes = setup.pinned.iter().filter(|&&pinned| pinned).count();
        let mut ring = Ring::new(setup.chunks.clone(), &setup.pinned, setup.slots, setup.read_ahead);
        ring.load_pinned();
        let person = |_| Person { step: 0, held: Vec::new(), waiting: false, asleep: false, quits: false };
        let mut world = World {
            ring,
            memory: vec![Vec::new(); homes + setup.slots],
            people: setup.scripts.iter().map(person).collect(),
            readers: vec![Reader::Idle; setup.readers],
            faults: setup.faults,
        };
        world.wake();
        world
    }

    fn wake(&mut self) {
        let wakes = self.ring.take_wakes();
        if wakes.readers {
            self.readers.iter_mut().filter(|r| **r == Reader::Asleep).for_each(|r| *r = Reader::Idle);
        }
        if wakes.consumers {
            self.people.iter_mut().for_each(|person| person.asleep = false);
        }
    }

    fn is_over(&self, setup: &Setup) -> bool {
        let done = |(person, script): (&Person, &Vec<Op>)| {
            person.held.is_empty() && !person.waiting && (person.quits || person.step == script.len())
        };
        self.people.iter().zip(&setup.scripts).all(done) && self.readers.iter().all(|r| *r == Reader::Asleep)
    }

    /// Every world that one transition leads to.
    fn successors(&self, setup: &Setup) -> Vec<World> {
        let mut next = Vec::new();
        for who in 0..self.people.len() {
            let person = &self.people[who];
            if person.asleep {
                continue;
            }
            if person.quits {
                if let Some(&lease) = person.held.first() {
                    next.push(self.after(|world| world.release(who, lease)));
                }
            } else if let Some(op) = setup.scripts[who].get(person.step) {
                next.push(self.after(|world| world.act(who, op, setup)));
                if setup.quitting {
                    next.push(self.after(|world| world.quit(who)));
                }
            }
        }
        for reader in 0..self.readers.len() {
            match self.readers[reader].clone() {
                Reader::Asleep => {}
                Reader::Idle => next.push(self.after(|world| world.take(reader))),
                Reader::Reading(job) => {
                    next.push(self.after(|world| world.read(reader, job, true)));
                    if self.faults > 0 {
                        next.push(self.after(|world| world.read(reader, job, false)));
                    }
                }
                Reader::Looking(job) => {
                    next.push(self.after(|world| world.look(reader, job, true)));
                    if self.faults > 0 {
                        next.push(self.after(|world| world.look(reader, job, false)));
                    }
                }
            }
        }
        next
    }

    fn after(&self, change: impl FnOnce(&mut World)) -> World {
        let mut world = self.clone();
        change(&mut world);
        world.wake();
        assert!(world.ring.finds_what_it_holds(), "not to be found: {world:#?}");
        for group in self.ring.kept_for_waiters() {
            let kept = world.ring.is_there(group) || !world.ring.is_waited_for(group);
            assert!(kept, "group {group} is taken away: {self:#?}");
        }
        if self.ring.has_homeless() && world.ring.has_homeless() {
            let begun = world.ring.loading_ahead().into_iter().find(|&group| self.ring.at[group].is_none());
            assert_eq!(begun, None, "read ahead although somebody waits for a slot: {self:#?}");
        }
        world
    }

    fn act(&mut self, who: usize, op: &Op, setup: &Setup) {
        match op {
            Expect(groups) => {
                self.ring.expect(groups.iter().copied());
                self.people[who].step += 1;
            }
            Release(group) => {
                let lease = *self.people[who].held.iter().find(|lease| lease.0 == *group).expect("held");
                self.release(who, lease);
                self.people[who].step += 1;
            }
            Lease(group) => {
                if !self.people[who].waiting {
                    self.ring.arrive(*group);
                }
                self.claim(who, *group, setup);
            }
        }
    }

    /// Stops for good, be it in the middle of a wait: what the observer's panic does.
    fn quit(&mut self, who: usize) {
        if self.people[who].waiting {
            self.ring.leave(who as u64);
        }
        self.people[who].waiting = false;
        self.people[who].quits = true;
    }

    fn claim(&mut self, who: usize, group: usize, setup: &Setup) {
        let claim = self.ring.claim(group, who as u64);
        // The first claim is made on arrival, without the intention to sleep; the others are.
        self.people[who].asleep = claim == Claim::Wait && self.people[who].waiting;
        self.people[who].waiting = claim == Claim::Wait;
        match claim {
            Claim::Wait => {}
            Claim::Leased(place) => {
                let whole = vec![Some(group); setup.chunks[group] as usize];
                assert_eq!(self.memory[place], whole, "what is leased in place {place}: {self:#?}");
                self.people[who].held.push((group, place));
                self.people[who].step += 1;
            }
            // The next attempt is the same step again.
            Claim::Failed => assert!(self.faults < setup.faults, "a failure without a fault: {self:#?}"),
            Claim::Stuck => {
                assert!(setup.hopeless, "called hopeless: {self:#?}");
                let first_slot = setup.pinned.iter().filter(|&&pinned| pinned).count();
                for slot in first_slot..self.memory.len() {
                    let blocked = |(other, person): (usize, &Person)| {
                        person.held.iter().any(|lease| lease.1 == slot) && (other == who || person.waiting)
                    };
                    assert!(self.people.iter().enumerate().any(blocked), "not hopeless: {self:#?}");
                }
                self.people[who].quits = true;
            }
        }
    }

    fn release(&mut self, who: usize, lease: (usize, usize)) {
        let held = &mut self.people[who].held;
        let index = held.iter().position(|held| *held == lease).expect("held");
        held.remove(index);
        self.ring.release(lease.1, who as u64);
    }

    fn take(&mut self, reader: usize) {
        let Some(job) = self.ring.take_chunk() else {
            self.readers[reader] = Reader::Asleep;
            return;
        };
        self.refuse_leased(job);
        let busy = |other: &Reader| matches!(other, Reader::Reading(o) if o.place == job.place && o.chunk == job.chunk);
        assert!(!self.readers.iter().any(busy), "{job:?} is read twice: {self:#?}");
        let bytes = &mut self.memory[job.place];
        if job.chunk == 0 {
            bytes.clear();
        }
        bytes.resize(bytes.len().max(job.chunk as usize + 1), None);
        bytes[job.chunk as usize] = None;
        self.readers[reader] = Reader::Reading(job);
    }

    fn read(&mut self, reader: usize, job: Job, succeeds: bool) {
        self.refuse_leased(job);
        self.memory[job.place][job.chunk as usize] = succeeds.then_some(job.group);
        self.faults -= u8::from(!succeeds);
        self.readers[reader] = match self.ring.chunk_done(job.place, succeeds) {
            After::Complete => Reader::Looking(job),
            After::More | After::Failed | After::GivenUp => Reader::Idle,
        };
    }

    fn look(&mut self, reader: usize, job: Job, accepts: bool) {
        self.refuse_leased(job);
        if !accepts {
            self.faults -= 1;
            self.memory[job.place].fill(None);
        }
        self.ring.finish(job.place, accepts);
        self.readers[reader] = Reader::Idle;
    }

    fn refuse_leased(&self, job: Job) {
        let leased = self.people.iter().flat_map(|person| &person.held).any(|lease| lease.1 == job.place);
        assert!(!leased, "{job:?} writes to a leased place: {self:#?}");
    }
}

/// What is looked at beside the transitions.
impl Ring {
    /// The groups that are there for somebody who waits for them.
    fn kept_for_waiters(&self) -> Vec<usize> {
        let ready = |place: &usize| self.places[*place].state == State::Ready && self.is_wanted(*place);
        (0..self.places.len()).filter(ready).map(|place| self.places[place].group).collect()
    }

    fn is_waited_for(&self, group: usize) -> bool {
        self.waiting.iter().any(|waiter| waiter.group == group && !waiter.failed)
    }

    fn is_there(&self, group: usize) -> bool {
        let there = |place: usize| matches!(self.places[place].state, State::Ready | State::Leased(_));
        self.at[group].is_some_and(there)
    }

    /// Whether each place that is not empty is where its group is looked for, unless it was given up.
    fn finds_what_it_holds(&self) -> bool {
        self.places.iter().enumerate().all(|(index, place)| match &place.state {
            State::Empty => !self.at.contains(&Some(index)),
            State::Loading(load) if load.given_up => self.at[place.group] != Some(index),
            _ => self.at[place.group] == Some(index),
        })
    }

    /// The groups that are being loaded into slots though nobody waits for them.
    fn loading_ahead(&self) -> Vec<usize> {
        let ahead = |place: &usize| match &self.places[*place].state {
            State::Loading(load) => !load.given_up && !self.is_wanted(*place),
            _ => false,
        };
        self.slots().filter(ahead).map(|place| self.places[place].group).collect()
    }
}

/// Walks through every world and returns how many there are.
fn explore(setup: &Setup) -> usize {
    let first = World::new(setup);
    let mut known = HashMap::from([(first.clone(), 0usize)]);
    let mut worlds = vec![first];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut over = Vec::new();
    let mut index = 0;
    while index < worlds.len() {
        let successors = worlds[index].successors(setup);
        if worlds[index].is_over(setup) {
            over.push(index);
        } else {
            assert!(!successors.is_empty(), "deadlock: {:#?}", worlds[index]);
        }
        for world in successors {
            let next = *known.entry(world).or_insert_with_key(|world| {
                worlds.push(world.clone());
                before.push(Vec::new());
                worlds.len() - 1
            });
            before[next].push(index);
        }
        index += 1;
        assert!(index < 3_000_000, "too many worlds for a test");
    }
    // Backwards from every end.
    let mut ends = vec![false; worlds.len()];
    while let Some(index) = over.pop() {
        if !std::mem::replace(&mut ends[index], true) {
            over.extend(&before[index]);
        }
    }
    if let Some(lost) = ends.iter().position(|ends| !ends) {
        panic!("no end can be reached from {:#?}", worlds[lost]);
    }
    worlds.len()
}

/// So many sweeps over the groups, one lease at a time.
fn sweeps(count: usize, groups: usize) -> Vec<Op> {
    (0..count).flat_map(|_| 0..groups).flat_map(|group| [Lease(group), Release(group)]).collect()
}

fn streaming(groups: usize, slots: usize, read_ahead: ReadAhead) -> Setup {
    Setup {
        chunks: vec![1; groups],
        pinned: vec![false; groups],
        slots,
        read_ahead,
        readers: 2,
        faults: 0,
        quitting: false,
        hopeless: false,
        scripts: vec![sweeps(2, groups)],
    }
}

const MODES: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];

#[test]
fn one_consumer_with_faults_that_may_stop_anywhere() {
    for read_ahead in MODES {
        for slots in 1..=3 {
            let one_by_one = streaming(3, slots, read_ahead);
            let with_faults =
                Setup { faults: if slots < 3 { 2 } else { 1 }, quitting: true, ..one_by_one.clone() };
            let chunks = vec![2, 1, if slots < 2 { 3 } else { 2 }];
            let in_chunks = Setup { chunks: chunks.clone(), faults: 1, quitting: true, ..one_by_one.clone() };
            let pinned = vec![true, false, false];
            let with_pinned = Setup { pinned, chunks, faults: 1, quitting: true, ..one_by_one };
            for setup in [with_faults, in_chunks, with_pinned] {
                assert!(explore(&setup) > 100);
            }
        }
    }
}

#[test]
fn leases_that_overlap() {
    let script = vec![Lease(0), Lease(1), Release(0), Lease(2), Release(1), Lease(0), Release(2), Release(0)];
    for read_ahead in MODES {
        for slots in 2..=3 {
            let setup = Setup {
                scripts: vec![script.clone()],
                faults: 1,
                quitting: true,
                ..streaming(3, slots, read_ahead)
            };
            explore(&setup);
        }
    }
}

#[test]
fn what_was_not_predicted_is_only_slower() {
    let scripts = [
        vec![Lease(2), Release(2), Lease(0), Release(0), Lease(2), Release(2), Lease(1), Release(1)],
        vec![
            Expect(vec![0, 2]),
            Lease(1),
            Release(1),
            Lease(0),
            Release(0),
            Expect(vec![]),
            Lease(2),
            Release(2),
        ],
    ];
    for read_ahead in MODES {
        for slots in 1..=2 {
            for script in &scripts {
                let setup = Setup {
                    scripts: vec![script.clone()],
                    chunks: vec![2, 1, 2],
                    faults: 1,
                    quitting: true,
                    ..streaming(3, slots, read_ahead)
                };
                explore(&setup);
            }
        }
    }
}

#[test]
fn two_consumers_share_the_slots() {
    let forth = sweeps(1, 2);
    let back = vec![Lease(1), Release(1), Lease(0), Release(0)];
    for read_ahead in MODES {
        for slots in 1..=2 {
            let setup = Setup {
                scripts: vec![forth.clone(), back.clone()],
                faults: 1,
                quitting: true,
                ..streaming(2, slots, read_ahead)
            };
            explore(&setup);
        }
    }
}

#[test]
fn a_hopeless_lease_is_an_error() {
    let alone = vec![vec![Lease(0), Lease(1), Release(0), Release(1)]];
    let crossed = vec![
        vec![Lease(0), Lease(1), Release(0), Release(1)],
        vec![Lease(1), Lease(0), Release(1), Release(0)],
    ];
    let deadly = vec![
        vec![Lease(0), Lease(2), Release(0), Release(2)],
        vec![Lease(1), Lease(2), Release(1), Release(2)],
    ];
    for (slots, scripts) in [(1, alone), (1, crossed), (2, deadly)] {
        for read_ahead in MODES {
            let setup = Setup {
                scripts: scripts.clone(),
                hopeless: true,
                faults: 1,
                quitting: true,
                ..streaming(3, slots, read_ahead)
            };
            explore(&setup);
        }
    }
}
