//! What the demonstration engine does, noted while it happens.
//!
//! Everything is counted. Notes of single events are taken in **sampled passes** only: a pass is the sweep that gives
//! each session its next token, and one is sampled whole, reads of the reader threads included, if some time has gone by since the beginning of the
//! last one. So a fast engine is shown by a few of its passes, each complete, and a slow one by all of them.
//!
//! The engine never waits for whoever looks on. It takes a lock for as long as a push takes; the other side takes it for a swap;
//! what nobody takes away in time is dropped and said to be.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rwkv_model::cache::{self, EventKind, Found, ReadOutcome};
use rwkv_model::{Block, Observer, Stage, StageKind, SweepRows};
use serde::Serialize;

/// The least time from the beginning of a sampled pass to that of the next.
const BETWEEN_SAMPLES: Duration = Duration::from_millis(90);
/// Notes that wait to be taken away; a pass of the largest model has some 5000.
const MOST_NOTES: usize = 1 << 15;

/// What happened since the engine began to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Sweeps, each over all weights.
    pub sweeps: u64,
    /// Rows of these sweeps: a token of one session each.
    pub tokens: u64,
    /// Time in sweeps.
    pub sweep_ns: u64,
    /// The part of it that was spent waiting for reads.
    pub wait_ns: u64,
    /// Reads that came to an end.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Groups that were found pinned.
    pub pinned: u64,
    /// Groups that were found in a slot, read ahead of use.
    pub ready: u64,
    /// Groups whose read was under way.
    pub late: u64,
    /// Groups that were neither there nor being read.
    pub absent: u64,
}

/// What a ring slot holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// A group, by its place in the pack.
    pub group: Option<usize>,
    /// What is done with it.
    pub state: SlotState,
    /// Bytes of it that are there.
    pub bytes: u64,
}

/// The state of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotState {
    /// Holds nothing.
    #[default]
    Empty,
    /// Is being read into.
    Loading,
    /// Waits to be used.
    Ready,
    /// Is being used.
    Leased,
}

/// A pass or a part of one, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Which pass, counted from 1.
    pub pass: u64,
    /// What the slots held when the pass began. Only in the first part of a pass.
    pub slots: Option<Vec<Slot>>,
    /// What happened.
    pub notes: Vec<Note>,
    /// How long the pass took. Only in its last part.
    pub end_ns: Option<u64>,
    /// Whether notes are missing.
    pub broken: bool,
}

/// An event: `[kind, begin, duration, block, group, slot or found, bytes]`, times in ns since the pass began. Reads have the offset
/// in the file in the place of a duration.
///
/// Kinds are those of [`kind`]. A block with a time mix is its number, an attention block -2 minus its number; -1 is no block, no group, no slot.
pub type Note = (u8, u64, u64, i32, i32, i32, u64);

/// The kinds of notes, as the page knows them.
pub mod kind {
    pub const EMBED: u8 = 0;
    pub const NORM: u8 = 1;
    pub const FIND: u8 = 2;
    pub const WAIT: u8 = 3;
    pub const BIND: u8 = 4;
    pub const TIME_MIX: u8 = 5;
    pub const ATTENTION: u8 = 6;
    pub const CHANNEL_MIX: u8 = 7;
    pub const HEAD: u8 = 8;
    pub const SAVE_STATE: u8 = 9;
    pub const RELEASE: u8 = 10;
    pub const OTHER: u8 = 11;
    /// A reader begins to read a part of a group.
    pub const READ_BEGIN: u8 = 20;
    /// It is done with it.
    pub const READ_END: u8 = 21;
    /// It failed.
    pub const READ_FAILED: u8 = 22;
    /// The engine begins to wait; how long is known from the stage that follows.
    pub const WAIT_BEGIN: u8 = 23;
    /// A slot is leased.
    pub const LEASE: u8 = 24;
    /// A slot is free again.
    pub const FREE: u8 = 25;
}

