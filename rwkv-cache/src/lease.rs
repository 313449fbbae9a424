//! The right to read a group's bytes.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::event::EventKind;
use crate::group::GroupId;
use crate::ring::Consumer;
use crate::shared::{Shared, Taken};
use crate::stats::Found;

/// The bytes of a group, readable as long as this lives.
///
/// It begins at a page, except in a mapped cache, where it begins where the extent does in the map: a map of a file
/// begins at a page, and extents at multiples of 64 bytes. A lease of a group that streams keeps its slot; drop it
/// as soon as the bytes are used, because the slot is where the next group is read into. It may outlive the cache.
pub struct Lease {
    shared: Arc<Shared>,
    group: GroupId,
    holding: Holding,
    found: Found,
    waited: Duration,
}

enum Holding {
    Home(usize),
    Slot(usize, Consumer),
    Map,
}

impl Lease {
    pub(crate) fn new(shared: Arc<Shared>, group: GroupId, taken: Taken, consumer: Consumer) -> Self {
        let Taken { place, found, waited } = taken;
        let holding = match shared.homes[group.index()] {
            Some(home) => Holding::Home(home),
            None => Holding::Slot(place, consumer),
        };
        Lease { shared, group, holding, found, waited }
    }

    /// A lease of a pinned group that is loaded.
    pub(crate) fn pinned(shared: Arc<Shared>, group: GroupId, home: usize) -> Self {
        let (found, waited) = (Found::Pinned, Duration::ZERO);
        Lease { shared, group, holding: Holding::Home(home), found, waited }
    }

    pub(crate) fn mapped(shared: Arc<Shared>, group: GroupId) -> Self {
        Lease { shared, group, holding: Holding::Map, found: Found::Pinned, waited: Duration::ZERO }
    }

    /// Which group it is.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// How the group was found when this lease was asked for.
    pub fn found(&self) -> Found {
        self.found
    }

    /// How long this lease was waited for.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let extent = self.shared.groups[self.group.index()].extent;
        let len = extent.len as usize;
        match self.holding {
            // SAFETY: the place was Ready when this lease was made. A home is never written again, and a
            // slot not before its last lease is released, which is when this is dropped.
            Holding::Home(place) | Holding::Slot(place, _) => unsafe {
                self.shared.memories[place].bytes(len)
            },
            Holding::Map => {
                let map = self.shared.source.mapped().expect("a mapped cache's source has a map");
                let begin = extent.offset as usize;
                &map[begin..begin + len]
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Holding::Slot(place, consumer) = self.holding {
            self.shared.release(place, consumer);
            self.shared.tell_at(self.group, EventKind::Release, place);
        } else {
            self.shared.tell(self.group, EventKind::Release);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("group", &self.group).field("len", &self.len()).finish()
    }
}

/// The consumer that the calling thread is.
pub(crate) fn this_consumer() -> Consumer {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static SELF: Cell<Option<Consumer>> = const { Cell::new(None) });
    SELF.with(|consumer| {
        let id = consumer.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        consumer.set(Some(id));
        id
    })
}
