//! Checkpoints in the format of torch: pickles of all protocols, views of storages, archives of both widths.

mod support;

use std::io::Write;

use rwkv_pack::{Checkpoint, DType, FileFormat, PackErrorKind};
use support::pth::{PthTensor, members, pth, small_pth, state_dict, whole};
use support::{numbers, zip};

fn open(bytes: &[u8]) -> Checkpoint {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    // The name goes at the end of this function; the open file stays.
    Checkpoint::open(file.path()).unwrap()
}

fn read(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    checkpoint.read(checkpoint.find(name).unwrap(), &mut bytes).unwrap();
    bytes
}

fn u16s(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn all_protocols_and_both_widths_of_archives() {
    for protocol in 2..=5 {
        for zip64 in [false, true] {
            let mut parameter = whole("p", "FloatStorage", "1", &[2, 2, 2, 2]);
            parameter.parameter = true;
            let mut untyped = whole("u", "UntypedStorage", "2", &[3]);
            (untyped.count, untyped.dtype) = (6, Some("bfloat16"));
            let tensors = [
                whole("a", "HalfStorage", "0", &[2, 3]),
                parameter,
                untyped,
                whole("s", "FloatStorage", "3", &[]),
            ];
            let storages = [("0", numbers(12)), ("1", numbers(64)), ("2", numbers(6)), ("3", numbers(4))];
            let file = zip::zip(&members(state_dict(protocol, &tensors), &storages), zip64);
            let checkpoint = open(&file);
            assert_eq!(checkpoint.format(), FileFormat::Torch);
            let found: Vec<_> =
                checkpoint.tensors().iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())).collect();
            let expected: [(_, _, &[usize]); 4] = [
                ("a", DType::F16, &[2, 3]),
                ("p", DType::F32, &[2, 2, 2, 2]),
                ("u", DType::Bf16, &[3]),
                ("s", DType::F32, &[]),
            ];
            assert_eq!(found, expected, "protocol {protocol}, zip64 {zip64}");
            for (name, len) in [("a", 12), ("p", 64), ("u", 6), ("s", 4)] {
                assert_eq!(
                    read(&checkpoint, name),
                    numbers(len),
                    "{name}, protocol {protocol}, zip64 {zip64}"
                );
            }
        }
    }
}