/// Notes what happens. The model is given one as an observer, its cache another.
#[derive(Debug)]
pub struct Tap {
    /// Bytes of each group.
    groups: Vec<u64>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    counters: Counters,
    slots: Vec<Slot>,
    parts: Vec<Part>,
    notes: usize,
    pass: u64,
    sampled_since: Option<Instant>,
    sampled_last: Option<Instant>,
    sweep_since: Option<Instant>,
    wait_since: Option<Instant>,
}

/// What was taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    pub counters: Counters,
    /// What the slots hold now.
    pub slots: Vec<Slot>,
    pub parts: Vec<Part>,
}

impl Tap {
    /// For groups of so many bytes.
    pub fn new(groups: Vec<u64>) -> Tap {
        Tap { groups, log: Mutex::default() }
    }

    /// What happened since the last time.
    pub fn take(&self) -> Taken {
        let mut log = self.log();
        log.notes = 0;
        let (counters, slots) = (log.counters, log.slots.clone());
        Taken { counters, slots, parts: std::mem::take(&mut log.parts) }
    }

    /// Counts from zero again.
    pub fn restart(&self) {
        self.log().counters = Counters::default();
    }

    /// No user's code runs under the lock, and a log that misses an event is no reason to end the engine.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn note(&mut self, kind: u8, begin: Instant, lasts: u64, [block, group, slot]: [i32; 3], bytes: u64) {
        let Some(since) = self.sampled_since else { return };
        let note = (kind, ns(begin.saturating_duration_since(since)), lasts, block, group, slot, bytes);
        if self.notes == MOST_NOTES {
            self.part().broken = true;
        } else {
            self.notes += 1;
            self.part().notes.push(note);
        }
    }

    /// The part that is being written.
    fn part(&mut self) -> &mut Part {
        let pass = self.pass;
        if self.parts.last().is_none_or(|part| part.pass != pass || part.end_ns.is_some()) {
            self.parts.push(Part { pass, slots: None, notes: Vec::new(), end_ns: None, broken: false });
        }
        self.parts.last_mut().expect("one was pushed")
    }

    fn slot(&mut self, slot: usize) -> &mut Slot {
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, Slot::default());
        }
        &mut self.slots[slot]
    }
}

