//! The manifest: what a pack says about itself.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{PackError, PackErrorKind};
use crate::pack::{MAX_PART_LEN, PACK_VERSION, PAGE};

/// An XXH3-64 hash with seed 0. Written as 16 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is not 16 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChecksumSyntax;

impl fmt::Display for ChecksumSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a checksum is 16 lower-case hex digits")
    }
}

impl std::error::Error for ChecksumSyntax {}

impl FromStr for Checksum {
    type Err = ChecksumSyntax;

    fn from_str(text: &str) -> Result<Self, ChecksumSyntax> {
        let digits = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let value = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        value.map(Self).ok_or(ChecksumSyntax)
    }
}

impl TryFrom<String> for Checksum {
    type Error = ChecksumSyntax;

    fn try_from(text: String) -> Result<Self, ChecksumSyntax> {
        text.parse()
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> Self {
        checksum.to_string()
    }
}

/// The checkpoint that a pack was made from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Its name without directories.
    pub file_name: String,
    /// Its length in bytes.
    pub len: u64,
    /// The checksum of the whole file.
    pub xxh3: Checksum,
}

/// What a pack says about itself: the JSON value of the metadata key `rwkv.pack`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`PACK_VERSION`] when the pack was written.
    pub version: u32,
    /// The model's configuration. This crate carries it and does not look inside.
    pub model: Value,
    /// A hint at the tokenizer that the model was trained with.
    pub tokenizer: Option<String>,
    /// The checkpoint that the pack was made from.
    pub source: SourceInfo,
    /// The groups, in the order of their bytes.
    pub groups: Vec<Group>,
}

/// Tensors that are read, checked and cached as one piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// A name that no other group of the pack has.
    pub name: String,
    /// Whether every token needs all of this group's bytes. The others are kept in memory or read in part.
    pub swept: bool,
    /// Where the group begins in the file, in bytes: a multiple of [`PAGE`](crate::PAGE).
    pub offset: u64,
    /// Its length in bytes, pads included: a multiple of [`PAGE`](crate::PAGE).
    pub len: u64,
    /// The checksum of these `len` bytes.
    pub checksum: Checksum,
    /// Checksums of its parts, for a group that is not always read as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<PackedTensor>,
}

/// The parts of a group: runs of equal length, the last of which may be shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The length of a part in bytes: a multiple of [`PAGE`](crate::PAGE), at most [`MAX_PART_LEN`](crate::MAX_PART_LEN).
    pub len: u64,
    /// The checksum of each part.
    pub checksums: Vec<Checksum>,
}

impl Parts {
    pub(crate) fn is_right_len(len: u64) -> bool {
        len.is_multiple_of(PAGE) && (PAGE..=MAX_PART_LEN).contains(&len)
    }
}

/// A tensor in a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTensor {
    /// A name that no other tensor of the pack has.
    pub name: String,
    /// How its numbers are coded: `f32`, `u8`, ... A mere name to this crate.
    pub codec: String,
    /// How they are arranged: `row-tiles`, `columns`, `vector`, `rows`. A mere name to this crate.
    pub layout: String,
    /// The logical shape, `[out, in]` for a matrix, whatever the layout makes of it.
    pub shape: Vec<usize>,
    /// Where its bytes begin in the group: a multiple of [`TENSOR_ALIGN`](crate::TENSOR_ALIGN).
    pub offset_in_group: u64,
    /// The number of its bytes.
    pub len: u64,
}

impl PackedTensor {
    /// The place of the tensor's bytes among the bytes of its group.
    ///
    /// # Panics
    ///
    /// If the extent does not fit the address space. A group of a [`Pack`](crate::Pack) that is in memory always does.
    pub fn range(&self) -> Range<usize> {
        let end = self.offset_in_group.checked_add(self.len).and_then(|end| usize::try_from(end).ok());
        let Some(end) = end else {
            panic!("tensor {}: {} bytes at {} of its group", self.name, self.len, self.offset_in_group)
        };
        self.offset_in_group as usize..end
    }
}

