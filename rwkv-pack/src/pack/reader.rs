//! Opens a pack and checks everything that it says.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;

use crate::dtype::DType;
use crate::error::{PackError, PackErrorKind};
use crate::format::Container;
use crate::header::{Header, StoredTensor};
use crate::input::InputFile;
use crate::pack::hash::GroupHash;
use crate::pack::manifest::{Group, Manifest, PackedTensor, Parts};
use crate::pack::{MANIFEST_KEY, MAX_PACK_HEADER_LEN, MAX_PART_LEN, PAD_PREFIX, PAGE, TENSOR_ALIGN};

/// An open pack whose every statement about its own layout was checked.
///
/// Whoever holds one may rely on this: groups begin and end at pages, follow one another without holes and fill the
/// file; tensors begin at multiples of [`TENSOR_ALIGN`], do not overlap and lie in their group; names are unique.
/// Whether the bytes are right is only known from [`verify`](Self::verify) or [`check_group`](Self::check_group).
#[derive(Debug)]
pub struct Pack {
    input: InputFile,
    manifest: Manifest,
}

impl Pack {
    /// Opens the pack at `path` and checks its header. The data is not read.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no pack (the error says what it is), is of another version, or contradicts
    /// itself.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PackError> {
        let input = InputFile::open(path.as_ref())?;
        let manifest = read_manifest(&input).map_err(|error| error.in_file(input.path()))?;
        Ok(Self { input, manifest })
    }

    /// What the pack says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        self.input.path()
    }

    /// The length of the file in bytes: a multiple of [`PAGE`].
    pub fn file_len(&self) -> u64 {
        self.input.len()
    }

    /// A second handle to the open file, which stays the same file even if the name is given to another one.
    ///
    /// Both handles share a cursor where the operating system has one: use positioned reads.
    ///
    /// # Errors
    ///
    /// When the operating system has no more handles.
    pub fn try_clone_file(&self) -> io::Result<File> {
        self.input.file().try_clone()
    }

    /// Checks that `bytes` are the bytes of group `index`.
    ///
    /// # Errors
    ///
    /// When their number or their checksum is another one. The error names the file, the group and its offset.
    ///
    /// # Panics
    ///
    /// If there is no group `index`.
    pub fn check_group(&self, index: usize, bytes: &[u8]) -> Result<(), PackError> {
        self.group(index).check(bytes).map_err(|error| error.in_file(self.path()))
    }

    /// Checks that `bytes` are the bytes of part `part` of group `index`.
    ///
    /// # Errors
    ///
    /// When their number or their checksum is another one. The error names the file, the group and the part's offset.
    ///
    /// # Panics
    ///
    /// If there is no group `index`, or it has no part `part`.
    pub fn check_part(&self, index: usize, part: usize, bytes: &[u8]) -> Result<(), PackError> {
        self.group(index).check_part(part, bytes).map_err(|error| error.in_file(self.path()))
    }

    /// Reads group `index` into `buf`, replacing what it held, and checks it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read there or the checksum is another one.
    ///
    /// # Panics
    ///
    /// If there is no group `index`.
    pub fn read_group(&self, index: usize, buf: &mut Vec<u8>) -> Result<(), PackError> {
        let group = self.group(index);
        self.input.read_extent(group.offset, group.len, buf).map_err(|error| error.in_group(&group.name))?;
        self.check_group(index, buf)
    }

    /// Reads all groups and checks their checksums and those of their parts, in little memory.
    ///
    /// `progress` is called with the bytes done and the bytes in all.
    ///
    /// # Errors
    ///
    /// The first group that cannot be read or does not have its checksum, with its offset.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<(), PackError> {
        let total = self.manifest.data_len();
        let mut done = 0;
        for group in &self.manifest.groups {
            let mut found = group.clone();
            let mut hash = GroupHash::default();
            let read = self.input.stream(group.offset, group.len, |chunk| {
                hash.update(found.parts.as_mut(), chunk);
                done += chunk.len() as u64;
                progress(done, total);
            });
            hash.end_group(&mut found);
            read.and_then(|()| group.check_sums(&found))
                .map_err(|error| error.in_group(&group.name).in_file(self.path()))?;
        }
        Ok(())
    }

    fn group(&self, index: usize) -> &Group {
        let count = self.manifest.groups.len();
        assert!(index < count, "group {index} of a pack with {count} groups");
        &self.manifest.groups[index]
    }
}