impl cache::Observer for Tap {
    fn event(&self, cache::Event { at, group, kind, slot }: cache::Event) {
        let mut log = self.log();
        let group = group.index();
        let place = [-1, group as i32, slot.map_or(-1, |slot| slot as i32)];
        match kind {
            EventKind::Find(found) => match found {
                Found::Pinned => log.counters.pinned += 1,
                Found::Ready => log.counters.ready += 1,
                Found::Late => log.counters.late += 1,
                Found::Absent => log.counters.absent += 1,
            },
            EventKind::ReadBegin(extent) => {
                if let Some(slot) = slot.map(|slot| log.slot(slot))
                    && (slot.group, slot.state) != (Some(group), SlotState::Loading)
                {
                    *slot = Slot { group: Some(group), state: SlotState::Loading, bytes: 0 };
                }
                log.note(kind::READ_BEGIN, at, extent.offset, place, extent.len);
            }
            EventKind::ReadEnd(extent, outcome) => {
                let is_complete = outcome == ReadOutcome::Complete;
                if let Some(slot) = slot.map(|slot| log.slot(slot)) {
                    slot.bytes += if is_complete { extent.len } else { 0 };
                    if !is_complete {
                        *slot = Slot::default();
                    } else if slot.bytes == self.groups[group] {
                        slot.state = SlotState::Ready;
                    }
                }
                let counters = &mut log.counters;
                if is_complete {
                    counters.reads += 1;
                    counters.read_bytes += extent.len;
                } else {
                    counters.failed += 1;
                }
                let kind = if is_complete { kind::READ_END } else { kind::READ_FAILED };
                log.note(kind, at, extent.offset, place, extent.len);
            }
            EventKind::WaitBegin => {
                log.wait_since = Some(at);
                log.note(kind::WAIT_BEGIN, at, 0, place, 0);
            }
            EventKind::WaitEnd => {
                let since = log.wait_since.take().unwrap_or(at);
                log.counters.wait_ns += ns(at - since);
            }
            EventKind::Lease => {
                if let Some(slot) = slot {
                    *log.slot(slot) =
                        Slot { group: Some(group), state: SlotState::Leased, bytes: self.groups[group] };
                    log.note(kind::LEASE, at, 0, place, 0);
                }
            }
            EventKind::Release => {
                // A reader that took the slot over may have said so first.
                if let Some(slot) = slot.map(|slot| log.slot(slot))
                    && (slot.group, slot.state) == (Some(group), SlotState::Leased)
                {
                    *slot = Slot::default();
                }
                if slot.is_some() {
                    log.note(kind::FREE, at, 0, place, 0);
                }
            }
            _ => {}
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A [`Tap`] as the observer of a model.
pub struct Stages(pub std::sync::Arc<Tap>);

impl Observer for Stages {
    fn sweep_begin(&mut self, at: Instant, sweep: &SweepRows<'_>) {
        let mut log = self.0.log();
        log.counters.tokens += sweep.rows as u64;
        log.sweep_since = Some(at);
        // After a sweep that failed, the sampled one has no end.
        log.sampled_since = None;
        let is_pass = sweep.rows == sweep.feeds.len();
        if is_pass && log.sampled_last.is_none_or(|last| at - last >= BETWEEN_SAMPLES) {
            log.pass += 1;
            log.sampled_last = Some(at);
            log.sampled_since = Some(at);
            let slots = log.slots.clone();
            log.part().slots = Some(slots);
        }
    }

    fn sweep_end(&mut self, at: Instant) {
        let mut log = self.0.log();
        let since = log.sweep_since.take().unwrap_or(at);
        let ns = ns(at - since);
        log.counters.sweeps += 1;
        log.counters.sweep_ns += ns;
        if log.sampled_since.is_some() {
            log.part().end_ns = Some(ns);
            log.sampled_since = None;
        }
    }

    fn stage(&mut self, stage: &Stage<'_>) {
        let (kind, found) = match stage.kind {
            StageKind::Embed => (kind::EMBED, -1),
            StageKind::Norm => (kind::NORM, -1),
            StageKind::Find(found) => (kind::FIND, found as i32),
            StageKind::Wait => (kind::WAIT, -1),
            StageKind::Bind => (kind::BIND, -1),
            StageKind::TimeMix => (kind::TIME_MIX, -1),
            StageKind::Attention => (kind::ATTENTION, -1),
            StageKind::ChannelMix => (kind::CHANNEL_MIX, -1),
            StageKind::Head => (kind::HEAD, -1),
            StageKind::SaveState => (kind::SAVE_STATE, -1),
            StageKind::Release => (kind::RELEASE, -1),
            _ => (kind::OTHER, -1),
        };
        let block = match stage.block {
            Some(Block::Rwkv(number)) => number as i32,
            Some(Block::Attention(number)) => -2 - number as i32,
            None => -1,
        };
        let group = stage.group.map_or(-1, |group| group.id.index() as i32);
        let bytes = stage.group.map_or(0, |group| group.bytes);
        self.0.log().note(kind, stage.begin, ns(stage.end - stage.begin), [block, group, found], bytes);
    }
}

#[cfg(test)]
mod tests {
    use rwkv_model::FeedRows;
    use rwkv_model::cache::{Event, Extent, GroupId, Observer as _};

    use super::*;

    const LENS: [u64; 2] = [100, 200];

    struct Course {
        tap: std::sync::Arc<Tap>,
        stages: Stages,
        now: Instant,
    }

    impl Course {
        fn new() -> Course {
            let tap = std::sync::Arc::new(Tap::new(LENS.to_vec()));
            Course { stages: Stages(std::sync::Arc::clone(&tap)), tap, now: Instant::now() }
        }

        fn event(&self, group: usize, kind: EventKind, slot: Option<usize>) {
            self.tap.event(Event { at: self.now, group: GroupId::new(group), kind, slot });
        }

        fn read(&self, group: usize, slot: usize, bytes: u64) {
            let extent = Extent { offset: 0, len: bytes };
            self.event(group, EventKind::ReadBegin(extent), Some(slot));
            self.event(group, EventKind::ReadEnd(extent, ReadOutcome::Complete), Some(slot));
        }

        /// A sweep of so many rows for one session, and some time after it.
        fn sweep(&mut self, rows: usize, after: Duration) {
            let feeds = [FeedRows { feed: 0, rows: 0..rows, first_position: 0 }];
            self.stages.sweep_begin(self.now, &SweepRows { rows, logit_rows: 1, feeds: &feeds });
            let (begin, end) = (self.now, self.now + Duration::from_micros(5));
            self.stages.stage(&Stage {
                kind: StageKind::TimeMix,
                block: Some(Block::Rwkv(3)),
                group: None,
                begin,
                end,
            });
            self.stages.sweep_end(end);
            self.now += after;
        }
    }

    #[test]
    fn slots_follow_the_events() {
        let course = Course::new();
        let slots = || course.tap.take().slots;
        course.read(1, 0, 150);
        assert_eq!(slots(), [Slot { group: Some(1), state: SlotState::Loading, bytes: 150 }]);
        course.read(1, 0, 50);
        assert_eq!(slots()[0].state, SlotState::Ready);
        course.event(1, EventKind::Lease, Some(0));
        assert_eq!(slots()[0].state, SlotState::Leased);
        // The next read of the slot may be told before the release.
        course.event(0, EventKind::ReadBegin(Extent { offset: 0, len: 60 }), Some(0));
        course.event(1, EventKind::Release, Some(0));
        assert_eq!(slots(), [Slot { group: Some(0), state: SlotState::Loading, bytes: 0 }]);
        course.event(0, EventKind::ReadEnd(Extent { offset: 0, len: 60 }, ReadOutcome::Failed), Some(0));
        assert_eq!(slots(), [Slot::default()]);
        let counters = course.tap.take().counters;
        assert_eq!((counters.reads, counters.read_bytes, counters.failed), (2, 200, 1));
    }

    #[test]
    fn everything_is_counted_and_some_passes_are_sampled_whole() {
        let mut course = Course::new();
        for _ in 0..40 {
            course.sweep(1, Duration::from_millis(10));
        }
        course.sweep(7, BETWEEN_SAMPLES * 2);
        let taken = course.tap.take();
        assert_eq!((taken.counters.sweeps, taken.counters.tokens), (41, 47));
        assert_eq!(taken.counters.sweep_ns, 41 * 5000);
        // One in nine, since they are 10 ms apart; a prompt of several rows is no pass.
        assert_eq!(taken.parts.len(), 5);
        for (index, part) in taken.parts.iter().enumerate() {
            assert_eq!((part.pass, part.end_ns, part.broken), (index as u64 + 1, Some(5000), false));
            assert_eq!(part.notes, [(kind::TIME_MIX, 0, 5000, 3, -1, -1, 0)]);
            assert!(part.slots.is_some());
        }
        assert!(course.tap.take().parts.is_empty());
    }

    #[test]
    fn a_pass_is_taken_away_in_parts_and_notes_are_bounded() {
        let mut course = Course::new();
        let feeds = [FeedRows { feed: 0, rows: 0..1, first_position: 0 }];
        course.stages.sweep_begin(course.now, &SweepRows { rows: 1, logit_rows: 1, feeds: &feeds });
        course.read(0, 0, 10);
        let first = course.tap.take().parts;
        assert_eq!((first.len(), first[0].notes.len(), first[0].end_ns), (1, 2, None));
        for _ in 0..MOST_NOTES {
            course.read(0, 0, 0);
        }
        course.stages.sweep_end(course.now);
        let second = course.tap.take().parts;
        assert_eq!((second.len(), second[0].notes.len()), (1, MOST_NOTES));
        assert!(second[0].broken && second[0].slots.is_none() && second[0].end_ns.is_some());
    }

    #[test]
    fn waits_are_summed() {
        let mut course = Course::new();
        course.event(0, EventKind::Find(Found::Absent), None);
        course.event(0, EventKind::WaitBegin, None);
        course.now += Duration::from_micros(3);
        course.event(0, EventKind::WaitEnd, None);
        course.event(0, EventKind::Find(Found::Pinned), None);
        let counters = course.tap.take().counters;
        assert_eq!((counters.wait_ns, counters.absent, counters.pinned), (3000, 1, 1));
    }
}
