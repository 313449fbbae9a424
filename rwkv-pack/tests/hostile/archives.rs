//! Zip archives around a good pickle.

use rwkv_pack::PackErrorKind::{Checksum, Malformed, Refused, Truncated, Unsupported};

use crate::support::numbers;
use crate::support::pth::{members, state_dict, whole};
use crate::support::zip::{Member, directory_entry, finish, member, zip};
use crate::{Case, run};

#[test]
fn zip_archives() {
    let pickle = || state_dict(2, &[whole("a", "HalfStorage", "0", &[4])]);
    let right = || members(pickle(), &[("0", numbers(8))]);
    let change = |change: &dyn Fn(&mut Vec<Member>)| {
        let mut members = right();
        change(&mut members);
        zip(&members, false)
    };
    let edit = |bytes: Vec<u8>, signature: &[u8], at: usize, value: &[u8]| {
        let mut bytes = bytes;
        let start = bytes.windows(4).rposition(|window| window == signature).unwrap();
        bytes[start + at..start + at + value.len()].copy_from_slice(value);
        bytes
    };
    const ENTRY: &[u8] = b"PK\x01\x02";
    const END: &[u8] = b"PK\x05\x06";
    const END64: &[u8] = b"PK\x06\x06";
    const LOCATOR: &[u8] = b"PK\x06\x07";
    let plain = || zip(&right(), false);
    let wide = || zip(&right(), true);
    let mut stretched = plain();
    stretched.extend_from_slice(b"x");
    let cases: Vec<Case> = vec![
        (
            "pickle crc",
            change(&|it| it[0].crc = Some(1)),
            Checksum,
            "archive member archive/data.pkl: its CRC-32 is",
        ),
        (
            "data crc",
            change(&|it| it[3].crc = Some(1)),
            Checksum,
            "tensor a: its storage archive/data/0: CRC-32 is",
        ),
        (
            "compressed pickle",
            change(&|it| it[0].method = 8),
            Unsupported,
            "data.pkl: is compressed (method 8)",
        ),
        ("compressed data", change(&|it| it[3].method = 8), Unsupported, "archive/data/0: is compressed"),
        ("encrypted", change(&|it| it[3].flags = 1), Unsupported, "archive/data/0: is encrypted"),
        (
            "parent",
            change(&|it| it.push(member("archive/../../x", vec![]))),
            Refused,
            "leads out of the archive",
        ),
        ("absolute", change(&|it| it.push(member("/etc/x", vec![]))), Refused, "leads out of the archive"),
        ("backslash", change(&|it| it.push(member("a\\..\\x", vec![]))), Refused, "leads out of the archive"),
        ("twice", change(&|it| it.push(it[3].clone())), Malformed, "archive/data/0: occurs twice"),
        (
            "two pickles",
            change(&|it| it.push(member("b/data.pkl", vec![]))),
            Malformed,
            "is one of two pickles",
        ),
        (
            "no storage",
            change(&|it| drop(it.pop())),
            Malformed,
            "tensor a: its storage archive/data/0 is not in",
        ),
        ("short storage", change(&|it| it[3].bytes.truncate(6)), Malformed, "has 6 bytes, the pickle says 8"),
        ("long storage", change(&|it| it[3].bytes.push(0)), Malformed, "has 9 bytes, the pickle says 8"),
        ("big-endian", change(&|it| it[1].bytes = b"big".to_vec()), Unsupported, "big-endian"),
        (
            "local name",
            change(&|it| it[3].local_name = Some("archive/data/9".into())),
            Malformed,
            "another name",
        ),
        ("local name length", change(&|it| it[3].local_name = Some("x".into())), Malformed, "another name"),
        (
            "offset",
            edit(plain(), ENTRY, 42, &[0xf0; 4]),
            Malformed,
            "its local header would be at 0xf0f0f0f0",
        ),
        ("wrong offset", edit(plain(), ENTRY, 42, &[1, 0, 0, 0]), Malformed, "has no local header where"),
        (
            "long member",
            edit(plain(), ENTRY, 20, &[0, 0, 0, 9, 0, 0, 0, 9]),
            Malformed,
            "run into the directory",
        ),
        (
            "stored lengths",
            edit(plain(), ENTRY, 20, &[7]),
            Malformed,
            "is stored as it is, yet takes 7 bytes for 8",
        ),
        ("name not UTF-8", edit(plain(), ENTRY, 46, &[0xff]), Malformed, "name is not UTF-8"),
        ("name length", edit(plain(), ENTRY, 28, &[0xff, 0xff]), Malformed, "is cut off"),
        ("disk", edit(plain(), END, 4, &[1]), Unsupported, "is one part of a split zip"),
        ("count", edit(plain(), END, 8, &[9, 0, 9, 0]), Malformed, "lists 4 members, 9 were promised"),
        ("directory length", edit(plain(), END, 12, &[0xff; 4]), Malformed, "its zip directory would have"),
        ("directory offset", edit(plain(), END, 16, &[0xff; 4]), Malformed, "its zip directory would have"),
        ("directory shifted", edit(plain(), END, 16, &[3, 0, 0, 0]), Malformed, "has no entry here"),
        ("trailing byte", stretched, Truncated, "has no zip end record"),
        ("wide count", edit(wide(), END64, 32, &[9]), Malformed, "lists 4 members, 9 were promised"),
        ("wide length", edit(wide(), END64, 40, &[0xff; 8]), Malformed, "its zip directory would have"),
        ("wide record", edit(wide(), LOCATOR, 8, &[0xff; 8]), Malformed, "its zip64 end record would be at"),
        ("no wide record", edit(wide(), LOCATOR, 8, &[1]), Malformed, "has no zip64 end record"),
        (
            "wide offset",
            edit(wide(), ENTRY, 46 + 14 + 7 + 4 + 16, &[0xff; 8]),
            Malformed,
            "its local header would be",
        ),
        ("wide fields", edit(wide(), ENTRY, 46 + 14 + 7 + 2, &[8]), Malformed, "is cut off"),
        ("overlap", overlapping(), Malformed, "the member before it ends at"),
    ];
    run(&["checkpoint"], cases);
}

/// An archive with a member whose header lies in another member's data.
fn overlapping() -> Vec<u8> {
    let inner = zip(&[member("archive/data/0", numbers(8))], false);
    let entry = inner.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    let pickle = state_dict(2, &[whole("a", "HalfStorage", "0", &[4])]);
    let outer = [member("archive/data.pkl", pickle), member("archive/data/1", inner[..entry].to_vec())];
    let mut file = zip(&outer, false);
    let at = file.windows(14).position(|window| window == b"archive/data/0").unwrap() - 30;
    let directory = file.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let end = file.windows(4).rposition(|window| window == b"PK\x05\x06").unwrap();
    let mut entries = file[directory..end].to_vec();
    let hidden = member("archive/data/0", numbers(8));
    entries.extend(directory_entry(&hidden, crc32fast::hash(&hidden.bytes), at as u64, false));
    file.truncate(directory);
    finish(&mut file, &entries, 3, false);
    file
}
