//! Packs whose manifest, header and bytes do not fit together.

use rwkv_pack::Pack;
use rwkv_pack::PackErrorKind::{Checksum, Malformed, Unsupported};

use crate::support::{retold, small_pack, small_pack_bytes};
use crate::{Case, run};

#[test]
fn pack_manifests() {
    let right = small_pack_bytes();
    let told = |change: &dyn Fn(&mut serde_json::Value)| retold(&right, |_, manifest| change(manifest));
    let header = |change: &dyn Fn(&mut serde_json::Value)| retold(&right, |header, _| change(header));
    let manifest = |text: &str| {
        retold(&right, |header, manifest| {
            header["__metadata__"]["rwkv.pack"] = text.into();
            *manifest = serde_json::Value::Null;
        })
    };
    let shifted = {
        // The same file with a header that does not end at a page.
        let len = u64::from_le_bytes(right[..8].try_into().unwrap());
        let mut file = (len + 8).to_le_bytes().to_vec();
        file.extend_from_slice(&right[8..8 + len as usize]);
        file.extend_from_slice(b"        ");
        file.extend_from_slice(&right[8 + len as usize..]);
        file
    };
    let mut flipped = Vec::new();
    for (group, name) in ["vectors", "blocks.0.att", "blocks.0.key", "head.0"].into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m");
        small_pack(&path);
        let extent = Pack::open(&path).unwrap().manifest().groups[group].clone();
        let mut bytes = right.clone();
        // The last byte is padding in three of the four: it counts.
        bytes[extent.end() as usize - 1] ^= 0x10;
        flipped.push((name, bytes, Checksum, "its bytes have checksum"));
    }
    let mut cases: Vec<Case> = vec![
        ("no JSON", manifest("{"), Malformed, "its manifest cannot be understood"),
        ("no version", manifest("{}"), Malformed, "missing field `version`"),
        (
            "version",
            manifest("{\"version\":2,\"new\":1}"),
            Unsupported,
            "is a pack of version 2, this program reads",
        ),
        ("missing", manifest("{\"version\":1}"), Malformed, "missing field"),
        ("no groups", told(&|it| it["groups"] = serde_json::json!([])), Malformed, "its groups end at"),
        (
            "group missing",
            told(&|it| drop(it["groups"].as_array_mut().unwrap().pop())),
            Malformed,
            "its groups end at",
        ),
        (
            "group name",
            told(&|it| it["groups"][1]["name"] = "vectors".into()),
            Malformed,
            "of this name exists already",
        ),
        ("no name", told(&|it| it["groups"][1]["name"] = "".into()), Malformed, "or the name is empty"),
        (
            "swapped",
            told(&|it| it["groups"].as_array_mut().unwrap().swap(0, 1)),
            Malformed,
            "group blocks.0.att: begins at",
        ),
        (
            "offset",
            told(&|it| it["groups"][1]["offset"] = 4096.into()),
            Malformed,
            "group blocks.0.att: begins at 0x1000",
        ),
        (
            "length",
            told(&|it| it["groups"][3]["len"] = 8192.into()),
            Malformed,
            "group head.0: 8192 bytes at",
        ),
        (
            "overflow",
            told(&|it| it["groups"][3]["len"] = u64::MAX.into()),
            Malformed,
            "group head.0: 18446744073709551615",
        ),
        ("no pages", told(&|it| it["groups"][3]["len"] = 4095.into()), Malformed, "are not whole pages"),
        ("empty group", told(&|it| it["groups"][0]["len"] = 0.into()), Malformed, "are not whole pages"),
        ("negative", told(&|it| it["groups"][0]["len"] = (-1).into()), Malformed, "cannot be understood"),
        (
            "checksum",
            told(&|it| it["groups"][0]["checksum"] = "12".into()),
            Malformed,
            "16 lower-case hex digits",
        ),
        (
            "upper case",
            told(&|it| it["groups"][0]["checksum"] = "ABCDEF0123456789".into()),
            Malformed,
            "hex digits",
        ),
        (
            "wrong sum",
            told(&|it| it["groups"][2]["checksum"] = "0123456789abcdef".into()),
            Checksum,
            "group blocks.0.key: its bytes have checksum",
        ),
        (
            "empty parts",
            told(&|it| it["groups"][2]["parts"]["len"] = 0.into()),
            Malformed,
            "group blocks.0.key: its parts of 0 bytes are not whole pages",
        ),
        (
            "parts of no pages",
            told(&|it| it["groups"][2]["parts"]["len"] = 4097.into()),
            Malformed,
            "its parts of 4097 bytes are not whole pages",
        ),
        (
            "part missing",
            told(&|it| drop(it["groups"][2]["parts"]["checksums"].as_array_mut().unwrap().pop())),
            Malformed,
            "group blocks.0.key: has checksums of 2 parts, expected 3",
        ),
        (
            "wrong sum of a part",
            told(&|it| it["groups"][2]["parts"]["checksums"][1] = "0123456789abcdef".into()),
            Checksum,
            "group blocks.0.key: its bytes have checksum",
        ),
        (
            "larger parts",
            told(&|it| it["groups"][2]["parts"]["len"] = (1u64 << 40).into()),
            Malformed,
            "or larger than 1048576",
        ),
        (
            "tensor offset",
            told(&|it| it["groups"][0]["tensors"][1]["offset_in_group"] = 1.into()),
            Malformed,
            "tensor ln.bias: begins at 1 of its group, expected a multiple of 64",
        ),
        (
            "tensor overlap",
            told(&|it| it["groups"][0]["tensors"][1]["offset_in_group"] = 0.into()),
            Malformed,
            "the tensor before it ends at 12",
        ),
        (
            "tensor length",
            told(&|it| it["groups"][0]["tensors"][2]["len"] = 5000.into()),
            Malformed,
            "tensor mix: 5000 bytes at 128",
        ),
        (
            "tensor overflow",
            told(&|it| it["groups"][0]["tensors"][2]["len"] = u64::MAX.into()),
            Malformed,
            "end after the group",
        ),
        (
            "tensor shape",
            told(&|it| it["groups"][0]["tensors"][2]["shape"] = serde_json::json!([u64::MAX, 2])),
            Malformed,
            "overflows",
        ),
        (
            "other length",
            told(&|it| it["groups"][0]["tensors"][2]["len"] = 2.into()),
            Malformed,
            "the safetensors header 1 at",
        ),
        (
            "other name",
            told(&|it| it["groups"][0]["tensors"][2]["name"] = "mox".into()),
            Malformed,
            "tensor mox: is in the manifest more than once",
        ),
        (
            "twice",
            told(&|it| it["groups"][0]["tensors"][1]["name"] = "ln.weight".into()),
            Malformed,
            "more than once",
        ),
        (
            "stray",
            told(&|it| drop(it["groups"][2]["tensors"].as_array_mut().unwrap().pop())),
            Malformed,
            "tensor ffn.more: is in no group",
        ),
        (
            "stray pad",
            header(&|it| {
                let pad = it.as_object_mut().unwrap().remove("pad.0").unwrap();
                it["pod.0"] = pad;
            }),
            Malformed,
            "tensor pod.0: is in no group",
        ),
        (
            "hole",
            header(&|it| drop(it.as_object_mut().unwrap().remove("pad.0"))),
            Malformed,
            "leaves a hole before it",
        ),
        ("shifted", shifted, Malformed, "a pack's data begins and ends at multiples of 4096"),
        (
            "too much model",
            told(&|it| it["model"] = "x".repeat(17 << 20).into()),
            Malformed,
            "a pack has at most",
        ),
    ];
    cases.extend(flipped);
    run(&["pack"], cases);
}
