//! The thread team: hand-offs of about a microsecond between the phases of a step.
//!
//! A phase is a number of items and a function. Threads take items one by one from a shared countdown, so a thread that the
//! operating system holds up does not hold up the rest. [`Team::for_each`] makes an item of each run of neighbours in a
//! list, whose rest those that are ahead take over:
//!
//! ```text
//! caller                                   worker
//! write the job; unfinished = n            loop:
//! countdown = n   (publishes the job)        spin briefly until countdown > 0, else park
//! wake parked workers                        while an item can be taken and the turn is not over: run it
//! while an item can be taken: run it         unfinished -= items run; the last wakes the caller
//! spin briefly, then park, until             if the turn is over: offer the core to others, begin a new turn
//!   unfinished = 0 or countdown > 0
//! ```
//!
//! An item can only be taken by a compare-and-swap that lowers the countdown from above zero, and the caller leaves
//! only after every item is finished: so whoever holds an item may use the job, which lives on the caller's stack. A worker
//! whose turn ends within a walk puts the item back, and whoever takes it next walks on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread that waits keeps its core before it gives it back: longer than the serial work between most phases. The peer
/// it waits for may have lost its core to another process, and goes on only on this one: with 40 instead of 15 microseconds, a
/// decode that shares two cores with a busy process had four fifths of the speed, and no more without it.
const SPIN: Duration = Duration::from_micros(15);

/// How long a worker goes on before it offers its core to other processes. If one waits for it, the system takes the core away
/// sooner or later, and then the team waits some milliseconds for what the worker has in hand. Offered between two items, it has
/// nothing in hand, and the others go on without it. If nobody waits, an offer costs a microsecond.
const TURN: Duration = Duration::from_millis(1);

/// A fixed set of threads that run the phases of a step together. The calling thread is one of them.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    parked: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// Items of the current phase that nobody has taken.
    countdown: AtomicUsize,
    /// Items of the current phase that are not finished.
    unfinished: AtomicUsize,
    /// The current phase. Only valid for a thread that has taken one of its items.
    job: AtomicPtr<Job<'static>>,
    shutdown: AtomicBool,
    caller_parked: AtomicBool,
    caller: Mutex<Thread>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Job<'a> {
    items: usize,
    run: &'a (dyn Fn(usize, Turn) -> Progress + Sync),
}

/// What a thread has done of an item.
enum Progress {
    Finished,
    /// Its turn ended: somebody must take the item again.
    Left,
}

/// When a thread is to offer its core. The caller never does: the others could not go on without it.
#[derive(Clone, Copy)]
struct Turn {
    start: Option<Instant>,
}

impl Turn {
    fn of_worker() -> Turn {
        Turn { start: Some(Instant::now()) }
    }

    fn of_caller() -> Turn {
        Turn { start: None }
    }

    fn is_over(self) -> bool {
        self.start.is_some_and(|start| start.elapsed() >= TURN)
    }
}

