#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod checkpoint;
mod dtype;
mod error;
mod format;
mod header;
mod input;
mod pack;
mod torch;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use dtype::{DType, UnknownDType};
pub use error::{PackError, PackErrorKind};
pub use format::FileFormat;
pub use pack::{
    Checksum, ChecksumSyntax, Group, GroupSpec, MANIFEST_KEY, Manifest, PACK_VERSION, PAGE, Pack, PackSpec,
    PackedTensor, SourceInfo, TENSOR_ALIGN, TensorSpec, Writer,
};
