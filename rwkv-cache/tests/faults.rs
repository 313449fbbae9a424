//! Every kind of fault at every phase: right bytes or a clear error, no hang, and on it goes when the
//! source has recovered.

mod support;

use std::sync::Arc;
use std::time::Duration;

use rwkv_cache::source::{EIO, Fault, FaultSource, Io, When, open};
use rwkv_cache::{Cache, CacheOptions, ErrorKind, GroupId, Plan, ReadAhead, VerifyReads, plan};
use support::{Gated, bytes, groups, ids, part, within_a_minute};

const LENS: [u64; 6] = [50_000; 6];
const MODES: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];

/// A cache with two pinned groups and four that stream, over a source that can fail.
fn cache(file: &[u8], read_ahead: ReadAhead) -> (Cache, Arc<FaultSource<Vec<u8>>>) {
    let source = Arc::new(FaultSource::new(file.to_vec()));
    let groups = groups(&LENS, 4096);
    let plan = plan(&groups, 5 * 53_248).expect("plan");
    assert_eq!((plan.hits_per_sweep(), plan.slots()), (2, 3));
    let copy = file.to_vec();
    let extents = groups.clone();
    let options =
        CacheOptions::default().read_ahead(read_ahead).chunk_bytes(8192).verify(move |id, bytes| {
            match part(&copy, &extents[id.index()]) == bytes {
                true => Ok(()),
                false => Err("wrong checksum".into()),
            }
        });
    (Cache::new(source.clone(), groups, plan, options).expect("cache"), source)
}

/// One sweep; every lease has the right bytes or the error of this kind. Returns the number of errors.
fn sweep(cache: &Cache, file: &[u8], expected: Option<ErrorKind>) -> usize {
    let mut errors = 0;
    for (id, group) in ids(cache.groups().len()).zip(cache.groups()) {
        match cache.lease(id) {
            Ok(lease) => assert!(*lease == *part(file, group), "{}", group.name),
            Err(error) => {
                errors += 1;
                assert_eq!(Some(error.kind()), expected, "{error}");
                assert_eq!(error.group(), Some(group.name.as_str()), "{error}");
                assert!(error.to_string().contains(&group.name), "{error}");
            }
        }
    }
    errors
}

#[test]
fn faults_that_are_no_errors_are_overcome() {
    let harmless =
        [Fault::Delay(Duration::from_millis(1)), Fault::Short(1000), Fault::Short(4097), Fault::Interrupted];
    within_a_minute(move || {
        let file = bytes(400_000);
        for read_ahead in MODES {
            for fault in harmless {
                let (cache, source) = cache(&file, read_ahead);
                let (when, times) = (When::Always, 1000);
                source.inject_times(when, fault, times);
                for _ in 0..3 {
                    assert_eq!(sweep(&cache, &file, None), 0, "{fault:?} {read_ahead}");
                }
                assert!(source.struck() > 0, "{fault:?} {read_ahead}");
            }
        }
    });
}

#[test]
fn errors_are_reported_and_the_cache_goes_on() {
    let faults = [
        (Fault::Os(EIO), ErrorKind::Read),
        (Fault::End, ErrorKind::UnexpectedEnd),
        (Fault::Panic, ErrorKind::Panicked),
    ];
    within_a_minute(move || {
        let file = bytes(400_000);
        for read_ahead in MODES {
            for (fault, kind) in faults {
                for phase in ["first sweep", "later sweep"] {
                    let (cache, source) = cache(&file, read_ahead);
                    if phase == "later sweep" {
                        assert_eq!(sweep(&cache, &file, None), 0);
                    }
                    source.inject(When::Always, fault);
                    let name = format!("{fault:?} {read_ahead} {phase}");
                    for _ in 0..2 {
                        assert!(sweep(&cache, &file, Some(kind)) > 0, "{name}");
                    }
                    source.recover();
                    // What is under way when the source recovers may still fail.
                    sweep(&cache, &file, Some(kind));
                    assert_eq!(sweep(&cache, &file, None), 0, "{name}");
                    assert_eq!(sweep(&cache, &file, None), 0, "{name}");
                    assert!(cache.totals().errors > 0, "{name}");
                }
            }
        }
    });
}

