//! Read-ahead reads what is expected, and being wrong is only slower.

mod support;

use std::sync::Arc;

use rwkv_cache::{Cache, CacheOptions, GroupId, ReadAhead, RingShape, plan_with};
use support::{Gated, bytes, groups, ids, part, within_a_minute};

const SLOT: u64 = 16_384;

fn cache(slots: usize, read_ahead: ReadAhead) -> (Cache, Arc<Gated>, Vec<u8>) {
    let file = bytes(6 * SLOT as usize);
    let source = Arc::new(Gated::new(file.clone()));
    let groups = groups(&[SLOT; 6], SLOT);
    let plan = plan_with(&groups, slots as u64 * SLOT, RingShape { leases: 1, slots }).expect("plan");
    let options = CacheOptions::default().read_ahead(read_ahead).chunk_bytes(4096).readers(2);
    (Cache::new(source.clone(), groups, plan, options).expect("cache"), source, file)
}

fn reads(cache: &Cache) -> Vec<u64> {
    cache.stats().groups.iter().map(|group| group.counters.reads).collect()
}

fn wait_for_reads(cache: &Cache, count: u64) {
    while cache.totals().reads < count {
        std::thread::yield_now();
    }
}

#[test]
fn off_reads_nothing_ahead() {
    within_a_minute(|| {
        let (cache, source, file) = cache(3, ReadAhead::Off);
        source.pass(u64::MAX);
        for id in ids(6).chain(ids(6)) {
            assert!(*cache.lease(id).expect("lease") == *part(&file, &cache.groups()[id.index()]));
        }
        let total = cache.totals();
        assert_eq!((total.absent, total.late, total.ready, total.reads), (12, 0, 0, 12));
    });
}

#[test]
fn next_reads_one_group_ahead_and_wraps() {
    within_a_minute(|| {
        let (cache, source, _) = cache(3, ReadAhead::Next);
        source.pass(u64::MAX);
        for id in ids(6) {
            cache.lease(id).expect("lease");
            wait_for_reads(&cache, id.index() as u64 + 2);
        }
        assert_eq!(reads(&cache), [2, 1, 1, 1, 1, 1]);
        cache.lease(GroupId::new(0)).expect("lease");
        let total = cache.totals();
        assert_eq!((total.ready, total.absent), (6, 1));
    });
}

#[test]
fn adaptive_reads_further_ahead_while_the_consumer_waits() {
    within_a_minute(|| {
        let (cache, source, _) = cache(4, ReadAhead::Adaptive);
        assert_eq!(cache.stats().depth, 1);
        // The first lease finds nothing: from now on two groups are read ahead. Three groups of four chunks
        // may be read, whichever reader comes first with whichever chunk.
        source.pass(12);
        let first = cache.lease(GroupId::new(0)).expect("lease");
        assert_eq!(cache.stats().depth, 2);
        wait_for_reads(&cache, 3);
        // A consumer who finds everything ready lets it be less again.
        source.pass(u64::MAX);
        drop(first);
        for id in ids(6).chain(ids(6)).chain(ids(6)).skip(1).take(12) {
            wait_for_reads(&cache, cache.totals().leases + 2);
            cache.lease(id).expect("lease");
        }
        assert_eq!((cache.stats().depth, cache.totals().late), (1, 0));
    });
}

#[test]
fn what_a_sweep_leaves_out_is_not_read_ahead() {
    within_a_minute(|| {
        for read_ahead in [ReadAhead::Next, ReadAhead::Adaptive] {
            let (cache, source, _) = cache(3, read_ahead);
            source.pass(u64::MAX);
            let sweep: Vec<GroupId> = ids(4).collect();
            for _ in 0..5 {
                cache.expect(&sweep);
                for &id in &sweep {
                    cache.lease(id).expect("lease");
                }
            }
            drop(cache.lease(GroupId::new(0)));
            assert_eq!(reads(&cache)[4..], [0, 0], "{read_ahead}");
            // Expecting everything again brings the others back.
            cache.expect(&ids(6).collect::<Vec<_>>());
            for id in ids(6) {
                cache.lease(id).expect("lease");
            }
            assert_eq!(reads(&cache)[4..], [1, 1], "{read_ahead}");
        }
    });
}

#[test]
fn expecting_starts_the_first_read() {
    within_a_minute(|| {
        let (cache, source, file) = cache(2, ReadAhead::Next);
        source.pass(u64::MAX);
        cache.expect(&[GroupId::new(3), GroupId::new(1)]);
        wait_for_reads(&cache, 1);
        assert!(*cache.lease(GroupId::new(3)).expect("lease") == *part(&file, &cache.groups()[3]));
        assert_eq!(cache.totals().ready, 1);
    });
}

#[test]
fn any_order_gets_the_right_bytes() {
    within_a_minute(|| {
        for read_ahead in [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive] {
            for slots in 1..=4 {
                let (cache, source, file) = cache(slots, read_ahead);
                source.pass(u64::MAX);
                for step in 0..300usize {
                    let id = GroupId::new(step * step % 6);
                    if step % 7 == 0 {
                        cache.expect(&[GroupId::new(5), id]);
                    }
                    assert!(*cache.lease(id).expect("lease") == *part(&file, &cache.groups()[id.index()]));
                }
            }
        }
    });
}

#[test]
fn an_unwanted_read_ahead_is_given_up_after_the_reads_in_flight() {
    within_a_minute(|| {
        let (cache, source, file) = cache(1, ReadAhead::Next);
        // Two of the four chunks of group 0 are in flight.
        cache.expect(&[GroupId::new(0)]);
        source.wait_for_waiting(2);
        std::thread::scope(|scope| {
            let lease = scope.spawn(|| cache.lease(GroupId::new(5)).expect("lease"));
            // The consumer has said that it waits before the reads are let through.
            while cache.stats().waiting == 0 {
                std::thread::yield_now();
            }
            source.pass(u64::MAX);
            let lease = lease.join().expect("no panic");
            assert!(*lease == *part(&file, &cache.groups()[5]));
            assert_eq!(source.passed(), 2 + 4);
        });
    });
}
