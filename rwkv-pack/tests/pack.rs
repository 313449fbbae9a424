//! Writing a pack and reading it back; what a writer that does not finish leaves behind.

mod support;

use std::fs;

use rwkv_pack::{Checksum, FileFormat, PAGE, Pack, PackErrorKind, TENSOR_ALIGN, Writer};
use support::{SMALL, names, numbers, small_pack, spec};

#[test]
fn what_was_written_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let pack = Pack::open(&path).unwrap();
    let manifest = pack.manifest();
    let expected = spec(SMALL);
    assert_eq!((manifest.version, &manifest.model), (1, &expected.model));
    assert_eq!((&manifest.tokenizer, &manifest.source), (&expected.tokenizer, &expected.source));
    assert_eq!(manifest.groups.len(), SMALL.len());
    let mut buf = Vec::new();
    for (index, (group, (name, tensors))) in manifest.groups.iter().zip(SMALL).enumerate() {
        assert_eq!((group.name.as_str(), group.swept), (*name, *name != "vectors"));
        assert!(group.offset.is_multiple_of(PAGE) && group.len.is_multiple_of(PAGE), "{group:?}");
        pack.read_group(index, &mut buf).unwrap();
        assert_eq!(group.checksum, Checksum::of(&buf));
        let mut padding = buf.clone();
        for (packed, &(name, len)) in group.tensors.iter().zip(*tensors) {
            assert_eq!((packed.name.as_str(), packed.shape.as_slice()), (name, &[len][..]));
            assert_eq!((packed.codec.as_str(), packed.layout.as_str()), ("u8", "row-tiles"));
            assert!(packed.offset_in_group.is_multiple_of(TENSOR_ALIGN));
            assert_eq!(buf[packed.range()], numbers(len), "{name}");
            padding[packed.range()].fill(0);
        }
        assert!(padding.iter().all(|&byte| byte == 0), "pads are zeros");
    }
    let mut last = 0;
    pack.verify(|done, total| {
        assert!(last < done && done <= total);
        last = done;
    })
    .unwrap();
    assert_eq!(last, manifest.data_len());
    assert_eq!(FileFormat::detect(&path).unwrap(), FileFormat::Pack);
    assert_eq!(names(directory.path()), ["m.rwkv"]);
}

#[test]
fn parts_of_a_group_are_checked_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let pack = Pack::open(&path).unwrap();
    let with_parts = pack.manifest().groups.iter().filter(|group| group.parts.is_some());
    assert_eq!(with_parts.map(|group| group.name.as_str()).collect::<Vec<_>>(), ["blocks.0.key"]);
    let group = &pack.manifest().groups[2];
    let mut buf = Vec::new();
    pack.read_group(2, &mut buf).unwrap();
    assert_eq!(buf.len(), 3 * 4096);
    for (part, bytes) in buf.chunks_mut(4096).enumerate() {
        pack.check_part(2, part, bytes).unwrap();
        let short = pack.check_part(2, part, &bytes[1..]).unwrap_err();
        assert_eq!(short.kind(), PackErrorKind::Truncated);
        bytes[4095] ^= 1;
        let error = pack.check_part(2, part, bytes).unwrap_err();
        assert_eq!(error.kind(), PackErrorKind::Checksum);
        let offset = group.offset + 4096 * part as u64;
        assert_eq!((error.group(), error.offset()), (Some("blocks.0.key"), Some(offset)));
    }
    let mut odd = spec(SMALL);
    odd.groups[0].part_len = Some(100);
    let error = Writer::create(&path, odd).unwrap_err();
    assert!(error.to_string().contains("a part has whole pages"), "{error}");
}

#[test]
fn slabs_make_the_same_file_as_whole_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let whole = directory.path().join("whole");
    small_pack(&whole);
    let slabs = directory.path().join("slabs");
    let mut writer = Writer::create(&slabs, spec(SMALL)).unwrap();
    for (_, tensors) in SMALL {
        for &(name, len) in *tensors {
            for slab in numbers(len).chunks(7) {
                writer.write(name, slab).unwrap();
                writer.write(name, &[]).ok();
            }
        }
    }
    writer.finish().unwrap();
    assert_eq!(fs::read(whole).unwrap(), fs::read(slabs).unwrap());
}

#[test]
fn the_reference_implementation_opens_a_pack() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    small_pack(&path);
    let file = fs::read(&path).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&file).unwrap();
    for (_, tensors) in SMALL {
        for &(name, len) in *tensors {
            assert_eq!(reference.tensor(name).unwrap().data(), numbers(len), "{name}");
        }
    }
    let (_, header) = safetensors::SafeTensors::read_metadata(&file).unwrap();
    assert!(header.metadata().as_ref().unwrap().contains_key(rwkv_pack::MANIFEST_KEY));
}