#[test]
fn wrong_bytes_never_reach_the_consumer() {
    within_a_minute(|| {
        let file = bytes(400_000);
        for read_ahead in MODES {
            let (cache, source) = cache(&file, read_ahead);
            source.inject(When::Byte(4 * 53_248 + 20_000), Fault::WrongBytes);
            assert_eq!(sweep(&cache, &file, Some(ErrorKind::Verify)), 1, "{read_ahead}");
            source.recover();
            sweep(&cache, &file, Some(ErrorKind::Verify));
            assert_eq!(sweep(&cache, &file, None), 0, "{read_ahead}");
        }
    });
}

#[test]
fn bytes_that_go_wrong_later_are_noticed_if_every_read_is_verified() {
    within_a_minute(|| {
        let file = bytes(400_000);
        for read_ahead in MODES {
            for verify_reads in [VerifyReads::First, VerifyReads::Every] {
                let source = Arc::new(FaultSource::new(file.clone()));
                let (copy, groups) = (file.clone(), groups(&LENS, 4096));
                let plan = plan(&groups, 53_248).expect("plan");
                let extents = groups.clone();
                let options = CacheOptions::default().read_ahead(read_ahead).verify_reads(verify_reads);
                let options = options.verify(move |id, bytes| {
                    if part(&copy, &extents[id.index()]) == bytes { Ok(()) } else { Err("wrong".into()) }
                });
                let cache = Cache::new(source.clone(), groups, plan, options).expect("cache");
                assert_eq!(sweep(&cache, &file, None), 0);
                source.inject(When::Byte(4 * 53_248 + 20_000), Fault::WrongBytes);
                let sweep = || ids(6).map(|id| cache.lease(id).map(drop)).filter(Result::is_err).count();
                let errors = sweep();
                assert!(source.struck() > 0);
                assert_eq!(errors, usize::from(verify_reads == VerifyReads::Every), "{read_ahead}");
                source.recover();
                sweep();
                assert_eq!(sweep(), 0, "{read_ahead} {verify_reads}");
            }
        }
    });
}

