//! The safetensors header: eight bytes of length, then JSON, then the data without holes.
//!
//! Parsed here and not by the `safetensors` crate, because that one wants the whole file in memory, keeps the last of
//! two tensors of one name without a word, and cannot say which tensor is wrong. It is the referee in the tests.
//!
//! Format: <https://huggingface.co/docs/safetensors>.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::checkpoint::TensorInfo;
use crate::dtype::DType;
use crate::error::{PackError, PackErrorKind, shown};
use crate::input::InputFile;

/// The longest header that the format allows, in bytes.
pub(crate) const MAX_HEADER_LEN: u64 = 100_000_000;

/// More dimensions than any tensor has.
pub(crate) const MAX_RANK: usize = 16;

/// A header that agreed with its file in every point.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: BTreeMap<String, String>,
    /// In the order of their bytes, which follow one another without holes up to the end of the file.
    pub tensors: Vec<StoredTensor>,
    /// Where the data begins in the file.
    pub data_start: u64,
}

/// A tensor and its bytes' place in the file.
#[derive(Debug)]
pub(crate) struct StoredTensor {
    pub info: TensorInfo,
    pub offset: u64,
    pub len: u64,
}

impl Header {
    /// Reads and checks the header of `input`. No tensor data is read.
    pub fn read(input: &InputFile) -> Result<Self, PackError> {
        Self::read_checked(input).map_err(|error| error.in_file(input.path()))
    }

    fn read_checked(input: &InputFile) -> Result<Self, PackError> {
        let truncated = |line: String| Err(PackError::new(PackErrorKind::Truncated, line));
        let file_len = input.len();
        if file_len < 8 {
            return truncated(format!(
                "has {file_len} bytes, a safetensors file begins with 8 bytes of header length"
            ));
        }
        let mut len = [0; 8];
        input.read_exact_at(&mut len, 0)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER_LEN {
            let line = format!("its header would have {len} bytes, at most {MAX_HEADER_LEN} are allowed");
            return Err(PackError::malformed(line).at(0));
        }
        let data_start = 8 + len;
        if data_start > file_len {
            return truncated(format!(
                "its header ends at {data_start}, the file has {file_len} bytes: download it again"
            ));
        }
        let mut json = Vec::new();
        input.read_extent(8, len, &mut json)?;
        let (metadata, tensors) = parse(&json, data_start)?;
        let end = tensors.last().map_or(data_start, |last| last.offset + last.len);
        if end > file_len {
            return truncated(format!(
                "its tensors end at {end}, the file has {file_len} bytes: download it again"
            ));
        }
        if end < file_len {
            let line = format!("has {} bytes after the last tensor, expected none", file_len - end);
            return Err(PackError::malformed(line).at(end));
        }
        Ok(Self { metadata, tensors, data_start })
    }
}

type Parsed = (BTreeMap<String, String>, Vec<StoredTensor>);

/// Parses a header whose data begins at `data_start`, and checks all but the file's length.
fn parse(json: &[u8], data_start: u64) -> Result<Parsed, PackError> {
    let json = std::str::from_utf8(json)
        .map_err(|error| PackError::malformed("its header is not UTF-8").at(8).caused_by(error))?;
    if !json.starts_with('{') {
        return Err(PackError::malformed("its header does not begin with {").at(8));
    }
    let raw: RawHeader =
        serde_json::from_str(json).map_err(|error| PackError::malformed(header_line(&error)).at(8))?;
    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, raw) in raw.tensors {
        tensors.push(stored(name, raw, data_start)?);
    }
    // Of tensors at one place the empty ones come first, as their bytes do.
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
    let mut end = data_start;
    for tensor in &tensors {
        if tensor.offset != end {
            let what =
                if tensor.offset < end { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let (found, expected) = (tensor.offset - data_start, end - data_start);
            let line = format!("data offset {found} {what}, expected {expected}");
            return Err(PackError::malformed(line).in_tensor(&tensor.info.name));
        }
        end = tensor.offset + tensor.len;
    }
    Ok((raw.metadata, tensors))
}

fn header_line(error: &serde_json::Error) -> String {
    let mut line = format!("its header is not a safetensors header: {error}");
    // Such messages quote the file.
    line.retain(|c| !c.is_control());
    line
}

fn stored(name: String, raw: RawTensor, data_start: u64) -> Result<StoredTensor, PackError> {
    let fail = |line: String| PackError::malformed(line).in_tensor(&name);
    let dtype: DType = raw.dtype.parse().map_err(|_| {
        let line = format!("has element type {}, which is not known", shown(&raw.dtype));
        PackError::new(PackErrorKind::Unsupported, line).in_tensor(&name)
    })?;
    let [begin, end] = raw.data_offsets;
    let len =
        end.checked_sub(begin).ok_or_else(|| fail(format!("data offsets {begin}..{end} are inverted")))?;
    let shape = raw.shape.0;
    let bytes =
        dtype.tensor_bytes(&shape).ok_or_else(|| fail(format!("shape {shape:?} overflows 64 bits")))?;
    if bytes != len {
        return Err(fail(format!(
            "shape {shape:?} of {dtype} takes {bytes} bytes, its data offsets span {len}"
        )));
    }
    // With this, offset + len fits 64 bits everywhere.
    let offset = data_start.checked_add(begin).filter(|offset| offset.checked_add(len).is_some());
    let offset = offset.ok_or_else(|| fail(format!("data offsets {begin}..{end} overflow 64 bits")))?;
    Ok(StoredTensor { info: TensorInfo { name, dtype, shape }, offset, len })
}

/// The header as JSON has it, with every entry in its order.
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut names = HashSet::new();
        let mut raw = RawHeader { metadata: BTreeMap::new(), tensors: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("the name {} occurs twice", shown(&name))));
            }
            let entry = if name == "__metadata__" {
                map.next_value::<UniqueStrings>().map(|strings| raw.metadata = strings.0)
            } else {
                map.next_value().map(|tensor| raw.tensors.push((name.clone(), tensor)))
            };
            entry.map_err(|error| A::Error::custom(format_args!("entry {}: {error}", shown(&name))))?;
        }
        Ok(raw)
    }
}

struct UniqueStrings(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = UniqueStrings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueStrings, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if strings.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("the key {} occurs twice", shown(&key))));
                    }
                    strings.insert(key, value);
                }
                Ok(UniqueStrings(strings))
            }
        }
        deserializer.deserialize_map(StringsVisitor)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_RANK} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = list.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::invalid_length(MAX_RANK + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}