impl Group {
    /// Where the group ends in the file, in bytes.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Checks that `bytes` are the bytes of this group.
    ///
    /// # Errors
    ///
    /// When their number or their checksum is another one. The error names the group and its offset in the file.
    pub fn check(&self, bytes: &[u8]) -> Result<(), PackError> {
        if bytes.len() as u64 != self.len {
            let line = format!("was given {} bytes, the group has {}", bytes.len(), self.len);
            return Err(PackError::new(PackErrorKind::Truncated, line).in_group(&self.name).at(self.offset));
        }
        self.compare(Checksum::of(bytes), self.checksum, self.offset)
    }

    /// Checks that `bytes` are the bytes of part `index` of this group.
    ///
    /// # Errors
    ///
    /// When their number or their checksum is another one. The error names the group and the part's offset in the file.
    ///
    /// # Panics
    ///
    /// If the group has no part `index`.
    pub fn check_part(&self, index: usize, bytes: &[u8]) -> Result<(), PackError> {
        let count = self.parts.as_ref().map_or(0, |parts| parts.checksums.len());
        let Some(parts) = self.parts.as_ref().filter(|_| index < count) else {
            panic!("part {index} of group {}, which has {count} parts", self.name)
        };
        let begin = parts.len.saturating_mul(index as u64);
        let len = parts.len.min(self.len.saturating_sub(begin));
        let offset = self.offset.saturating_add(begin);
        if bytes.len() as u64 != len {
            let line = format!("was given {} bytes, the part has {len}", bytes.len());
            return Err(PackError::new(PackErrorKind::Truncated, line).in_group(&self.name).at(offset));
        }
        self.compare(Checksum::of(bytes), parts.checksums[index], offset)
    }

    /// Checks that another group, of the same bytes, has the same checksums.
    pub(crate) fn check_sums(&self, found: &Group) -> Result<(), PackError> {
        self.compare(found.checksum, self.checksum, self.offset)?;
        let (Some(parts), Some(found)) = (&self.parts, &found.parts) else { return Ok(()) };
        let begins = (0..).map(|part| self.offset + part * parts.len);
        let mut sums = found.checksums.iter().zip(&parts.checksums).zip(begins);
        sums.try_for_each(|((&found, &expected), offset)| self.compare(found, expected, offset))
    }

    /// The checksums of the bytes from `offset` in the file on.
    fn compare(&self, found: Checksum, expected: Checksum, offset: u64) -> Result<(), PackError> {
        if found == expected {
            return Ok(());
        }
        let line = format!(
            "its bytes have checksum {found}, expected {expected}: the file is damaged, make or download it again"
        );
        Err(PackError::new(PackErrorKind::Checksum, line).in_group(&self.name).at(offset))
    }
}

impl Manifest {
    /// Parses the JSON text of a manifest; the version is looked at first, because it decides about all else.
    pub(crate) fn parse(json: &str) -> Result<Self, PackError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let fail = |error: serde_json::Error| {
            let mut line = format!("its manifest cannot be understood: {error}");
            line.retain(|c| !c.is_control());
            PackError::malformed(line)
        };
        let Version { version } = serde_json::from_str(json).map_err(fail)?;
        if version != PACK_VERSION {
            let line = format!(
                "is a pack of version {version}, this program reads version {PACK_VERSION}: make it again from the checkpoint"
            );
            return Err(PackError::new(PackErrorKind::Unsupported, line));
        }
        serde_json::from_str(json).map_err(fail)
    }

    /// The sum of all groups' lengths in bytes.
    pub fn data_len(&self) -> u64 {
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(group.len))
    }

    /// Group and tensor index of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<(usize, usize)> {
        self.groups.iter().enumerate().find_map(|(group, entry)| {
            let tensor = entry.tensors.iter().position(|tensor| tensor.name == name)?;
            Some((group, tensor))
        })
    }
}