fn read_manifest(input: &InputFile) -> Result<Manifest, PackError> {
    let not_a_pack = |line: &str| Err(PackError::new(PackErrorKind::WrongFormat, line));
    if Container::sniff(input)? == Container::Zip {
        return not_a_pack("is a zip archive (a torch checkpoint?), expected a pack: make one from it first");
    }
    let header = Header::read(input)?;
    let Some(json) = header.metadata.get(MANIFEST_KEY) else {
        return not_a_pack("is a safetensors checkpoint, expected a pack: make one from it first");
    };
    if header.data_start > MAX_PACK_HEADER_LEN {
        let line =
            format!("its header has {} bytes, a pack has at most {MAX_PACK_HEADER_LEN}", header.data_start);
        return Err(PackError::malformed(line));
    }
    let manifest = Manifest::parse(json)?;
    let file_len = input.len();
    if !header.data_start.is_multiple_of(PAGE) || !file_len.is_multiple_of(PAGE) {
        let line = format!(
            "its data spans {}..{file_len}, a pack's data begins and ends at multiples of {PAGE}",
            header.data_start
        );
        return Err(PackError::malformed(line));
    }
    check_groups(&manifest, header.data_start, file_len)?;
    check_against_header(&manifest, &header.tensors)?;
    Ok(manifest)
}

/// Checks that the groups fill `data_start..file_len` and the tensors lie in them.
fn check_groups(manifest: &Manifest, data_start: u64, file_len: u64) -> Result<(), PackError> {
    let mut names = HashSet::new();
    let mut expected = data_start;
    for group in &manifest.groups {
        let (offset, len) = (group.offset, group.len);
        let fail = |line: String| Err(PackError::malformed(line).in_group(&group.name));
        if group.name.is_empty() || !names.insert(group.name.as_str()) {
            return fail("a group of this name exists already, or the name is empty".into());
        }
        let end = offset.checked_add(len).filter(|&end| end <= file_len);
        let Some(end) = end else {
            return fail(format!("{len} bytes at {offset:#x} end after the file ({file_len:#x} bytes)"));
        };
        if offset != expected {
            return fail(format!(
                "begins at {offset:#x}, expected {expected:#x}, where the one before it ends"
            ));
        }
        if len == 0 || !len.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE) {
            return fail(format!("{len} bytes at {offset:#x} are not whole pages of {PAGE} bytes"));
        }
        if let Some(Parts { len: part_len, checksums }) = &group.parts {
            if !Parts::is_right_len(*part_len) {
                return fail(format!(
                    "its parts of {part_len} bytes are not whole pages of {PAGE} bytes, or larger than {MAX_PART_LEN}"
                ));
            }
            let (found, count) = (checksums.len(), len.div_ceil(*part_len));
            if found as u64 != count {
                return fail(format!("has checksums of {found} parts, expected {count}"));
            }
        }
        check_tensors(group)?;
        expected = end;
    }
    if expected != file_len {
        let line = format!("its groups end at {expected:#x}, the file at {file_len:#x}");
        return Err(PackError::malformed(line));
    }
    Ok(())
}

fn check_tensors(group: &Group) -> Result<(), PackError> {
    let mut free = 0;
    for tensor in &group.tensors {
        let PackedTensor { offset_in_group: offset, len, .. } = *tensor;
        let fail = |line: String| Err(PackError::malformed(line).in_tensor(&tensor.name));
        if !offset.is_multiple_of(TENSOR_ALIGN) {
            return fail(format!("begins at {offset} of its group, expected a multiple of {TENSOR_ALIGN}"));
        }
        if offset < free {
            return fail(format!("begins at {offset} of its group, the tensor before it ends at {free}"));
        }
        match offset.checked_add(len).filter(|&end| end <= group.len) {
            Some(end) => free = end,
            None => {
                return fail(format!(
                    "{len} bytes at {offset} of its group end after the group ({})",
                    group.len
                ));
            }
        }
        if tensor.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)).is_none() {
            return fail(format!("shape {:?} overflows", tensor.shape));
        }
    }
    Ok(())
}

/// Checks that manifest and safetensors header tell the same story.
fn check_against_header(manifest: &Manifest, stored: &[StoredTensor]) -> Result<(), PackError> {
    let mut left: HashMap<&str, &StoredTensor> =
        stored.iter().map(|tensor| (tensor.info.name.as_str(), tensor)).collect();
    for group in &manifest.groups {
        for tensor in &group.tensors {
            let fail = |line: String| Err(PackError::malformed(line).in_tensor(&tensor.name));
            let Some(stored) = left.remove(tensor.name.as_str()) else {
                return fail("is in the manifest more than once, or not in the safetensors header".into());
            };
            let offset = group.offset + tensor.offset_in_group;
            if (stored.offset, stored.len) != (offset, tensor.len) {
                return fail(format!(
                    "the manifest puts {} bytes at {offset:#x}, the safetensors header {} at {:#x}",
                    tensor.len, stored.len, stored.offset
                ));
            }
        }
    }
    // In the order of the file, so that the error is always the same one.
    let stray = stored.iter().find(|tensor| {
        let is_pad = tensor.info.name.starts_with(PAD_PREFIX) && tensor.info.dtype == DType::U8;
        left.contains_key(tensor.info.name.as_str()) && !is_pad
    });
    match stray {
        Some(tensor) => {
            Err(PackError::malformed("is in no group of the manifest").in_tensor(&tensor.info.name))
        }
        None => Ok(()),
    }
}
