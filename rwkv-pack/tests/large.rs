//! Files beyond 4 GiB, sparse on the disk, with something to read at their far end.

mod support;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use rwkv_pack::{Checkpoint, Pack};
use support::pth::{state_dict, whole};
use support::zip::{Member, end_records, entry_of_len, member, zip};
use support::{numbers, small_pack_bytes};

const LARGE: u64 = 5 << 30;

/// A file of `parts`: each at its offset.
fn sparse(path: &Path, parts: &[(u64, &[u8])]) {
    let mut file = File::create(path).unwrap();
    for (offset, bytes) in parts {
        file.seek(SeekFrom::Start(*offset)).unwrap();
        file.write_all(bytes).unwrap();
    }
}

fn last_tensor(path: &Path) -> Vec<u8> {
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!(checkpoint.tensors()[0].shape, [LARGE as usize / 2]);
    let mut bytes = Vec::new();
    checkpoint.read(checkpoint.find("last").unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
fn safetensors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    let header = format!(
        "{{\"large\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[0,{LARGE}]}},\
         \"last\":{{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[{LARGE},{}]}}}}",
        LARGE / 2,
        LARGE + 12
    );
    let head = support::with_header(&header, &[]);
    sparse(&path, &[(0, &head), (head.len() as u64 + LARGE, &numbers(12))]);
    assert_eq!(last_tensor(&path), numbers(12));
}

#[test]
fn pth() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    let tensors = [
        whole("large", "BFloat16Storage", "0", &[LARGE as i64 / 2]),
        whole("last", "FloatStorage", "1", &[3]),
    ];
    let pickle = member("archive/data.pkl", state_dict(2, &tensors));
    let large = Member { crc: Some(0), ..member("archive/data/0", vec![]) };
    let last = member("archive/data/1", numbers(12));
    // Each member alone as an archive, of which only its beginning is taken.
    let local = |member: &Member| {
        let mut bytes = zip(std::slice::from_ref(member), true);
        bytes.truncate(bytes.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap());
        bytes
    };
    let (first, second, third) = (local(&pickle), local(&large), local(&last));
    let second_at = first.len() as u64;
    let third_at = second_at + second.len() as u64 + LARGE;
    let mut tail = third.clone();
    let directory_at = third_at + third.len() as u64;
    for (member, at, len) in
        [(&pickle, 0, pickle.bytes.len() as u64), (&large, second_at, LARGE), (&last, third_at, 12)]
    {
        let crc = member.crc.unwrap_or_else(|| crc32fast::hash(&member.bytes));
        tail.extend(entry_of_len(member, crc, at, len, true));
    }
    let directory_len = tail.len() as u64 - third.len() as u64;
    end_records(&mut tail, directory_at, directory_len, 3, true);
    sparse(&path, &[(0, &first), (second_at, &second), (third_at, &tail)]);
    assert_eq!(last_tensor(&path), numbers(12));
}

#[test]
fn pack() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    let small = small_pack_bytes();
    fs::write(&path, &small).unwrap();
    let last = Pack::open(&path).unwrap().manifest().groups[3].clone();
    // The last tensor of the third group becomes larger, and all after it moves.
    let told = support::retold(&small, |header, manifest| {
        let groups = &mut manifest["groups"];
        let grown = groups[2]["tensors"][1]["len"].as_u64().unwrap() + LARGE;
        groups[2]["tensors"][1]["len"] = grown.into();
        groups[2]["len"] = (groups[2]["len"].as_u64().unwrap() + LARGE).into();
        groups[2].as_object_mut().unwrap().remove("parts");
        groups[3]["offset"] = (last.offset + LARGE).into();
        let moved = header["ffn.more"]["data_offsets"][0].as_u64().unwrap();
        header["ffn.more"]["shape"] = serde_json::json!([grown]);
        for (name, entry) in header.as_object_mut().unwrap() {
            if name == "__metadata__" {
                continue;
            }
            for offset in entry["data_offsets"].as_array_mut().unwrap() {
                let here = offset.as_u64().unwrap();
                if here > moved {
                    *offset = (here + LARGE).into();
                }
            }
        }
    });
    let group = &small[last.offset as usize..];
    sparse(&path, &[(0, &told[..last.offset as usize]), (last.offset + LARGE, group)]);
    let pack = Pack::open(&path).unwrap();
    assert_eq!(pack.file_len(), small.len() as u64 + LARGE);
    let mut bytes = Vec::new();
    pack.read_group(3, &mut bytes).unwrap();
    assert_eq!(bytes, group);
}