#[test]
fn more_memo_entries_than_one_byte_counts() {
    let names: Vec<_> = (0..200).map(|index| format!("blocks.{index}.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| whole(name, "HalfStorage", "0", &[3])).collect();
    let checkpoint = open(&pth(state_dict(2, &tensors), &[("0", numbers(6))]));
    assert_eq!(checkpoint.tensors().len(), 200);
    assert_eq!(read(&checkpoint, "blocks.199.weight"), numbers(6));
}

#[test]
fn views_come_out_as_contiguous_rows() {
    // One storage of 0..24, seen in many ways.
    let storage = u16s(0..24);
    let view = |name, first, shape: &[i64], strides: &[i64]| PthTensor {
        count: 24,
        first,
        strides: strides.into(),
        ..whole(name, "HalfStorage", "0", shape)
    };
    let cases: [(PthTensor<'_>, Vec<u16>); 12] = [
        (view("all", 0, &[4, 6], &[6, 1]), (0..24).collect()),
        (view("tied", 0, &[24], &[1]), (0..24).collect()),
        (view("tail", 18, &[2, 3], &[3, 1]), (18..24).collect()),
        (
            view("transposed", 0, &[6, 4], &[1, 6]),
            (0..6).flat_map(|c| (0..4).map(move |r| r * 6 + c)).collect(),
        ),
        (view("columns", 1, &[4, 2], &[6, 1]), vec![1, 2, 7, 8, 13, 14, 19, 20]),
        (view("column", 5, &[4], &[6]), vec![5, 11, 17, 23]),
        (view("every fifth", 0, &[5], &[5]), vec![0, 5, 10, 15, 20]),
        (view("ones between", 2, &[1, 2, 1, 3], &[999, 3, 77, 1]), vec![2, 3, 4, 5, 6, 7]),
        (view("permuted", 0, &[3, 2, 4], &[1, 3, 6]), {
            (0..3).flat_map(|i| (0..2).flat_map(move |j| (0..4).map(move |k| i + j * 3 + k * 6))).collect()
        }),
        (view("sliding", 0, &[3, 4], &[1, 1]), vec![0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]),
        (view("one", 23, &[1, 1], &[1, 1]), vec![23]),
        (view("none", 99, &[0, 5], &[5, 1]), vec![]),
    ];
    let tensors: Vec<_> = cases.iter().map(|case| case.0.clone()).collect();
    let checkpoint = open(&pth(state_dict(2, &tensors), &[("0", storage)]));
    for (tensor, expected) in cases {
        assert_eq!(read(&checkpoint, tensor.name), u16s(expected), "{}", tensor.name);
    }
}

#[test]
fn sparse_views_of_large_storages_are_read_piece_by_piece() {
    let storage: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let view = |name, first, shape: &[i64], strides: &[i64]| PthTensor {
        count: 100_000,
        first,
        strides: strides.into(),
        ..whole(name, "FloatStorage", "0", shape)
    };
    // Rows shorter and longer than the window, single elements forwards and across.
    let views = [
        view("short rows", 7, &[10, 100], &[9_000, 1]),
        view("long rows", 3, &[5, 2_000], &[22_000, 1]),
        view("forwards", 1, &[10, 50], &[9_000, 20]),
        view("to the end of a window", 0, &[40, 2], &[128, 64]),
        view("across", 1, &[50, 10], &[20, 9_000]),
    ];
    let checkpoint = open(&pth(state_dict(4, &views), &[("0", storage)]));
    for view in &views {
        let mut expected = Vec::new();
        for row in 0..view.shape[0] {
            for column in 0..view.shape[1] {
                let element = view.first + row * view.strides[0] + column * view.strides[1];
                expected.extend_from_slice(&(element as u32).to_le_bytes());
            }
        }
        assert!(read(&checkpoint, view.name) == expected, "{}", view.name);
    }
}

#[test]
fn other_element_types_are_named_and_do_not_hide_their_neighbours() {
    let classes = [
        ("DoubleStorage", DType::F64, 8),
        ("BoolStorage", DType::Bool, 1),
        ("ByteStorage", DType::U8, 1),
        ("CharStorage", DType::I8, 1),
        ("ShortStorage", DType::I16, 2),
        ("IntStorage", DType::I32, 4),
        ("LongStorage", DType::I64, 8),
        ("BFloat16Storage", DType::Bf16, 2),
        ("ComplexFloatStorage", DType::C64, 8),
    ];
    let tensors: Vec<_> = classes.iter().map(|&(class, ..)| whole(class, class, class, &[3])).collect();
    let storages: Vec<_> = classes.iter().map(|&(class, _, width)| (class, numbers(3 * width))).collect();
    let checkpoint = open(&pth(state_dict(2, &tensors), &storages));
    for (info, (class, dtype, width)) in checkpoint.tensors().iter().zip(classes) {
        assert_eq!((info.name.as_str(), info.dtype), (class, dtype));
        assert_eq!(read(&checkpoint, class), numbers(3 * width));
    }
}

#[test]
fn a_wrong_crc_is_found_by_whole_reads_and_by_views() {
    let mut whole_one = whole("whole", "HalfStorage", "0", &[4]);
    let mut part = whole_one.clone();
    (part.name, part.first, part.shape) = ("part", 1, vec![2]);
    whole_one.name = "whole";
    let right = members(state_dict(2, &[whole_one, part]), &[("0", numbers(8))]);
    let mut wrong = right.clone();
    wrong[3].crc = Some(0x0bad_c0de);
    let mut unknown = right.clone();
    unknown[3].crc = Some(0);
    for name in ["whole", "part"] {
        let checkpoint = open(&zip::zip(&wrong, false));
        let error = checkpoint.read(checkpoint.find(name).unwrap(), &mut Vec::new()).unwrap_err();
        assert_eq!((error.kind(), error.tensor()), (PackErrorKind::Checksum, Some(name)));
        assert!(error.to_string().contains("archive/data/0: CRC-32 is"), "{error}");
        read(&open(&zip::zip(&right, false)), name);
        // torch writes zero where it computed none.
        read(&open(&zip::zip(&unknown, false)), name);
    }
}

#[test]
fn a_comment_after_the_archive_is_no_end_record() {
    let mut file = small_pth();
    // A comment that holds the signature of an end record.
    let comment = b"PK\x05\x06 not the end, really not the end at all";
    let len = file.len();
    file[len - 2..].copy_from_slice(&(comment.len() as u16).to_le_bytes());
    file.extend_from_slice(comment);
    assert_eq!(open(&file).tensors().len(), 3);
}
