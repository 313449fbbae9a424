use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::{End, Pending};
use super::stats::SchedulerStats;
use crate::generate::FinishReason;

/// What the engine and the others share: requests on their way in, and counters on their way out.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    /// Something has changed that an idle engine has to see.
    changed: Condvar,
    finished: Condvar,
    stats: Mutex<SchedulerStats>,
    /// Requests that may wait.
    most_waiting: usize,
    most_sessions: usize,
}

struct Queue {
    waiting: VecDeque<Pending>,
    running: usize,
    submitted: u64,
    refused: u64,
    is_closed: bool,
    cancel_all: bool,
    is_finished: bool,
}

/// What the engine took.
#[derive(Default)]
pub(super) struct Taken {
    /// To begin with.
    pub begin: Vec<Pending>,
    /// Those that have ended before they began.
    pub ended: Vec<(Pending, End)>,
    /// Whether the sessions that run are to be cancelled.
    pub cancel_all: bool,
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

impl Inbox {
    pub fn new(most_waiting: usize, most_sessions: usize, stats: SchedulerStats) -> Inbox {
        let queue = Queue {
            waiting: VecDeque::new(),
            running: 0,
            submitted: 0,
            refused: 0,
            is_closed: false,
            cancel_all: false,
            is_finished: false,
        };
        Inbox {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            finished: Condvar::new(),
            stats: Mutex::new(stats),
            most_waiting,
            most_sessions,
        }
    }

    /// Puts requests at the end of the queue, if there is room for all of them.
    pub fn put(&self, pending: Vec<Pending>) -> Result<(), Refused> {
        let mut queue = self.lock();
        if queue.is_closed {
            return Err(Refused::Closed);
        }
        // Those that can begin with the next sweep do not wait.
        let free = self.most_sessions - queue.running;
        if queue.waiting.len() + pending.len() > free.saturating_add(self.most_waiting) {
            queue.refused += pending.len() as u64;
            return Err(Refused::Full);
        }
        queue.submitted += pending.len() as u64;
        queue.waiting.extend(pending);
        drop(queue);
        self.changed.notify_one();
        Ok(())
    }

    /// Wakes the engine if it is idle.
    pub fn notify(&self) {
        // An engine that has seen nothing new and is about to wait holds the lock.
        drop(self.lock());
        self.changed.notify_one();
    }

    /// Takes up to `free` requests. An engine that is idle waits for something to do; `None` says that nothing will come.
    pub fn take(&self, free: usize, is_idle: bool) -> Option<Taken> {
        let mut queue = self.lock();
        loop {
            let mut taken = Taken { cancel_all: queue.cancel_all, ..Taken::default() };
            let now = Instant::now();
            for pending in std::mem::take(&mut queue.waiting) {
                let checked = match queue.cancel_all {
                    true => Err(End::Finished(FinishReason::Cancelled)),
                    false => pending.check(now),
                };
                match checked {
                    Err(end) => taken.ended.push((pending, end)),
                    Ok(()) if taken.begin.len() < free => taken.begin.push(pending),
                    Ok(()) => queue.waiting.push_back(pending),
                }
            }
            queue.running = self.most_sessions - free + taken.begin.len();
            if !is_idle || !taken.begin.is_empty() || !taken.ended.is_empty() {
                return Some(taken);
            }
            if queue.is_closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Everything that waits.
    pub fn take_all(&self) -> VecDeque<Pending> {
        std::mem::take(&mut self.lock().waiting)
    }

    /// Takes no more requests.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Takes no more requests, and cancels all that there are.
    pub fn cancel_all(&self) {
        let mut queue = self.lock();
        (queue.is_closed, queue.cancel_all) = (true, true);
        drop(queue);
        self.changed.notify_one();
    }

    /// Says that the engine has ended.
    pub fn finish(&self) {
        self.lock().is_finished = true;
        self.finished.notify_all();
    }

    /// Waits for the end of the engine; whether it came in time.
    pub fn wait_finished(&self, limit: Duration) -> bool {
        let (queue, _) = self
            .finished
            .wait_timeout_while(self.lock(), limit, |queue| !queue.is_finished)
            .unwrap_or_else(PoisonError::into_inner);
        queue.is_finished
    }

    pub fn publish(&self, stats: &SchedulerStats) {
        self.lock().running = stats.running;
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone_from(stats);
    }

    pub fn stats(&self) -> SchedulerStats {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let queue = self.lock();
        stats.queued = queue.waiting.len();
        (stats.submitted, stats.refused) = (queue.submitted, queue.refused);
        stats.is_open = !queue.is_closed;
        stats
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("waiting", &self.waiting.len())
            .field("running", &self.running)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
