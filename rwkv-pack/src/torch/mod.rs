//! Checkpoints that PyTorch saved: a zip archive with a pickle that names tensors, and a member for each storage.

mod calls;
mod global;
mod machine;
mod opcode;
mod pickle;
mod view;
mod zip;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::checkpoint::TensorInfo;
use crate::error::{PackError, PackErrorKind, shown};
use crate::input::InputFile;
use pickle::{LONGEST_PICKLE, PickledTensor};
use view::View;
use zip::{Archive, Member};

/// Where the tensors of a torch file are.
#[derive(Debug)]
pub(crate) struct TorchFile {
    views: Vec<View>,
    storages: Vec<Storage>,
}

/// The member with the elements of one or several tensors.
#[derive(Debug)]
struct Storage {
    name: String,
    member: Member,
    /// Whether its CRC-32 was found right once.
    checked: AtomicBool,
}

impl TorchFile {
    /// Reads the directory and the pickle, and checks that every tensor lies in its storage. Reads no tensor.
    pub fn open(input: &InputFile) -> Result<(Vec<TensorInfo>, Self), PackError> {
        let archive = Archive::read(input)?;
        let pickle_name = find_pickle(&archive)?;
        let prefix = pickle_name.strip_suffix("data.pkl").unwrap_or_default();
        refuse_big_endian(input, &archive, &format!("{prefix}byteorder"))?;
        let pickle = read_small(input, &archive, pickle_name, LONGEST_PICKLE)?;
        let tensors = pickle::state_dict(&pickle).map_err(|error| error.in_member(pickle_name))?;
        let mut file = Self { views: Vec::with_capacity(tensors.len()), storages: Vec::new() };
        let mut known = BTreeMap::new();
        let mut infos = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let (info, view) = file
                .place(&archive, prefix, &mut known, &tensor)
                .map_err(|error| error.in_tensor(&tensor.name))?;
            infos.push(info);
            file.views.push(view);
        }
        Ok((infos, file))
    }

    /// Holds a tensor of the pickle against the archive.
    fn place(
        &mut self,
        archive: &Archive,
        prefix: &str,
        known: &mut BTreeMap<Arc<str>, usize>,
        tensor: &PickledTensor,
    ) -> Result<(TensorInfo, View), PackError> {
        let storage = match known.get(&tensor.storage) {
            Some(&storage) => storage,
            None => {
                let name = format!("{prefix}data/{}", tensor.storage);
                let Some(member) = archive.get(&name)? else {
                    let line = format!("its storage {} is not in the archive", shown(&name));
                    return Err(PackError::malformed(line));
                };
                known.insert(Arc::clone(&tensor.storage), self.storages.len());
                self.storages.push(Storage { name, member, checked: AtomicBool::new(false) });
                self.storages.len() - 1
            }
        };
        let Storage { name, member, .. } = &self.storages[storage];
        if member.len != tensor.storage_bytes {
            let line = format!(
                "its storage {} has {} bytes, the pickle says {}",
                shown(name),
                member.len,
                tensor.storage_bytes
            );
            return Err(PackError::malformed(line));
        }
        let view = View::new(tensor, storage, member.len)?;
        let PickledTensor { name, dtype, shape, .. } = tensor.clone();
        Ok((TensorInfo { name, dtype, shape }, view))
    }

    /// Reads tensor `index`: contiguous, row-major.
    pub fn read(&self, input: &InputFile, index: usize, buf: &mut Vec<u8>) -> Result<(), PackError> {
        let view = &self.views[index];
        let storage = &self.storages[view.storage()];
        let Member { offset, len, .. } = storage.member;
        if view.is_whole(len) {
            input.read_extent(offset, len, buf)?;
            return storage.check(crc32fast::hash(buf));
        }
        if !storage.checked.load(Ordering::Relaxed) {
            let mut crc = crc32fast::Hasher::new();
            input.stream(offset, len, |chunk| crc.update(chunk))?;
            storage.check(crc.finalize())?;
        }
        view.read(input, offset, buf)
    }
}

impl Storage {
    fn check(&self, found: u32) -> Result<(), PackError> {
        check_crc(&self.member, found).map_err(|line| {
            let line = format!("its storage {}: {line}", shown(&self.name));
            PackError::new(PackErrorKind::Checksum, line).at(self.member.offset)
        })?;
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// `Err` is the error's line.
fn check_crc(member: &Member, found: u32) -> Result<(), String> {
    // torch writes zero where it was told not to compute them (torch.serialization.set_crc32_options).
    if found == member.crc || member.crc == 0 {
        return Ok(());
    }
    let expected = member.crc;
    Err(format!("CRC-32 is {found:08x}, expected {expected:08x}: the file is damaged, download it again"))
}

/// The name of the member with the state dict.
fn find_pickle(archive: &Archive) -> Result<&str, PackError> {
    let mut pickles = archive.names().filter(|name| name.ends_with("/data.pkl"));
    let Some(name) = pickles.next() else {
        let line = "is a zip archive without data.pkl, expected a torch checkpoint: unpack it if the model is inside";
        return Err(PackError::new(PackErrorKind::WrongFormat, line));
    };
    if let Some(other) = pickles.next() {
        let line = format!("is one of two pickles, the other is {}: expected one", shown(other));
        return Err(PackError::malformed(line).in_member(name));
    }
    let script = name.replace("/data.pkl", "/constants.pkl");
    if archive.names().any(|name| name == script) {
        let line = "is a TorchScript program, expected a state dict as torch.save writes it";
        return Err(PackError::new(PackErrorKind::WrongFormat, line));
    }
    Ok(name)
}

fn refuse_big_endian(input: &InputFile, archive: &Archive, name: &str) -> Result<(), PackError> {
    // Files of older versions do not say; those were little-endian wherever it matters.
    if archive.get(name)?.is_some() && read_small(input, archive, name, 16)? != b"little" {
        let line = "does not say little: the file was saved on a big-endian machine, which is not supported";
        return Err(PackError::new(PackErrorKind::Unsupported, line).in_member(name));
    }
    Ok(())
}

/// Reads a whole member of at most `longest` bytes and checks its CRC-32.
fn read_small(input: &InputFile, archive: &Archive, name: &str, longest: u64) -> Result<Vec<u8>, PackError> {
    let Some(member) = archive.get(name)? else {
        return Err(PackError::malformed("is not in the archive").in_member(name));
    };
    if member.len > longest {
        let line = format!("has {} bytes, at most {longest} are read", member.len);
        return Err(PackError::malformed(line).in_member(name));
    }
    let mut bytes = Vec::new();
    input.read_extent(member.offset, member.len, &mut bytes)?;
    check_crc(&member, crc32fast::hash(&bytes))
        .map_err(|line| PackError::new(PackErrorKind::Checksum, format!("its {line}")).in_member(name))?;
    Ok(bytes)
}
