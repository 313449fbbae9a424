//! Everything fits: each group is read once and stays.

mod support;

use std::sync::Arc;

use rwkv_cache::source::BufferedFile;
use rwkv_cache::{Cache, CacheOptions, Group, Plan, Source};
use support::{bytes, groups, ids, part, within_a_minute};

const LENS: [u64; 7] = [5, 4096, 0, 3 << 20, 100_000, 2 << 20, 4097];

fn sweep(cache: &Cache, file: &[u8]) {
    for (id, group) in ids(cache.groups().len()).zip(cache.groups()) {
        let lease = cache.lease(id).expect("lease");
        assert_eq!(&*lease, part(file, group), "{}", group.name);
        assert_eq!(lease.as_ptr().align_offset(4096), 0, "{}", group.name);
    }
}

#[test]
fn each_group_is_read_once() {
    within_a_minute(|| {
        let file = bytes(8 << 20);
        let groups = groups(&LENS, 4096);
        let plan = Plan::resident(&groups).expect("plan");
        let cache = Cache::new(Arc::new(file.clone()), groups, plan, CacheOptions::default()).expect("cache");
        for _ in 0..3 {
            sweep(&cache, &file);
        }
        let total = cache.stats().total;
        assert_eq!(total.reads, LENS.len() as u64);
        assert_eq!(total.bytes, LENS.iter().sum::<u64>());
        assert_eq!(total.leases, 3 * LENS.len() as u64);
    });
}

#[test]
fn after_loading_every_lease_is_a_hit() {
    within_a_minute(|| {
        let file = bytes(8 << 20);
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        std::fs::write(&path, &file).expect("written");
        let source = Arc::new(BufferedFile::open(&path).expect("open"));
        assert_eq!(source.len(), file.len() as u64);
        let groups: Vec<Group> = groups(&LENS, 64);
        let plan = Plan::resident(&groups).expect("plan");
        let cache = Cache::new(source, groups, plan, CacheOptions::default()).expect("cache");
        cache.load_pinned().expect("loaded");
        sweep(&cache, &file);
        let total = cache.totals();
        assert_eq!((total.hits, total.wait.as_nanos()), (LENS.len() as u64, 0));
    });
}

#[test]
fn leases_are_sent_and_shared_and_outlive_the_cache() {
    within_a_minute(|| {
        let file = bytes(1 << 20);
        let groups = groups(&[1000, 2000, 3000], 4096);
        let plan = Plan::resident(&groups).expect("plan");
        let cache =
            Cache::new(Arc::new(file.clone()), groups.clone(), plan, CacheOptions::default()).expect("cache");
        let leases: Vec<_> = ids(3).map(|id| cache.lease(id).expect("lease")).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for (lease, group) in leases.iter().zip(&groups) {
                        assert_eq!(&**lease, part(&file, group));
                    }
                });
            }
        });
        drop(cache);
        for (lease, group) in leases.into_iter().zip(&groups) {
            assert_eq!(&*lease, part(&file, group));
        }
    });
}