#[test]
fn an_error_says_where() {
    within_a_minute(|| {
        let file = bytes(400_000);
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("model.rwkv");
        std::fs::write(&path, &file).expect("written");
        let source = Arc::new(FaultSource::new(rwkv_cache::source::BufferedFile::open(&path).expect("open")));
        let groups = groups(&LENS, 4096);
        let plan = Plan::resident(&groups).expect("plan");
        source.inject(When::Byte(3 * 53_248 + 20_000), Fault::Os(EIO));
        let options = CacheOptions::default().chunk_bytes(8192);
        let cache = Cache::new(source, groups, plan, options).expect("cache");
        let error = cache.load_pinned().expect_err("EIO");
        assert_eq!((error.kind(), error.group()), (ErrorKind::Read, Some("group.3")));
        let extent = error.extent().expect("an extent");
        assert!((extent.offset..extent.offset + extent.len).contains(&(3 * 53_248 + 20_000)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("group group.3: ") && text.contains("model.rwkv"), "{text}");
        assert!(text.contains(&format!("at {:#x}", extent.offset)), "{text}");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(cause.contains("os error 5"), "{cause}");
    });
}

#[test]
fn a_file_that_changes_while_streaming_is_an_error() {
    within_a_minute(|| {
        for io in [Io::Auto, Io::Buffered] {
            for change in ["cut", "written to"] {
                let file = bytes(400_000);
                let dir = tempfile::tempdir().expect("directory");
                let path = dir.path().join("model.rwkv");
                std::fs::write(&path, &file).expect("written");
                let groups = groups(&LENS, 4096);
                let plan = plan(&groups, 53_248).expect("plan");
                let source = open(&path, io).expect("open");
                let cache = Cache::new(source, groups, plan, CacheOptions::default()).expect("cache");
                assert_eq!(sweep(&cache, &file, None), 0);
                let mut row = [0; 100];
                cache.read_at(50_001, &mut row).expect("a row");
                assert_eq!(row, file[50_001..50_101]);
                let writable = std::fs::File::options().write(true).open(&path).expect("open");
                match change {
                    "cut" => writable.set_len(60_000).expect("cut"),
                    _ => writable.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touched"),
                }
                // What is fetched by row does not come from a file that others write to, either.
                let error = cache.read_at(50_001, &mut row).expect_err("a row");
                assert_eq!(error.kind(), ErrorKind::Changed, "{io} {change}: {error}");
                let errors = ids(6).filter_map(|id| cache.lease(id).err()).collect::<Vec<_>>();
                assert!(errors.len() >= 5, "{io} {change}: {errors:?}");
                let kinds = [ErrorKind::Changed, ErrorKind::UnexpectedEnd];
                assert!(
                    errors.iter().all(|error| kinds.contains(&error.kind())),
                    "{io} {change}: {errors:?}"
                );
            }
        }
    });
}

#[test]
fn a_read_ahead_that_failed_is_not_repeated_until_it_is_asked_for() {
    within_a_minute(|| {
        let file = bytes(400_000);
        let source = Arc::new(FaultSource::new(file.clone()));
        let groups = groups(&LENS, 4096);
        let plan = plan(&groups, 3 * 53_248).expect("plan");
        // Group 1 cannot be read.
        source.inject(When::Byte(53_248), Fault::Os(EIO));
        let options = CacheOptions::default().read_ahead(ReadAhead::Next).readers(1);
        let cache = Cache::new(source.clone(), groups, plan, options).expect("cache");
        drop(cache.lease(GroupId::new(0)).expect("lease"));
        while cache.totals().errors == 0 {
            std::thread::yield_now();
        }
        // Leases of other groups start read-ahead again and again, but not of group 1.
        for _ in 0..10 {
            drop(cache.lease(GroupId::new(0)).expect("lease"));
        }
        assert_eq!(cache.totals().errors, 1);
        source.recover();
        assert_eq!(sweep(&cache, &file, None), 0);
    });
}

#[test]
fn one_bad_chunk_ends_the_reads_of_its_group() {
    within_a_minute(|| {
        let file = bytes(400_000);
        let source = Arc::new(FaultSource::new(file));
        let groups = groups(&[400_000], 4096);
        let plan = Plan::resident(&groups).expect("plan");
        source.inject(When::Read(0), Fault::Os(EIO));
        let options = CacheOptions::default().chunk_bytes(4096).readers(1);
        let cache = Cache::new(source.clone(), groups, plan, options).expect("cache");
        while cache.totals().errors == 0 {
            std::thread::yield_now();
        }
        assert_eq!(source.reads(), 1);
        cache.load_pinned().expect("the second time");
    });
}

#[test]
fn everybody_who_waited_for_a_failed_read_learns_it() {
    within_a_minute(|| {
        let groups = groups(&LENS, 4096);
        let plan = plan(&groups, 3 * 53_248).expect("plan");
        let options = CacheOptions::default().read_ahead(ReadAhead::Off).verify(|_, _| Err("refused".into()));
        let gated = Arc::new(Gated::new(bytes(400_000)));
        let cache = Cache::new(gated.clone(), groups, plan, options).expect("cache");
        std::thread::scope(|scope| {
            let lease = || cache.lease(GroupId::new(2)).map(drop);
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(lease)).collect();
            gated.wait_for_waiting(1);
            gated.pass(u64::MAX);
            for thread in waiting {
                let error = thread.join().expect("no panic").expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::Verify);
            }
        });
    });
}

#[test]
fn a_cache_dropped_in_mid_sweep_ends() {
    within_a_minute(|| {
        for read_ahead in MODES {
            for fault in [None, Some(Fault::Panic), Some(Fault::Delay(Duration::from_millis(3)))] {
                let file = bytes(400_000);
                let (cache, source) = cache(&file, read_ahead);
                let kept = cache.lease(GroupId::new(1)).expect("lease");
                if let Some(fault) = fault {
                    source.inject(When::Always, fault);
                }
                let _ = cache.lease(GroupId::new(2)).map(drop);
                drop(cache);
                assert!(*kept == file[53_248..][..50_000]);
            }
        }
    });
}
