//! Every kind of source returns the same bytes, and says the same when there are none.

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rwkv_cache::source::{BufferedFile, DirectFile, Fault, FaultSource, Io, IoMode, MappedFile, When, open};
use rwkv_cache::{ErrorKind, Source};
use support::bytes;

fn sources(path: &Path) -> Vec<Arc<dyn Source>> {
    let mut sources: Vec<Arc<dyn Source>> = vec![
        Arc::new(BufferedFile::open(path).expect("buffered")),
        Arc::new(MappedFile::open(path).expect("mapped")),
        open(path, Io::Auto).expect("auto"),
    ];
    match DirectFile::open(path) {
        Ok(file) => {
            let stumbling = FaultSource::new(DirectFile::open(path).expect("direct"));
            stumbling.inject(When::Always, Fault::Short(70_001));
            sources.push(Arc::new(file));
            sources.push(Arc::new(stumbling));
        }
        Err(refused) => skip(&refused),
    }
    sources
}

#[allow(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(refused: &io::Error) {
    eprintln!("SKIPPED: direct reads, which the temporary directory does not allow: {refused}");
}

fn with_file(len: usize, test: impl Fn(&Path, &[u8])) {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("файл 1");
    let file = bytes(len);
    std::fs::write(&path, &file).expect("written");
    test(&path, &file);
}

#[test]
fn any_offset_and_any_buffer() {
    with_file(1_000_003, |path, file| {
        let offsets = [0, 1, 511, 512, 4095, 4096, 4097, 65_536, 999_424, 999_425, 1_000_002];
        let lens = [1, 2, 511, 512, 513, 4096, 8191, 8193, 12_288, 300_000, 600_001];
        for source in sources(path) {
            assert_eq!(source.len(), file.len() as u64);
            let mut room = vec![0u8; 700_000];
            let aligned = room.as_ptr().align_offset(4096);
            for offset in offsets {
                for len in lens.into_iter().filter(|len| offset + len <= file.len()) {
                    for shift in [0, 1, 64, 512] {
                        let buf = &mut room[aligned + shift..][..len];
                        buf.fill(0);
                        source.read_exact_at(offset as u64, buf).expect("read");
                        let name = source.describe();
                        assert!(buf == &file[offset..][..len], "{len} at {offset} shifted {shift}: {name:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn an_end_that_comes_early_is_an_error() {
    for len in [0, 1, 4096, 5000] {
        with_file(len, |path, file| {
            for source in sources(path) {
                let info = source.describe();
                for (offset, want) in [(0, len + 1), (len, 1), (len + 1, 1), (len + 10_000, 4096)] {
                    let mut buf = vec![0; want];
                    let error = source.read_exact_at(offset as u64, &mut buf).expect_err("too far");
                    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{want} at {offset}: {info:?}");
                }
                let mut buf = vec![0; len];
                source.read_exact_at(0, &mut buf).expect("all");
                assert_eq!(buf, file, "{info:?}");
                source.read_exact_at(len as u64, &mut []).expect("nothing");
            }
        });
    }
}

#[test]
fn a_file_that_changes_is_noticed() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("cut", |path| std::fs::File::options().write(true).open(path).unwrap().set_len(10).unwrap()),
        ("longer", |path| std::fs::File::options().write(true).open(path).unwrap().set_len(9999).unwrap()),
        ("written to", |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }),
    ];
    for (name, change) in changes {
        with_file(5000, |path, _| {
            let sources = sources(path);
            for source in &sources {
                source.check().expect("unchanged");
            }
            change(path);
            for source in &sources {
                source.check().expect_err(name);
            }
        });
    }
}

#[test]
fn a_replaced_file_stays_what_it_was() {
    with_file(5000, |path, file| {
        let sources = sources(path);
        let other = path.with_extension("new");
        std::fs::write(&other, "shorter").expect("written");
        std::fs::rename(&other, path).expect("renamed");
        for source in sources {
            source.check().expect("unchanged");
            let mut buf = vec![0; 5000];
            source.read_exact_at(0, &mut buf).expect("read");
            assert_eq!(buf, file);
        }
    });
}

#[test]
fn the_mode_is_said_with_its_reason() {
    with_file(5000, |path, _| {
        for (io, mode) in [(Io::Buffered, IoMode::Buffered), (Io::Mapped, IoMode::Mapped)] {
            let info = open(path, io).expect("open").describe();
            assert_eq!((info.mode, info.reason.as_str()), (mode, "asked for"));
            assert!(info.name.contains("файл 1"), "{}", info.name);
        }
        let info = open(path, Io::Auto).expect("open").describe();
        match DirectFile::open(path) {
            Ok(_) => assert_eq!(info.mode, IoMode::Direct),
            Err(_) => assert_eq!(info.mode, IoMode::Buffered),
        }
        assert_ne!(info.reason, "asked for");
    });
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("directory");
    for path in [dir.path().to_owned(), dir.path().join("missing")] {
        for io in [Io::Auto, Io::Direct, Io::Buffered, Io::Mapped] {
            let error = open(&path, io).err().expect("an error");
            assert_eq!(error.kind(), ErrorKind::Open);
            assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
        }
    }
}

#[test]
fn names_of_modes_are_read_back() {
    for io in [Io::Auto, Io::Direct, Io::Buffered, Io::Mapped] {
        assert_eq!(io.to_string().parse(), Ok(io));
    }
    let error = "uring".parse::<Io>().expect_err("unknown");
    assert_eq!(error.to_string(), "unknown i/o mode `uring`, expected auto, direct, buffered or mmap");
}
