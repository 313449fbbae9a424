#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod checkpoint;
mod dtype;
mod error;
mod format;
mod header;
mod input;
mod new_file;
mod pack;
mod torch;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use dtype::{DType, UnknownDType};
pub use error::{PackError, PackErrorKind};
pub use format::FileFormat;
pub use new_file::NewFile;
pub use pack::{
    Checksum, ChecksumSyntax, Group, GroupSpec, MANIFEST_KEY, MAX_PART_LEN, Manifest, PACK_VERSION, PAGE,
    Pack, PackSpec, PackedTensor, Parts, SourceInfo, TENSOR_ALIGN, TensorSpec, Writer,
};
