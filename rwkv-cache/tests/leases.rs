//! Several leases at once: shared, bounded, waited for, and refused when they never could be had.

mod support;

use std::sync::{Arc, Barrier, mpsc};

use rwkv_cache::{Cache, CacheOptions, ErrorKind, GroupId, ReadAhead, RingShape, plan_with};
use support::{Gated, bytes, groups, part, within_a_minute};

const LEN: u64 = 10_000;
const SLOT: u64 = 12_288;
const MODES: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];

fn cache(slots: usize, read_ahead: ReadAhead) -> (Cache, Vec<u8>) {
    let file = bytes(8 * SLOT as usize);
    let groups = groups(&[LEN; 8], SLOT);
    let plan = plan_with(&groups, slots as u64 * SLOT, RingShape { leases: slots, slots }).expect("plan");
    assert_eq!((plan.slots(), plan.hits_per_sweep()), (slots, 0));
    let options = CacheOptions::default().read_ahead(read_ahead).chunk_bytes(4096);
    (Cache::new(Arc::new(file.clone()), groups, plan, options).expect("cache"), file)
}

fn lease(cache: &Cache, group: usize) -> rwkv_cache::Lease {
    cache.lease(GroupId::new(group)).expect("lease")
}

#[test]
fn as_many_as_there_are_slots_keep_their_bytes() {
    within_a_minute(|| {
        for read_ahead in MODES {
            let (cache, file) = cache(3, read_ahead);
            for first in [0, 3, 5, 1, 5] {
                let held: Vec<_> = (first..first + 3).map(|group| lease(&cache, group)).collect();
                for held in &held {
                    assert_eq!(**held, *part(&file, &cache.groups()[held.group().index()]));
                }
            }
        }
    });
}

#[test]
fn several_of_one_group_share_its_slot() {
    within_a_minute(|| {
        for read_ahead in MODES {
            let (cache, file) = cache(1, read_ahead);
            let first = lease(&cache, 2);
            let second = lease(&cache, 2);
            assert_eq!(first.as_ptr(), second.as_ptr());
            drop(first);
            assert_eq!(*second, *part(&file, &cache.groups()[2]));
            drop(second);
            drop(lease(&cache, 5));
        }
    });
}

#[test]
fn one_that_could_never_be_had_is_an_error() {
    within_a_minute(|| {
        for read_ahead in MODES {
            for slots in 1..=3 {
                let (cache, file) = cache(slots, read_ahead);
                let held: Vec<_> = (0..slots).map(|group| lease(&cache, group)).collect();
                let error = cache.lease(GroupId::new(7)).expect_err("no slot");
                assert_eq!((error.kind(), error.group()), (ErrorKind::NoSlot, Some("group.7")));
                assert!(error.to_string().contains(&format!("all {slots} slots")), "{error}");
                assert_eq!(*held[0], *part(&file, &cache.groups()[0]));
                drop(held);
                assert_eq!(*lease(&cache, 7), *part(&file, &cache.groups()[7]));
            }
        }
    });
}

#[test]
fn threads_that_wait_for_each_other_are_told() {
    within_a_minute(|| {
        for read_ahead in MODES {
            let (cache, _) = cache(2, read_ahead);
            let both = Barrier::new(2);
            let cross = |own: usize, other: usize| {
                let held = lease(&cache, own);
                both.wait();
                let second = cache.lease(GroupId::new(other)).map(drop);
                drop(held);
                second
            };
            let results = std::thread::scope(|scope| {
                let a = scope.spawn(|| cross(0, 4));
                let b = scope.spawn(|| cross(1, 5));
                [a.join().expect("no panic"), b.join().expect("no panic")]
            });
            let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
            // One gives up its lease, and the other one goes on.
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert_eq!(errors[0].kind(), ErrorKind::NoSlot);
        }
    });
}

#[test]
fn a_full_ring_waits_for_another_threads_lease() {
    within_a_minute(|| {
        for read_ahead in MODES {
            let (cache, file) = cache(1, read_ahead);
            let (sender, leases) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let cache = &cache;
                scope.spawn(move || {
                    let held = lease(cache, 0);
                    sender.send(()).expect("main thread");
                    ends.recv().expect("main thread");
                    drop(held);
                });
                leases.recv().expect("other thread");
                end.send(()).expect("other thread");
                assert_eq!(*lease(cache, 4), *part(&file, &cache.groups()[4]));
            });
        }
    });
}

#[test]
fn many_threads_in_any_order_get_the_right_bytes() {
    within_a_minute(|| {
        for read_ahead in MODES {
            for slots in [1, 2, 3] {
                let (cache, file) = cache(slots, read_ahead);
                std::thread::scope(|scope| {
                    for thread in 0..4usize {
                        let (cache, file) = (&cache, &file);
                        scope.spawn(move || {
                            for step in 0..200usize {
                                let group = (step * (2 * thread + 1) + thread) % 8;
                                assert!(*lease(cache, group) == *part(file, &cache.groups()[group]));
                            }
                        });
                    }
                });
                assert_eq!(cache.totals().leases, 800);
            }
        }
    });
}

#[test]
fn a_read_in_flight_is_waited_for_and_not_repeated() {
    within_a_minute(|| {
        let source = Arc::new(Gated::new(bytes(8 * SLOT as usize)));
        let groups = groups(&[LEN; 8], SLOT);
        let plan = plan_with(&groups, 2 * SLOT, RingShape { leases: 1, slots: 2 }).expect("plan");
        let options = CacheOptions::default().read_ahead(ReadAhead::Next);
        let cache = Cache::new(source.clone(), groups, plan, options).expect("cache");
        source.pass(1);
        let first = lease(&cache, 0);
        // Group 1 is being read ahead; now two more come for it.
        source.wait_for_waiting(1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| lease(&cache, 1))).collect();
            source.pass(1);
            let leases: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            assert_eq!(leases[0].as_ptr(), leases[1].as_ptr());
        });
        assert_eq!(cache.stats().groups[1].counters.reads, 1);
        source.pass(u64::MAX);
        drop(first);
    });
}
