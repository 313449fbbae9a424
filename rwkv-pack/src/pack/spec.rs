//! What a pack shall hold, said before the first byte is written.

use std::collections::HashSet;

use serde_json::Value;

use crate::dtype::DType;
use crate::error::PackError;
use crate::pack::PAD_PREFIX;
use crate::pack::layout::Layout;
use crate::pack::manifest::{Manifest, Parts, SourceInfo};

/// What a pack shall hold. All sizes follow from it, so that a [`Writer`](crate::Writer) can lay out the file at once.
#[derive(Debug, Clone, PartialEq)]
pub struct PackSpec {
    /// The model's configuration, carried as it is.
    pub model: Value,
    /// A hint at the tokenizer that the model was trained with.
    pub tokenizer: Option<String>,
    /// The checkpoint that the weights come from.
    pub source: SourceInfo,
    /// The groups, in the order in which a token needs them.
    pub groups: Vec<GroupSpec>,
}

/// A group of a [`PackSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// A name that no other group has.
    pub name: String,
    /// Whether every token needs all of this group's bytes.
    pub swept: bool,
    /// The length of its parts in bytes, if parts of it are read and checked alone: a multiple of
    /// [`PAGE`](crate::PAGE), at most [`MAX_PART_LEN`](crate::MAX_PART_LEN).
    pub part_len: Option<u64>,
    /// The tensors, in the order in which they will be written. At least one.
    pub tensors: Vec<TensorSpec>,
}

/// A tensor of a [`GroupSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// A name that no other tensor has, and that does not begin with `pad.`.
    pub name: String,
    /// How the numbers are coded: `f32`, `u8`, ...
    pub codec: String,
    /// How they are arranged: `row-tiles`, `columns`, `vector`, `rows`.
    pub layout: String,
    /// The logical shape, `[out, in]` for a matrix.
    pub shape: Vec<usize>,
    /// The element type that the safetensors header states. With `stored_shape` it gives the number of bytes.
    pub stored_dtype: DType,
    /// The array shape that the safetensors header states.
    pub stored_shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the stored tensor.
    ///
    /// # Errors
    ///
    /// When the shape has no elements or more bytes than 64 bits can count.
    pub fn byte_len(&self) -> Result<u64, PackError> {
        let shape = &self.stored_shape;
        match self.stored_dtype.tensor_bytes(shape) {
            Some(0) => {
                Err(PackError::spec(format!("stored shape {shape:?} has no elements")).in_tensor(&self.name))
            }
            Some(len) => Ok(len),
            None => {
                Err(PackError::spec(format!("stored shape {shape:?} overflows 64 bits"))
                    .in_tensor(&self.name))
            }
        }
    }
}

impl PackSpec {
    /// The manifest that a pack of this spec has, without writing one. Its checksums are zero.
    ///
    /// # Errors
    ///
    /// When the spec cannot be a pack.
    pub fn manifest(self) -> Result<Manifest, PackError> {
        Ok(Layout::of(self)?.manifest)
    }

    /// Refuses what could not be read back.
    pub(crate) fn check(&self) -> Result<(), PackError> {
        if self.groups.is_empty() {
            return Err(PackError::spec("a pack has at least one group"));
        }
        let mut groups = HashSet::new();
        let mut tensors = HashSet::new();
        for group in &self.groups {
            let fail = |line: &str| Err(PackError::spec(line).in_group(&group.name));
            if group.name.is_empty() || !groups.insert(group.name.as_str()) {
                return fail("a group's name is not empty and occurs once");
            }
            if group.tensors.is_empty() {
                return fail("a group has at least one tensor");
            }
            if group.part_len.is_some_and(|len| !Parts::is_right_len(len)) {
                return fail("a part has whole pages, and at most a MiB");
            }
            for tensor in &group.tensors {
                let name = tensor.name.as_str();
                let reserved = name.is_empty() || name == "__metadata__" || name.starts_with(PAD_PREFIX);
                if reserved || !tensors.insert(name) {
                    let line = "a tensor's name occurs once, is not empty, not __metadata__, and does not begin with pad.";
                    return Err(PackError::spec(line).in_tensor(name));
                }
                let elements = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
                if elements.is_none() {
                    let line = format!("its shape {:?} overflows", tensor.shape);
                    return Err(PackError::spec(line).in_tensor(name));
                }
            }
        }
        // A reader takes nested values up to a depth.
        let model = serde_json::from_str::<serde_json::Value>(&self.model.to_string());
        model
            .map(drop)
            .map_err(|error| PackError::spec(format!("the model's description cannot be read back: {error}")))
    }
}
