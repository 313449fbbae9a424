//! The counters add up, and an observer sees the same.

mod support;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rwkv_cache::source::{Fault, FaultSource, IoMode, When};
use rwkv_cache::{
    Cache, CacheOptions, Counters, Event, EventKind, Found, GroupId, ReadAhead, ReadOutcome, plan,
};
use support::{bytes, groups, ids, within_a_minute};

const LENS: [u64; 5] = [20_000, 20_000, 20_000, 1000, 20_000];

#[test]
fn the_total_is_the_sum_of_the_groups() {
    within_a_minute(|| {
        let file = bytes(120_000);
        let groups = groups(&LENS, 4096);
        let plan = plan(&groups, 4 * 20_480).expect("plan");
        let cache = Cache::new(Arc::new(file), groups, plan.clone(), CacheOptions::default()).expect("cache");
        for id in ids(5).chain(ids(5)) {
            cache.lease(id).expect("lease");
        }
        let mut row = [0; 100];
        cache.read_at(99_999, &mut row).expect("row");
        cache.read_at(5, &mut row[..7]).expect("row");
        let stats = cache.stats();
        let mut sum = Counters::default();
        stats.groups.iter().for_each(|group| sum += group.counters);
        assert_eq!(stats.total, sum);
        assert_eq!(stats.total.leases, 10);
        for (group, info) in stats.groups.iter().zip(cache.groups()) {
            assert_eq!((group.name.as_str(), group.counters.leases), (info.name.as_str(), 2));
            assert_eq!(group.counters.bytes, group.counters.reads * info.extent.len);
            assert_eq!(group.pinned, plan.is_pinned(group.id));
        }
        assert_eq!((stats.row_reads, stats.row_bytes), (2, 107));
        assert_eq!(stats.pinned_bytes, plan.pinned_bytes());
        assert_eq!(stats.ring_bytes, plan.slots() as u64 * plan.slot_bytes());
        assert_eq!((stats.source.mode, stats.waiting), (IoMode::Other, 0));
    });
}

#[test]
fn rows_past_the_end_are_an_error_and_not_counted() {
    let groups = groups(&[100], 1);
    let plan = plan(&groups, 4096).expect("plan");
    let cache = Cache::new(Arc::new(vec![0; 100]), groups, plan, CacheOptions::default()).expect("cache");
    for (offset, len) in [(90, 11), (100, 1), (u64::MAX, 2)] {
        cache.read_at(offset, &mut vec![0; len]).expect_err("past the end");
    }
    assert_eq!(cache.stats().row_reads, 0);
}

#[test]
fn waits_are_measured() {
    within_a_minute(|| {
        let source = FaultSource::new(bytes(120_000));
        source.inject(When::Always, Fault::Delay(Duration::from_millis(5)));
        let groups = groups(&LENS, 4096);
        let plan = plan(&groups, 20_480).expect("plan");
        let options = CacheOptions::default().read_ahead(ReadAhead::Off);
        let cache = Cache::new(Arc::new(source), groups, plan, options).expect("cache");
        let mut waited = Duration::ZERO;
        for id in ids(5) {
            let lease = cache.lease(id).expect("lease");
            assert_eq!(lease.found(), Found::Absent);
            waited += lease.waited();
        }
        assert_eq!(cache.totals().wait, waited);
        // A sleep is never shorter than asked for.
        assert!(cache.totals().wait >= Duration::from_millis(25), "{:?}", cache.totals());
        assert_eq!(cache.totals().absent, 5);
    });
}

