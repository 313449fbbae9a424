//! From a spec to the places of all bytes, and to the header that states them.

use crate::dtype::DType;
use crate::error::PackError;
use crate::header::MAX_RANK;
use crate::pack::manifest::{Checksum, Group, Manifest, PackedTensor, Parts};
use crate::pack::spec::PackSpec;
use crate::pack::{MANIFEST_KEY, MAX_PACK_HEADER_LEN, PACK_VERSION, PAD_PREFIX, PAGE, TENSOR_ALIGN};

/// The places of all bytes of a pack.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Complete but for the checksums.
    pub manifest: Manifest,
    /// What stands in the data section, without holes.
    pub pieces: Vec<Piece>,
}

/// A run of bytes: a tensor, or zeros.
#[derive(Debug)]
pub(crate) struct Piece {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub len: u64,
    /// The group it belongs to.
    pub group: usize,
    pub is_pad: bool,
}

impl Layout {
    /// Lays out `spec`. Refuses specs that could not be read back.
    pub fn of(spec: PackSpec) -> Result<Self, PackError> {
        spec.check()?;
        let mut layout = Self {
            manifest: Manifest {
                version: PACK_VERSION,
                model: spec.model,
                tokenizer: spec.tokenizer,
                source: spec.source,
                groups: Vec::with_capacity(spec.groups.len()),
            },
            pieces: Vec::new(),
        };
        let overflow = || PackError::spec("the pack would have more bytes than 64 bits can count");
        let mut pads = 0;
        let mut offset: u64 = 0;
        for (index, group) in spec.groups.into_iter().enumerate() {
            let mut len: u64 = 0;
            let mut tensors = Vec::with_capacity(group.tensors.len());
            let count = group.tensors.len();
            for (nth, tensor) in group.tensors.into_iter().enumerate() {
                if tensor.shape.len().max(tensor.stored_shape.len()) > MAX_RANK {
                    let line = format!("has more than {MAX_RANK} dimensions");
                    return Err(PackError::spec(line).in_tensor(&tensor.name));
                }
                let bytes = tensor.byte_len()?;
                let (name, offset_in_group) = (tensor.name.clone(), len);
                layout.pieces.push(Piece {
                    name: tensor.name,
                    dtype: tensor.stored_dtype,
                    shape: tensor.stored_shape,
                    len: bytes,
                    group: index,
                    is_pad: false,
                });
                len = len.checked_add(bytes).ok_or_else(overflow)?;
                let align = if nth + 1 == count { PAGE } else { TENSOR_ALIGN };
                let padded = len.checked_next_multiple_of(align).ok_or_else(overflow)?;
                if padded > len {
                    layout.pieces.push(Piece::pad(&mut pads, padded - len, index));
                }
                len = padded;
                tensors.push(PackedTensor {
                    name,
                    codec: tensor.codec,
                    layout: tensor.layout,
                    shape: tensor.shape,
                    offset_in_group,
                    len: bytes,
                });
            }
            let checksum = Checksum::default();
            let parts = match group.part_len {
                None => None,
                Some(part_len) => {
                    let count = len.div_ceil(part_len);
                    // Each is 16 digits in the header.
                    if count > MAX_PACK_HEADER_LEN / 16 {
                        let line = format!("{count} parts of {part_len} bytes are too many for a header");
                        return Err(PackError::spec(line).in_group(&group.name));
                    }
                    Some(Parts { len: part_len, checksums: vec![checksum; count as usize] })
                }
            };
            layout.manifest.groups.push(Group {
                name: group.name,
                swept: group.swept,
                offset,
                len,
                checksum,
                parts,
                tensors,
            });
            offset = offset.checked_add(len).ok_or_else(overflow)?;
        }
        layout.place(offset)?;
        Ok(layout)
    }

    /// Moves the groups, which `data_len` bytes of data begin with, behind the header.
    ///
    /// The header holds the offsets, and its length depends on their digits: repeated until it fits. Offsets only grow
    /// here, and so does the header, so that this ends after two or three rounds.
    fn place(&mut self, data_len: u64) -> Result<(), PackError> {
        let mut data_start = 0;
        loop {
            let needed = self.header()?.len() as u64;
            if needed <= data_start {
                return Ok(());
            }
            let fits = needed.checked_add(data_len).is_some_and(|end| end <= i64::MAX as u64);
            if !fits {
                return Err(PackError::spec("the pack would be longer than a file can be"));
            }
            for group in &mut self.manifest.groups {
                group.offset += needed - data_start;
            }
            data_start = needed;
        }
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.manifest.groups.last().map_or(0, Group::end)
    }

    /// The whole header, from the length to the spaces before the first group.
    ///
    /// Its length does not depend on the checksums.
    pub fn header(&self) -> Result<Vec<u8>, PackError> {
        let fail = |error| PackError::spec("the manifest cannot be written as JSON").caused_by(error);
        let json = |value: &str| serde_json::to_string(value).map_err(fail);
        let manifest = serde_json::to_string(&self.manifest).map_err(fail)?;
        let mut text = format!("{{\"__metadata__\":{{\"{MANIFEST_KEY}\":{}}}", json(&manifest)?);
        let mut begin = 0;
        for piece in &self.pieces {
            let end = begin + piece.len;
            let (name, dtype, shape) = (json(&piece.name)?, piece.dtype, &piece.shape);
            text += &format!(
                ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
            );
            begin = end;
        }
        text.push('}');
        let start = self.manifest.groups.first().map_or(0, |group| group.offset);
        let len = (8 + text.len() as u64).max(start).next_multiple_of(PAGE);
        if len > MAX_PACK_HEADER_LEN {
            let line =
                format!("its header would have {len} bytes, at most {MAX_PACK_HEADER_LEN} are allowed");
            return Err(PackError::spec(line));
        }
        let mut header = (len - 8).to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        header.resize(len as usize, b' ');
        Ok(header)
    }
}

impl Piece {
    fn pad(pads: &mut usize, len: u64, group: usize) -> Self {
        let name = format!("{PAD_PREFIX}{pads}");
        *pads += 1;
        // Pads are shorter than a page.
        Self { name, dtype: DType::U8, shape: vec![len as usize], len, group, is_pad: true }
    }
}
