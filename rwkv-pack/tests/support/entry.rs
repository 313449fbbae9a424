//! All the ways into this crate, for files that may be anything.

use std::path::Path;

use rwkv_pack::{Checkpoint, FileFormat, Pack, PackError};

/// A way into this crate: its name, and a function that goes it to the end.
pub type EntryPoint = (&'static str, fn(&Path) -> Result<(), PackError>);

/// Every way into this crate, each gone to its end.
pub const ENTRY_POINTS: &[EntryPoint] =
    &[("detect", detect), ("checkpoint", checkpoint), ("hash", hash), ("pack", pack)];

/// Tells the format, and opens the file as that.
pub fn detect(path: &Path) -> Result<(), PackError> {
    match FileFormat::detect(path)? {
        FileFormat::Pack => pack(path),
        _ => checkpoint(path),
    }
}

/// Opens a checkpoint and reads all its tensors.
pub fn checkpoint(path: &Path) -> Result<(), PackError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.iter().try_for_each(|tensor| tensor.map(drop))
}

/// Opens a checkpoint, reads its tensors backwards, and hashes the file.
pub fn hash(path: &Path) -> Result<(), PackError> {
    let checkpoint = Checkpoint::open(path)?;
    let mut buf = Vec::new();
    (0..checkpoint.tensors().len()).rev().try_for_each(|index| checkpoint.read(index, &mut buf))?;
    checkpoint.source_info(|_, _| {}).map(drop)
}

/// Opens a pack, verifies it, and reads its groups.
pub fn pack(path: &Path) -> Result<(), PackError> {
    let pack = Pack::open(path)?;
    pack.verify(|_, _| {})?;
    let mut buf = Vec::new();
    (0..pack.manifest().groups.len()).try_for_each(|index| pack.read_group(index, &mut buf))
}