#[test]
fn an_observer_sees_every_step_in_order() {
    within_a_minute(|| {
        let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = Arc::clone(&seen);
        let observer = Arc::new(move |event: Event| sink.lock().expect("no panic").push(event));
        let file = bytes(120_000);
        let groups = groups(&LENS, 4096);
        let plan = plan(&groups, 3 * 20_480).expect("plan");
        let options = CacheOptions::default().observer(observer).chunk_bytes(4096);
        let cache = Cache::new(Arc::new(file), groups, plan, options).expect("cache");
        for id in ids(5).chain(ids(5)) {
            cache.lease(id).expect("lease");
        }
        let total = cache.totals();
        let dropped = cache.stats();
        let plan = cache.plan().clone();
        drop(cache);
        let seen = seen.lock().expect("no panic");
        let count =
            |wanted: fn(&EventKind) -> bool| seen.iter().filter(|event| wanted(&event.kind)).count() as u64;
        assert_eq!(count(|kind| *kind == EventKind::Lease), total.leases);
        for event in seen.iter() {
            let takes_slot =
                !matches!(event.kind, EventKind::Find(_) | EventKind::WaitBegin | EventKind::WaitEnd)
                    && !plan.is_pinned(event.group);
            assert_eq!(event.slot.is_some(), takes_slot, "{event:?}");
            assert!(event.slot.is_none_or(|slot| slot < plan.slots()), "{event:?}");
        }
        assert_eq!(count(|kind| *kind == EventKind::Release), total.leases);
        assert_eq!(count(|kind| *kind == EventKind::Find(Found::Pinned)), total.hits);
        assert_eq!(count(|kind| *kind == EventKind::Find(Found::Absent)), total.absent);
        assert_eq!(count(|kind| *kind == EventKind::WaitBegin), total.late + total.absent);
        assert_eq!(count(|kind| *kind == EventKind::WaitEnd), total.late + total.absent);
        let mut begun: HashMap<_, i64> = HashMap::new();
        let mut bytes = 0;
        for event in seen.iter() {
            match event.kind {
                EventKind::ReadBegin(extent) => *begun.entry(extent.offset).or_default() += 1,
                EventKind::ReadEnd(extent, outcome) => {
                    assert_eq!(outcome, ReadOutcome::Complete);
                    *begun.get_mut(&extent.offset).expect("begun before") -= 1;
                    bytes += extent.len;
                }
                _ => {}
            }
        }
        assert!(begun.values().all(|&open| open == 0));
        assert!(bytes >= dropped.total.bytes);
        // What one thread does to one group is seen in its order.
        let own = |group| seen.iter().filter(move |event| event.group == GroupId::new(group));
        for group in 0..5 {
            let order: Vec<_> = own(group)
                .filter(|event| !matches!(event.kind, EventKind::ReadBegin(_) | EventKind::ReadEnd(..)))
                .map(|event| event.kind)
                .collect();
            let ends = order.iter().filter(|kind| **kind == EventKind::Release).count();
            assert_eq!((order.last(), ends), (Some(&EventKind::Release), 2), "{order:?}");
            assert!(matches!(order[0], EventKind::Find(_)), "{order:?}");
        }
        assert!(own(0).zip(own(0).skip(1)).all(|(a, b)| a.at <= b.at || a.kind != EventKind::Lease));
    });
}

#[test]
fn an_observer_that_panics_takes_nothing_with_it() {
    within_a_minute(|| {
        type Kind = fn(EventKind) -> bool;
        let kinds: [(&str, Kind); 6] = [
            ("find", |kind| matches!(kind, EventKind::Find(_))),
            ("read begin", |kind| matches!(kind, EventKind::ReadBegin(_))),
            ("read end", |kind| matches!(kind, EventKind::ReadEnd(..))),
            ("wait begin", |kind| kind == EventKind::WaitBegin),
            ("wait end", |kind| kind == EventKind::WaitEnd),
            ("lease", |kind| kind == EventKind::Lease),
        ];
        for (name, wanted) in kinds {
            let left = Arc::new(Mutex::new(3));
            let panics = Arc::clone(&left);
            let observer = Arc::new(move |event: Event| {
                let mut left = panics.lock().unwrap_or_else(|poison| poison.into_inner());
                if *left > 0 && wanted(event.kind) {
                    *left -= 1;
                    panic!("told to");
                }
            });
            let groups = groups(&LENS, 4096);
            let plan = plan(&groups, 20_480).expect("plan");
            let options = CacheOptions::default().observer(observer);
            let cache = Cache::new(Arc::new(bytes(120_000)), groups, plan, options).expect("cache");
            let lease = |id| catch_unwind(AssertUnwindSafe(|| cache.lease(id).map(drop)));
            let failed = ids(5).chain(ids(5)).filter(|&id| !matches!(lease(id), Ok(Ok(())))).count();
            assert!(failed <= 3, "{name}: {failed} failed");
            *left.lock().unwrap_or_else(|poison| poison.into_inner()) = 0;
            ids(5).for_each(|id| drop(cache.lease(id).expect(name)));
            assert_eq!(
                (*left.lock().unwrap_or_else(|poison| poison.into_inner()), cache.stats().waiting),
                (0, 0)
            );
        }
    });
}

#[test]
fn groups_are_verified_at_their_first_read_only() {
    within_a_minute(|| {
        let calls: Arc<Mutex<Vec<usize>>> = Arc::default();
        let sink = Arc::clone(&calls);
        let file = bytes(120_000);
        let groups = groups(&LENS, 64);
        for plan in [plan(&groups, 20_480).expect("plan"), rwkv_cache::Plan::mapped(&groups).expect("plan")] {
            let sink = Arc::clone(&sink);
            let options = CacheOptions::default().verify(move |id, bytes| {
                assert_eq!(bytes.len() as u64, LENS[id.index()]);
                sink.lock().expect("no panic").push(id.index());
                Ok(())
            });
            let cache = Cache::new(Arc::new(file.clone()), groups.clone(), plan, options).expect("cache");
            for id in ids(5).chain(ids(5)).chain(ids(5)) {
                cache.lease(id).expect("lease");
            }
            drop(cache);
            let mut calls = std::mem::take(&mut *calls.lock().expect("no panic"));
            calls.sort_unstable();
            assert_eq!(calls, [0, 1, 2, 3, 4]);
        }
    });
}