#[test]
fn misuse_of_the_writer_is_an_error_that_names_the_tensor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    fs::write(&path, "the old file").unwrap();
    let mut writer = Writer::create(&path, spec(&[("g", &[("a", 10), ("b", 10)])])).unwrap();
    let line = |result: Result<(), rwkv_pack::PackError>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), PackErrorKind::Spec);
        error.to_string()
    };
    writer.write("a", &[1; 4]).unwrap();
    assert!(
        line(writer.write("b", &[1]))
            .ends_with("tensor b: is out of turn, expected a (4 of 10 bytes so far)")
    );
    assert!(line(writer.write("a", &[1; 7])).ends_with("tensor a: 7 bytes after 4, expected 10 in all"));
    writer.write("a", &[1; 6]).unwrap();
    assert!(
        line(writer.finish().map(drop)).ends_with("tensor b: has 0 of 10 bytes, the pack is not complete")
    );
    assert_eq!(names(directory.path()), ["m.rwkv"], "no temporary file stays");
    assert_eq!(fs::read(&path).unwrap(), b"the old file");
}

#[test]
fn a_dropped_writer_leaves_nothing_and_a_finished_one_replaces() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    // A crashed run left this behind; it is not ours to touch.
    fs::write(directory.path().join(".rwkv-pack-stale.tmp"), "stale").unwrap();
    let mut writer = Writer::create(&path, spec(&[("g", &[("a", 10)])])).unwrap();
    writer.write("a", &[1; 10]).unwrap();
    assert_eq!(names(directory.path()).len(), 2);
    drop(writer);
    assert_eq!(names(directory.path()), [".rwkv-pack-stale.tmp"]);
    small_pack(&path);
    let mut writer = Writer::create(&path, spec(&[("g", &[("a", 10)])])).unwrap();
    writer.write("a", &[1; 10]).unwrap();
    assert_eq!(Pack::open(&path).unwrap().manifest().groups.len(), SMALL.len(), "the old pack until the end");
    let written = writer.finish().unwrap();
    assert_eq!(Pack::open(&path).unwrap().manifest(), &written);
}

#[test]
fn specs_that_cannot_be_packs_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.rwkv");
    let mut scalar_overflow = spec(&[("g", &[("a", 1)])]);
    scalar_overflow.groups[0].tensors[0].stored_shape = vec![usize::MAX, 2];
    let mut too_long = spec(&[("g", &[("a", 1)])]);
    too_long.groups[0].tensors[0].stored_shape = vec![usize::MAX - 10_000];
    let mut ranks = spec(&[("g", &[("a", 1)])]);
    ranks.groups[0].tensors[0].stored_shape = vec![1; 17];
    let mut header = spec(&[("g", &[("a", 1)])]);
    header.model = serde_json::Value::String("x".repeat(17 << 20));
    let cases = [
        ("no group", spec(&[]), "at least one group"),
        ("no tensor", spec(&[("g", &[])]), "at least one tensor"),
        ("group name", spec(&[("", &[("a", 1)])]), "group's name"),
        ("two groups", spec(&[("g", &[("a", 1)]), ("g", &[("b", 1)])]), "group's name"),
        ("two tensors", spec(&[("g", &[("a", 1)]), ("h", &[("a", 1)])]), "tensor's name"),
        ("reserved", spec(&[("g", &[("pad.7", 1)])]), "tensor's name"),
        ("metadata", spec(&[("g", &[("__metadata__", 1)])]), "tensor's name"),
        ("empty", spec(&[("g", &[("a", 0)])]), "no elements"),
        ("overflow", scalar_overflow, "overflows"),
        ("long", too_long, "longer than a file can be"),
        ("ranks", ranks, "dimensions"),
        ("header", header, "its header would have"),
    ];
    for (case, spec, expected) in cases {
        let error = Writer::create(&path, spec).expect_err(case);
        assert_eq!(error.kind(), PackErrorKind::Spec, "{case}");
        assert!(error.to_string().contains(expected), "{case}: {error}");
        assert!(names(directory.path()).is_empty(), "{case}");
    }
    let error = Writer::create(directory.path(), spec(SMALL)).unwrap_err();
    assert!(error.to_string().ends_with("is a directory, expected the name of a file to write"), "{error}");
    let error = Writer::create(directory.path().join("no/m"), spec(SMALL)).unwrap_err();
    assert_eq!(error.kind(), PackErrorKind::Io, "{error}");
}

#[cfg(unix)]
#[test]
fn a_pack_is_readable_by_those_who_may_read_any_new_file() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let (pack, plain) = (directory.path().join("m"), directory.path().join("plain"));
    small_pack(&pack);
    fs::write(&plain, "x").unwrap();
    assert_eq!(fs::metadata(pack).unwrap().mode(), fs::metadata(plain).unwrap().mode());
}
