//! The pack: a model's weights in the layout that the kernels read, made to be streamed.
//!
//! The format is described once, in the README, which is the documentation of this crate.

mod hash;
mod layout;
mod manifest;
mod reader;
mod spec;
mod writer;

pub use manifest::{Checksum, ChecksumSyntax, Group, Manifest, PackedTensor, Parts, SourceInfo};
pub use reader::Pack;
pub use spec::{GroupSpec, PackSpec, TensorSpec};
pub use writer::Writer;

/// Groups begin and end at multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// Inside a group, tensors begin at multiples of this many bytes.
pub const TENSOR_ALIGN: u64 = 64;

/// The longest part of a group in bytes, so that a part is read in little memory.
pub const MAX_PART_LEN: u64 = 1 << 20;

/// The version of the manifest that this crate writes, and the only one that it reads.
pub const PACK_VERSION: u32 = 1;

/// The key of the safetensors metadata that makes a safetensors file a pack.
pub const MANIFEST_KEY: &str = "rwkv.pack";

/// Names of padding tensors begin so; no tensor of a pack may.
pub(crate) const PAD_PREFIX: &str = "pad.";

/// The longest header of a pack in bytes. Real ones have less than one MiB.
pub(crate) const MAX_PACK_HEADER_LEN: u64 = 16 << 20;