impl Team {
    /// A team of `threads` threads, of which `threads - 1` are started here. Zero counts as one.
    pub fn new(threads: usize) -> Team {
        let shared = Arc::new(Shared {
            countdown: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            shutdown: AtomicBool::new(false),
            caller_parked: AtomicBool::new(false),
            caller: Mutex::new(thread::current()),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|n| {
                let parked = Arc::new(AtomicBool::new(false));
                let (shared, flag) = (Arc::clone(&shared), Arc::clone(&parked));
                // A thread that the system refuses leaves a smaller team, which computes the same.
                thread::Builder::new()
                    .name(format!("rwkv-team-{n}"))
                    .spawn(move || shared.work(&flag))
                    .ok()
                    .map(|handle| Worker { parked, handle })
            })
            .collect();
        Team { shared, workers }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f` once on every item, on all threads, and returns when all are done.
    ///
    /// Each thread walks through neighbours, because a product prefetches beyond its end, where the next tiles begin. Who has come
    /// to the end of its walk takes items of the others, from their ends: put the long ones first, and let one item take
    /// from some 5 to 50 microseconds.
    ///
    /// # Panics
    /// When `f` panicked for an item: the other items are run all the same, then the first panic goes on here.
    pub fn for_each<T: Send>(&mut self, items: &mut [T], f: impl Fn(&mut T) + Sync) {
        let len = items.len().div_ceil(self.threads()).max(1);
        let walks: Vec<_> = items.chunks_mut(len).map(|walk| Mutex::new(walk.iter_mut())).collect();
        let walk = |walk: usize| walks[walk].lock().expect("no panic under this lock");
        self.take_turns(walks.len(), &|own, turn| {
            let mut panic = None;
            let next = || walk(own).next();
            let next_of_others =
                || (1..walks.len()).find_map(|step| walk((own + step) % walks.len()).next_back());
            while let Some(item) = next().or_else(next_of_others) {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(item))) {
                    panic.get_or_insert(payload);
                }
                if panic.is_none() && turn.is_over() {
                    return Progress::Left;
                }
            }
            match panic {
                Some(payload) => resume_unwind(payload),
                None => Progress::Finished,
            }
        });
    }

    /// Runs `f` once for every index below `items`.
    ///
    /// # Panics
    /// As [`Team::for_each`].
    pub fn run(&mut self, items: usize, f: &(dyn Fn(usize) + Sync)) {
        self.take_turns(items, &|item, _| {
            f(item);
            Progress::Finished
        });
    }

    /// Runs `f` until every item is finished.
    fn take_turns(&mut self, items: usize, f: &(dyn Fn(usize, Turn) -> Progress + Sync)) {
        if items <= 1 || self.workers.is_empty() {
            for item in 0..items {
                f(item, Turn::of_caller());
            }
            return;
        }
        let shared = &*self.shared;
        let job = Job { items, run: f };
        {
            let mut caller = shared.caller.lock().expect("no panic under this lock");
            if caller.id() != thread::current().id() {
                *caller = thread::current();
            }
        }
        shared.unfinished.store(items, Relaxed);
        shared.job.store((&raw const job).cast_mut().cast(), Relaxed);
        shared.countdown.store(items, SeqCst);
        for worker in self.workers.iter().take(items - 1) {
            if worker.parked.swap(false, SeqCst) {
                worker.handle.thread().unpark();
            }
        }
        shared.finish_items();
        let panic = shared.panic.lock().expect("no panic under this lock").take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.handle.thread().unpark();
            // A worker catches the panics of items; there is nothing to report of its own.
            let _ = worker.handle.join();
        }
    }
}

impl Shared {
    fn work(&self, parked: &AtomicBool) {
        let mut turn = Turn::of_worker();
        while self.wait_for_items(parked) {
            self.take_items(turn);
            if turn.is_over() {
                thread::yield_now();
                turn = Turn::of_worker();
            }
        }
    }

    /// Waits until there may be an item; false at shutdown.
    fn wait_for_items(&self, parked: &AtomicBool) -> bool {
        let ready = || self.countdown.load(SeqCst) > 0 || self.shutdown.load(SeqCst);
        if !spin_until(ready) {
            // Announced before the last look, so that whoever publishes after it sees the announcement.
            parked.store(true, SeqCst);
            while !ready() {
                thread::park();
                parked.store(true, SeqCst);
            }
            parked.store(false, SeqCst);
        }
        !self.shutdown.load(SeqCst)
    }

    /// Takes and runs items until none is left or the turn is over.
    fn take_items(&self, turn: Turn) {
        let mut done = 0;
        let mut wake = false;
        while let Some(left) = self.take() {
            // SAFETY: an item was taken and is not finished, so the caller is still inside `take_turns`, where the job lives;
            // taking it acquired the store of `countdown` that published the job.
            let job = unsafe { &*self.job.load(Relaxed) };
            let item = job.items - left;
            match catch_unwind(AssertUnwindSafe(|| (job.run)(item, turn))) {
                Ok(Progress::Finished) => done += 1,
                Ok(Progress::Left) => {
                    self.countdown.fetch_add(1, SeqCst);
                    wake = true;
                }
                Err(payload) => {
                    self.panic.lock().expect("no panic under this lock").get_or_insert(payload);
                    done += 1;
                }
            }
            if turn.is_over() {
                break;
            }
        }
        wake |= done > 0 && self.unfinished.fetch_sub(done, SeqCst) == done;
        if wake && self.caller_parked.load(SeqCst) {
            self.caller.lock().expect("no panic under this lock").unpark();
        }
    }

    /// Takes one item: what the countdown was before.
    fn take(&self) -> Option<usize> {
        let mut left = self.countdown.load(Relaxed);
        while left > 0 {
            match self.countdown.compare_exchange_weak(left, left - 1, Acquire, Relaxed) {
                Ok(_) => return Some(left),
                Err(now) => left = now,
            }
        }
        None
    }

    /// Takes items, also those that workers put back, until all are finished.
    fn finish_items(&self) {
        let finished = || self.unfinished.load(SeqCst) == 0;
        let wanted = || finished() || self.countdown.load(SeqCst) > 0;
        loop {
            self.take_items(Turn::of_caller());
            if !spin_until(wanted) {
                self.caller_parked.store(true, SeqCst);
                while !wanted() {
                    thread::park();
                }
                self.caller_parked.store(false, SeqCst);
            }
            if finished() {
                return;
            }
        }
    }
}

/// Whether `ready` came true within [`SPIN`].
fn spin_until(ready: impl Fn() -> bool) -> bool {
    for _ in 0..64 {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..16 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    ready()
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("items", &self.items).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_on_every_team() {
        for threads in 0..=5 {
            let mut team = Team::new(threads);
            assert_eq!(team.threads(), threads.max(1));
            for count in [0usize, 1, 2, 3, 7, 100] {
                for round in 0..200u64 {
                    let mut items = vec![round; count];
                    team.for_each(&mut items, |item| *item += 1);
                    assert!(items.iter().all(|&item| item == round + 1), "{threads} threads, {count} items");
                }
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let mut team = Team::new(3);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1));
            let mut items = [0u8; 50];
            team.for_each(&mut items, |item| {
                thread::sleep(Duration::from_micros(20));
                *item += 1;
            });
            assert_eq!(items, [1; 50]);
        }
    }

    #[test]
    fn what_a_worker_leaves_at_the_end_of_its_turn_is_done() {
        let mut team = Team::new(3);
        for round in 0..10 {
            let mut items: Vec<u64> = (0..12).collect();
            team.for_each(&mut items, |item| {
                // Some longer than a turn, and the caller's walk is the shortest in some rounds.
                thread::sleep(TURN.mul_f64((*item + round) as f64 % 5.0 / 2.0));
                *item += 100;
            });
            assert!(items.iter().copied().eq(100..112), "{items:?}");
            let ran = AtomicUsize::new(0);
            team.run(7, &|_| {
                thread::sleep(TURN);
                ran.fetch_add(1, SeqCst);
            });
            assert_eq!(ran.into_inner(), 7);
        }
    }

    #[test]
    fn a_panic_goes_on_in_the_caller_and_the_team_lives() {
        let mut team = Team::new(3);
        for bad in [0, 17, 39] {
            let ran = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(40, &|i| {
                    ran.fetch_add(1, SeqCst);
                    assert_ne!(i, bad, "item {bad}");
                });
            }));
            assert!(caught.is_err());
            assert_eq!(ran.load(SeqCst), 40, "the others run all the same");
        }
        let mut items = [1; 9];
        team.for_each(&mut items, |item| *item *= 2);
        assert_eq!(items, [2; 9]);
    }

    #[test]
    fn a_team_may_move_to_another_thread() {
        let mut team = Team::new(2);
        team.for_each(&mut [0; 8], |item| *item += 1);
        thread::spawn(move || {
            for _ in 0..100 {
                let mut items = [0; 8];
                team.for_each(&mut items, |item| {
                    thread::sleep(Duration::from_micros(60));
                    *item += 1;
                });
                assert_eq!(items, [1; 8]);
            }
        })
        .join()
        .expect("no assertion failed");
    }
}
