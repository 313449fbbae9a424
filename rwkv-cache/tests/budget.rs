//! The budget bounds the memory that the process takes, measured and not argued.
#![cfg(target_os = "linux")]

mod support;

use std::io::Write;

use rwkv_cache::source::{DirectFile, Io, open};
use rwkv_cache::{Cache, CacheOptions, ReadAhead, plan};
use support::{bytes, groups, ids, within_a_minute};

const MIB: u64 = 1 << 20;

/// The most memory the process has had so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1024
}

// One test, because the peak is that of the whole process.
#[test]
fn the_peak_stays_within_the_budget() {
    within_a_minute(|| {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        let mut file = std::fs::File::create(&path).expect("created");
        let piece = bytes(MIB as usize);
        for _ in 0..96 {
            file.write_all(&piece).expect("written");
        }
        file.sync_all().expect("synced");
        let groups = groups(&[3 * MIB + 5000; 30], 4096);
        let budget = 24 * MIB;
        for io in [Io::Direct, Io::Buffered] {
            if io == Io::Direct && DirectFile::open(&path).is_err() {
                continue;
            }
            let before = peak();
            let plan = plan(&groups, budget).expect("plan");
            assert!(plan.memory_bytes() <= budget && plan.hits_per_sweep() == 4, "{plan:?}");
            let options = CacheOptions::default().read_ahead(ReadAhead::Adaptive);
            let source = open(&path, io).expect("open");
            let cache = Cache::new(source, groups.clone(), plan, options).expect("cache");
            for id in ids(30).chain(ids(30)) {
                let lease = cache.lease(id).expect("lease");
                assert_ne!(lease.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 0);
            }
            let grown = peak() - before;
            // What does not grow with the file: stacks of the readers, buffers for unaligned ends.
            assert!(grown <= budget + 4 * MIB, "{io}: {grown} bytes with a budget of {budget}");
        }
    });
}
