//! What streams has the same bytes as the file, in every mode, and reads what the plan says.

mod support;

use std::path::Path;
use std::sync::Arc;

use rwkv_cache::source::{Io, open};
use rwkv_cache::{Cache, CacheOptions, Group, PlanError, ReadAhead, RingShape, plan_with};
use support::{bytes, groups, ids, part, within_a_minute};

const MODES: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];
const LENS: [u64; 9] = [100_000, 4096, 100_001, 0, 99_999, 65_536, 1, 100_000, 77_777];

fn sweep(cache: &Cache, file: &[u8]) {
    for (id, group) in ids(cache.groups().len()).zip(cache.groups()) {
        let lease = cache.lease(id).expect("lease");
        assert!(*lease == *part(file, group), "{}", group.name);
        assert_eq!(lease.as_ptr().align_offset(4096), 0, "{}", group.name);
    }
}

fn smallest(groups: &[Group], shape: RingShape) -> u64 {
    match plan_with(groups, 0, shape) {
        Err(PlanError::BudgetTooSmall { smallest, .. }) => smallest,
        other => panic!("{other:?}"),
    }
}

fn every_budget(path: &Path, file: &[u8], groups: &[Group], io: Io) {
    for slots in [1, 2, 3, 5] {
        let shape = RingShape { leases: 1, slots };
        let full: u64 = groups.iter().map(|group| group.extent.len.next_multiple_of(4096)).sum();
        let smallest = smallest(groups, shape);
        for step in 0..=4 {
            let plan = plan_with(groups, smallest + (full - smallest) * step / 4, shape).expect("plan");
            for read_ahead in MODES {
                let options = CacheOptions::default().read_ahead(read_ahead).chunk_bytes(16_384).readers(3);
                let source = open(path, io).expect("open");
                let cache = Cache::new(source, groups.to_vec(), plan.clone(), options).expect("cache");
                let sweeps = 3;
                for _ in 0..sweeps {
                    sweep(&cache, file);
                }
                let name = format!("{io} {slots} slots {read_ahead} step {step}");
                let per_sweep = groups.len() as u64 - plan.hits_per_sweep() as u64;
                // Everything once, and what streams once more per further sweep; read-ahead has begun
                // the next sweep by at most a ring.
                let expected = groups.len() as u64 + (sweeps - 1) * per_sweep;
                let total = cache.totals();
                let ahead = if read_ahead == ReadAhead::Off { 0 } else { plan.slots() as u64 };
                assert!((expected..=expected + ahead).contains(&total.reads), "{name}: {total:?}");
                assert_eq!(total.errors, 0, "{name}");
                assert_eq!(total.leases, total.hits + total.ready + total.late + total.absent, "{name}");
            }
        }
    }
}

#[test]
fn every_budget_read_ahead_and_io_mode() {
    within_a_minute(|| {
        let file = bytes(700_000);
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        std::fs::write(&path, &file).expect("written");
        for align in [4096, 1] {
            let groups = groups(&LENS, align);
            for io in [Io::Auto, Io::Buffered, Io::Mapped] {
                every_budget(&path, &file, &groups, io);
            }
        }
    });
}

#[test]
fn leases_of_a_map_are_slices_of_it() {
    within_a_minute(|| {
        let file = bytes(700_000);
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        std::fs::write(&path, &file).expect("written");
        let source = open(&path, Io::Mapped).expect("open");
        let map = source.mapped().expect("a map").as_ptr_range();
        let groups = groups(&LENS, 64);
        let plan = rwkv_cache::Plan::mapped(&groups).expect("plan");
        let cache = Cache::new(source.clone(), groups.clone(), plan, CacheOptions::default()).expect("cache");
        cache.load_pinned().expect("nothing to load");
        for (id, group) in ids(groups.len()).zip(&groups) {
            let lease = cache.lease(id).expect("lease");
            assert_eq!(&*lease, part(&file, group));
            assert!(lease.is_empty() || map.contains(&lease.as_ptr()), "{}", group.name);
            assert_eq!(lease.as_ptr().align_offset(64), 0, "{}", group.name);
        }
        let total = cache.totals();
        assert_eq!((total.hits, total.bytes), (groups.len() as u64, 0));
    });
}

#[test]
fn what_fits_reads_nothing_after_the_first_sweep() {
    within_a_minute(|| {
        let file = bytes(700_000);
        let groups = groups(&LENS, 4096);
        let plan = rwkv_cache::plan(&groups, 700_000).expect("plan");
        let cache = Cache::new(Arc::new(file.clone()), groups, plan, CacheOptions::default()).expect("cache");
        sweep(&cache, &file);
        let first = cache.totals();
        sweep(&cache, &file);
        sweep(&cache, &file);
        assert_eq!((cache.totals() - first).bytes, 0);
    });
}

#[test]
fn names_of_read_ahead_are_read_back() {
    for read_ahead in MODES {
        assert_eq!(read_ahead.to_string().parse(), Ok(read_ahead));
    }
    let error = "all".parse::<ReadAhead>().expect_err("unknown");
    assert_eq!(error.to_string(), "unknown read-ahead `all`, expected off, next or adaptive");
}
