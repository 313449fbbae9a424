//! What the tests of this crate share: directories, small files of each format, the oracle folder.

#![allow(dead_code, reason = "each test file uses a part of this")]

pub mod entry;
pub mod pth;
pub mod zip;

use std::path::{Path, PathBuf};

use serde_json::Value;

use rwkv_pack::{DType, GroupSpec, PackSpec, SourceInfo, TensorSpec, Writer};

/// The folder of reference checkpoints: `RWKV_ORACLE`, or `../shared/oracle` beside the workspace. `None`, with a note,
/// where there is none.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
pub fn oracle() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle");
    let folder = std::env::var_os("RWKV_ORACLE").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no oracle folder at {}, set RWKV_ORACLE", folder.display());
    None
}

/// A tensor for [`safetensors`].
pub struct Entry<'a> {
    pub name: &'a str,
    pub dtype: &'a str,
    pub shape: &'a [usize],
    pub bytes: Vec<u8>,
}

/// A safetensors file, written without any library.
pub fn safetensors(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut header = String::from("{");
    let mut data = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (begin, end) = (data.len(), data.len() + entry.bytes.len());
        header += &format!(
            "{comma}\"{}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{begin},{end}]}}",
            entry.name, entry.dtype, entry.shape
        );
        data.extend_from_slice(&entry.bytes);
    }
    header.push('}');
    with_header(&header, &data)
}

/// A safetensors file with this header, right or wrong.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A small valid safetensors file.
pub fn small_safetensors() -> Vec<u8> {
    safetensors(&[
        Entry { name: "emb.weight", dtype: "BF16", shape: &[5, 3], bytes: numbers(30) },
        Entry { name: "head.weight", dtype: "F32", shape: &[2, 4], bytes: numbers(32) },
        Entry { name: "ln.bias", dtype: "F16", shape: &[1, 1, 7], bytes: numbers(14) },
    ])
}

/// `len` bytes that differ from their neighbours.
pub fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 37 + index / 251 + 1) as u8).collect()
}

/// A tensor of `len` bytes for a pack.
pub fn tensor(name: &str, len: usize) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        codec: "u8".into(),
        layout: "row-tiles".into(),
        shape: vec![len],
        stored_dtype: DType::U8,
        stored_shape: vec![len],
    }
}

/// A spec of groups, each given by name and by the names and lengths of its tensors.
pub fn spec(groups: &[(&str, &[(&str, usize)])]) -> PackSpec {
    let group = |&(name, tensors): &(&str, &[(&str, usize)])| GroupSpec {
        name: name.into(),
        swept: name != "vectors",
        part_len: (name == "blocks.0.key").then_some(4096),
        tensors: tensors.iter().map(|&(name, len)| tensor(name, len)).collect(),
    };
    PackSpec {
        model: serde_json::json!({"family": "rwkv7", "eps": 1e-5, "text": "quote \" and \\ and \u{2028}"}),
        tokenizer: Some("world".into()),
        source: SourceInfo { file_name: "модель \"1\".pth".into(), ..SourceInfo::default() },
        groups: groups.iter().map(group).collect(),
    }
}

/// The groups of [`small_pack`].
pub const SMALL: &[(&str, &[(&str, usize)])] = &[
    ("vectors", &[("ln.weight", 12), ("ln.bias", 64), ("mix", 1)]),
    ("blocks.0.att", &[("att.key", 4096)]),
    ("blocks.0.key", &[("ffn.key", 5000), ("ffn.more", 3192)]),
    ("head.0", &[("head", 4095)]),
];

/// Writes a small pack to `path`.
pub fn small_pack(path: &Path) {
    let mut writer = Writer::create(path, spec(SMALL)).unwrap();
    for (_, tensors) in SMALL {
        for &(name, len) in *tensors {
            writer.write(name, &numbers(len)).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// The names in a directory.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The bytes of a small pack.
pub fn small_pack_bytes() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    small_pack(&path);
    std::fs::read(path).unwrap()
}

/// A pack with another header: `change` gets the safetensors header and, apart, the manifest in it. A manifest that
/// is left `Null` is not put back. The offsets of the manifest
/// hold as long as the header keeps its pages.
pub fn retold(pack: &[u8], change: impl FnOnce(&mut Value, &mut Value)) -> Vec<u8> {
    let len = u64::from_le_bytes(pack[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&pack[8..8 + len]).unwrap();
    let mut manifest: Value =
        serde_json::from_str(header["__metadata__"]["rwkv.pack"].as_str().unwrap()).unwrap();
    change(&mut header, &mut manifest);
    if !manifest.is_null() {
        header["__metadata__"]["rwkv.pack"] = manifest.to_string().into();
    }
    let mut text = header.to_string();
    let spaces = (8 + text.len()).next_multiple_of(4096) - 8 - text.len();
    text.extend(std::iter::repeat_n(' ', spaces));
    with_header(&text, &pack[8 + len..])
}
