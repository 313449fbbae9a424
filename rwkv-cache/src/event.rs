//! What an observer is told, as it happens.

use std::time::Instant;

use crate::group::{Extent, GroupId};
use crate::stats::Found;

/// Something that happened in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// To which group.
    pub group: GroupId,
    /// What.
    pub kind: EventKind,
    /// The ring slot that is read into, leased or freed, counted from 0. None for groups that stay in memory, and for a
    /// consumer that looks for a group or waits.
    pub slot: Option<usize>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A consumer came for the group and found it like this.
    Find(Found),
    /// A reader begins to read a part of the group.
    ReadBegin(Extent),
    /// The reader is done with that part.
    ReadEnd(Extent, ReadOutcome),
    /// The consumer begins to wait.
    WaitBegin,
    /// The consumer's wait is over.
    WaitEnd,
    /// The consumer has its lease.
    Lease,
    /// A lease was dropped.
    Release,
}

/// How the read of a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// All its bytes are there.
    Complete,
    /// With an error.
    Failed,
}

/// Someone who wants to know what happens, for a trace or a live display.
///
/// It is called on the thread on which the event happens, consumer or reader, outside of every lock, so
/// a slow observer slows that thread. An observer must not lease groups of the same cache. A cache
/// without an observer does not even read the clock for it.
pub trait Observer: Send + Sync {
    /// Takes note of an event.
    fn event(&self, event: Event);
}

impl<F: Fn(Event) + Send + Sync> Observer for F {
    fn event(&self, event: Event) {
        self(event)
    }
}
