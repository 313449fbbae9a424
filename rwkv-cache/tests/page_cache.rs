//! What is read past or through the page cache is not kept there a second time.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rwkv_cache::source::{DirectFile, Io, open};
use rwkv_cache::{Cache, CacheOptions, ReadAhead, plan};
use support::{bytes, groups, ids, within_a_minute};

const GROUP: u64 = 2 << 20;
const GROUPS: usize = 12;

/// The share of a file's pages that are in the page cache.
fn cached_share(path: &Path) -> f64 {
    let file = File::open(path).expect("open");
    // SAFETY: nobody changes the file while the test runs.
    let map = unsafe { memmap2::Mmap::map(&file).expect("map") };
    let mut pages = vec![0u8; map.len().div_ceil(4096)];
    // SAFETY: the map is alive, of this length, and `pages` has a byte for each of its pages.
    let result = unsafe { libc::mincore(map.as_ptr() as *mut _, map.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0, "mincore: {}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count() as f64 / pages.len() as f64
}

/// Writes a file to the disk, and lets the page cache forget it.
fn write(path: &Path) -> Option<()> {
    std::fs::write(path, bytes(GROUPS * GROUP as usize)).expect("written");
    let file = File::open(path).expect("open");
    file.sync_all().expect("synced");
    // SAFETY: the descriptor is open for the whole call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if cached_share(path) < 0.01 {
        return Some(());
    }
    #[allow(clippy::print_stderr, reason = "a skipped test says so")]
    {
        eprintln!("SKIPPED: the temporary directory is in memory, or keeps what it should forget");
    }
    None
}

#[test]
fn streaming_leaves_no_second_copy() {
    within_a_minute(|| {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        let Some(()) = write(&path) else { return };
        let direct = DirectFile::open(&path).is_ok();
        for io in [Io::Buffered, Io::Direct].into_iter().filter(|&io| io != Io::Direct || direct) {
            for read_ahead in [ReadAhead::Off, ReadAhead::Adaptive] {
                let groups = groups(&[GROUP; GROUPS], GROUP);
                let plan = plan(&groups, 4 * GROUP).expect("plan");
                let options = CacheOptions::default().read_ahead(read_ahead);
                let cache = Cache::new(open(&path, io).expect("open"), groups, plan, options).expect("cache");
                for id in ids(GROUPS).chain(ids(GROUPS)) {
                    cache.lease(id).expect("lease");
                }
                drop(cache);
                let share = cached_share(&path);
                assert!(share < 0.1, "{io}, {read_ahead}: {:.0} % of the file is cached", 100.0 * share);
            }
        }
        // The measure can tell: plain reads leave the file there.
        std::fs::read(&path).expect("read");
        assert!(cached_share(&path) > 0.5);
    });
}
