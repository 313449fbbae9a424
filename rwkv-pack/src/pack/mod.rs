//! The pack: a model's weights in the layout that the kernels read, made to be streamed.
//!
//! A pack is a valid safetensors file with three promises on top:
//!
//! 1. `__metadata__` holds the key `rwkv.pack`, whose value is a [`Manifest`] as JSON: the model's configuration, the
//!    source, and the groups of tensors with their extents and checksums.
//! 2. The data begins at a multiple of [`PAGE`] bytes (the header is padded with spaces), and so does every group. A group
//!    also ends at one, so that whole pages of it can be read past the page cache. Inside a group every tensor begins at
//!    a multiple of [`TENSOR_ALIGN`] bytes. As safetensors allows no holes, tensors named `pad.0`, `pad.1`, ...
//!    (`U8`, zeros) fill the gaps.
//! 3. Groups follow one another in the order in which a token needs them.
//!
//! ```text
//! 0            8 + header = k * 4096                                   file end = m * 4096
//! | len | JSON + spaces  | group 0: tensor pad tensor pad | group 1: ... |
//! ```
//!
//! A group is what is read, checked and cached as one piece. Its checksum is the XXH3-64 of its whole extent, pads
//! included.

mod layout;
mod manifest;
mod reader;
mod spec;
mod writer;

pub use manifest::{Checksum, ChecksumSyntax, Group, Manifest, PackedTensor, SourceInfo};
pub use reader::Pack;
pub use spec::{GroupSpec, PackSpec, TensorSpec};
pub use writer::Writer;

/// Groups begin and end at multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// Inside a group, tensors begin at multiples of this many bytes.
pub const TENSOR_ALIGN: u64 = 64;

/// The version of the manifest that this crate writes, and the only one that it reads.
pub const PACK_VERSION: u32 = 1;

/// The key of the safetensors metadata that makes a safetensors file a pack.
pub const MANIFEST_KEY: &str = "rwkv.pack";

/// Names of padding tensors begin so; no tensor of a pack may.
pub(crate) const PAD_PREFIX: &str = "pad.";

/// The longest header of a pack in bytes. Real ones have less than one MiB.
pub(crate) const MAX_PACK_HEADER_LEN: u64 = 16 << 20;
