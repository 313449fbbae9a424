//! The manifest of a pack that nobody has written: for plans before a model is there.

use rwkv_kernels::Codec;
use rwkv_pack::{DType, Manifest, PackSpec, SourceInfo, TensorInfo};

use super::WeightSource;
use super::layout::{PlannedGroup, plan_groups};
use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result};
use crate::names::expected;
use crate::weights::model_description;

/// The manifest of a pack with a model of these sizes, as [`convert()`](crate::convert()) lays it out for a codec and values
/// that f16 can hold. The checksums are zero, and nothing is said about the source.
///
/// # Errors
/// The sizes cannot be stored with this codec.
pub fn manifest_of(config: &Config, codec: Codec) -> Result<Manifest> {
    config.validate()?;
    let (groups, _) = plan_groups(&Sizes::new(config), config, codec, &[])?;
    let spec = PackSpec {
        model: model_description(config),
        tokenizer: None,
        source: SourceInfo::default(),
        groups: groups.iter().map(PlannedGroup::spec).collect(),
    };
    spec.manifest()
        .map_err(|error| ModelError::new(ErrorKind::Checkpoint, "no pack can be made").caused_by(error))
}

/// A checkpoint of zeros.
struct Sizes {
    tensors: Vec<TensorInfo>,
}

impl Sizes {
    fn new(config: &Config) -> Sizes {
        let tensors = expected(config).into_iter().map(|tensor| TensorInfo {
            name: tensor.role.name(),
            dtype: DType::F16,
            shape: tensor.dims,
        });
        Sizes { tensors: tensors.collect() }
    }
}

impl WeightSource for Sizes {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, index: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let TensorInfo { dtype, shape, .. } = &self.tensors[index];
        bytes.clear();
        bytes.resize(shape.iter().product::<usize>() * dtype.byte_len(), 0);
        Ok(())
    }

    fn info(&self, _: &mut dyn FnMut(u64, u64)) -> Result<SourceInfo> {
        Ok(SourceInfo::default())
    }
}

#[cfg(test)]
mod tests {
    use rwkv_pack::{Checksum, Pack};

    use super::*;
    use crate::{ConvertOptions, Synthetic, convert};

    #[test]
    fn is_the_manifest_of_the_pack_but_for_checksums() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pack");
        for name in ["0.1b", "x-0.2b"] {
            let mut config = Config::official(name).unwrap();
            (config.layers, config.vocab) = (2 + 2 * config.attention.min(1), 512);
            config.attention = config.attention.min(2);
            for codec in Codec::ALL {
                convert(&Synthetic::new(config.clone(), 1), &path, ConvertOptions::new(codec)).unwrap();
                let mut written = Pack::open(&path).unwrap().manifest().clone();
                let planned = manifest_of(&config, codec).unwrap();
                // The header's length, and so every offset, depends on the source's name.
                let shift = written.groups[0].offset - planned.groups[0].offset;
                assert!(shift <= 4096, "{name} {codec}: a header longer by {shift} bytes");
                written.groups.iter_mut().for_each(|group| {
                    (group.checksum, group.offset) = (Checksum::default(), group.offset - shift);
                    let parts = group.parts.iter_mut().flat_map(|parts| &mut parts.checksums);
                    parts.for_each(|checksum| *checksum = Checksum::default());
                });
                written.source = SourceInfo::default();
                assert_eq!(written, planned, "{name} {codec}");
            }
        }
    }
}
