//! A checkpoint of either format: named tensors, read one at a time.

use std::collections::BTreeMap;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::dtype::DType;
use crate::error::{PackError, PackErrorKind};
use crate::format::{Container, FileFormat};
use crate::header::{Header, StoredTensor};
use crate::input::InputFile;
use crate::pack::{Checksum, MANIFEST_KEY, SourceInfo};
use crate::torch::TorchFile;

/// Name, element type and shape of a tensor in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, as the file has it.
    pub name: String,
    /// The type of its elements. Types that no weights have, such as `I64`, are reported as they are.
    pub dtype: DType,
    /// The dimensions, outermost first. Empty for a scalar.
    pub shape: Vec<usize>,
}

/// An open checkpoint (`.safetensors`, or a `.pth` of PyTorch).
///
/// Opening reads and checks everything but the tensors' data. [`read`](Self::read) then takes one tensor from the
/// file. Reads are positioned, so that a shared reference serves several threads.
#[derive(Debug)]
pub struct Checkpoint {
    input: InputFile,
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
    places: Places,
}

/// Where the bytes of `tensors[i]` are.
#[derive(Debug)]
enum Places {
    /// Offset and length in bytes.
    Safetensors(Vec<(u64, u64)>),
    Torch(TorchFile),
}

impl Checkpoint {
    /// Opens the checkpoint at `path`. Its format is told by its content, not by its name.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no checkpoint (the error says what it is), is damaged, or holds no tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PackError> {
        let input = InputFile::open(path.as_ref())?;
        let checkpoint = match Container::sniff(&input)? {
            Container::Safetensors => Self::from_safetensors(input)?,
            Container::Zip => Self::from_torch(input)?,
        };
        if checkpoint.tensors.is_empty() {
            return Err(PackError::malformed("holds no tensors").in_file(checkpoint.path()));
        }
        Ok(checkpoint)
    }

    fn from_safetensors(input: InputFile) -> Result<Self, PackError> {
        let header = Header::read(&input)?;
        if header.metadata.contains_key(MANIFEST_KEY) {
            let line = "is a pack already, expected a checkpoint: use it as it is";
            return Err(PackError::new(PackErrorKind::WrongFormat, line).in_file(input.path()));
        }
        let split = |stored: StoredTensor| (stored.info, (stored.offset, stored.len));
        let (tensors, places) = header.tensors.into_iter().map(split).unzip();
        Ok(Self { input, tensors, metadata: header.metadata, places: Places::Safetensors(places) })
    }

    fn from_torch(input: InputFile) -> Result<Self, PackError> {
        let (tensors, torch) = TorchFile::open(&input).map_err(|error| error.in_file(input.path()))?;
        Ok(Self { input, tensors, metadata: BTreeMap::new(), places: Places::Torch(torch) })
    }

    /// The format of the file.
    pub fn format(&self) -> FileFormat {
        match self.places {
            Places::Safetensors(_) => FileFormat::Safetensors,
            Places::Torch(_) => FileFormat::Torch,
        }
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        self.input.path()
    }

    /// The length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.input.len()
    }

    /// All tensors: of a `.safetensors` in the order of their bytes, of a `.pth` in the order of its state dict, which
    /// is that of their bytes in the files that torch writes. Reading them in this order reads the file forwards.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The free text that a `.safetensors` file carries in its `__metadata__`. Empty for a `.pth`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The index of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.tensors.iter().position(|tensor| tensor.name == name)
    }

    /// Replaces the content of `buf` by the bytes of tensor `index`: little-endian elements, contiguous, row-major.
    ///
    /// The bytes are those of the file: nothing is converted, and NaNs keep their payload.
    ///
    /// # Errors
    ///
    /// When the file cannot be read there, became shorter, or (`.pth`) does not have the recorded CRC-32. What `buf`
    /// holds afterwards is unspecified.
    ///
    /// # Panics
    ///
    /// If there is no tensor `index`.
    pub fn read(&self, index: usize, buf: &mut Vec<u8>) -> Result<(), PackError> {
        let count = self.tensors.len();
        assert!(index < count, "tensor {index} of a checkpoint with {count} tensors");
        let read = match &self.places {
            Places::Safetensors(places) => {
                let (offset, len) = places[index];
                self.input.read_extent(offset, len, buf)
            }
            Places::Torch(torch) => torch.read(&self.input, index, buf),
        };
        read.map_err(|error| error.in_tensor(&self.tensors[index].name).in_file(self.path()))
    }

    /// All tensors with their bytes, one at a time, in the order of [`tensors`](Self::tensors).
    ///
    /// Each item owns its bytes; [`read`](Self::read) reuses a buffer.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&TensorInfo, Vec<u8>), PackError>> {
        self.tensors.iter().enumerate().map(|(index, info)| {
            let mut bytes = Vec::new();
            self.read(index, &mut bytes)?;
            Ok((info, bytes))
        })
    }

    /// Name, length and hash of the file, as a pack records them. Reads the whole file once.
    ///
    /// `progress` is called with the bytes done and the bytes in all.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn source_info(&self, mut progress: impl FnMut(u64, u64)) -> Result<SourceInfo, PackError> {
        let len = self.input.len();
        let mut hash = Xxh3::new();
        let mut done = 0;
        self.input.stream(0, len, |chunk| {
            hash.update(chunk);
            done += chunk.len() as u64;
            progress(done, len);
        })?;
        let file_name = self.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(SourceInfo { file_name, len, xxh3: Checksum(hash.digest()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_and_errors_may_be_shared_between_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<Checkpoint>();
        shared::<crate::Pack>();
        shared::<PackError>();
    }
}
