use rwkv_pack::{Checkpoint, SourceInfo, TensorInfo};

use crate::error::{ErrorKind, ModelError, Result};

/// Named tensors to convert: a checkpoint, or something that acts as one.
pub trait WeightSource {
    /// Names, element types and shapes.
    fn tensors(&self) -> &[TensorInfo];

    /// Replaces the content of `bytes` by a tensor's elements: little-endian, contiguous, row-major.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn read(&self, index: usize, bytes: &mut Vec<u8>) -> Result<()>;

    /// What the pack records about its source. `progress` takes the bytes hashed so far, and their number.
    ///
    /// # Errors
    /// The source cannot be read.
    fn info(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<SourceInfo>;

    /// Bytes of all tensors.
    fn byte_len(&self) -> u64 {
        let bytes = |tensor: &TensorInfo| {
            tensor.shape.iter().map(|&dim| dim as u64).product::<u64>() * tensor.dtype.byte_len() as u64
        };
        self.tensors().iter().map(bytes).sum()
    }
}

impl WeightSource for Checkpoint {
    fn tensors(&self) -> &[TensorInfo] {
        Checkpoint::tensors(self)
    }

    fn read(&self, index: usize, bytes: &mut Vec<u8>) -> Result<()> {
        Checkpoint::read(self, index, bytes).map_err(failed)
    }

    fn info(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<SourceInfo> {
        self.source_info(progress).map_err(failed)
    }
}

fn failed(error: rwkv_pack::PackError) -> ModelError {
    ModelError::new(ErrorKind::Io, "the checkpoint cannot be read").caused_by(error)
}
