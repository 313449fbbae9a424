//! Finds every tensor of the model in a pack's manifest, and checks all that the views rely on.

use std::collections::HashMap;

use rwkv_cache::GroupId;
use rwkv_kernels::{Codec, Columns, LayoutError, RowTiles, TILE_ROWS};
use rwkv_pack::{Group, Manifest, PackedTensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    AttentionAt, BlockAt, ChannelMixAt, ColumnsAt, EmbeddingAt, HeadPart, LowRankAt, ProjectionsAt, TilesAt,
    VectorsAt, Weights,
};
use crate::block::Block;
use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::names::{Matrix, Role, Side, block_vectors, low_rank_pairs, packed};

/// The manifest's name of a family: with attention blocks and without.
const FAMILIES: [&str; 2] = ["rwkv7", "rwkvx"];

fn family_of(config: &Config) -> &'static str {
    FAMILIES[usize::from(config.attention > 0)]
}

/// The manifest's `model` value.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    family: String,
    config: Config,
}

/// The manifest's `model` value for a configuration.
pub(crate) fn model_description(config: &Config) -> Value {
    serde_json::to_value(Description { family: family_of(config).into(), config: config.clone() })
        .expect("numbers and strings have a JSON form")
}

impl Weights {
    /// Resolves a pack. Group ids are the indices of the manifest's groups.
    pub fn resolve(manifest: &Manifest) -> Result<Weights> {
        let config = read_description(&manifest.model)?;
        let index = Index::new(manifest);
        let (mut blocks, mut attention) = (Vec::new(), Vec::new());
        let mut vectors_group = None;
        let mut vector = |name: &str| -> Result<usize> {
            let (group, tensor) = index.find(name)?;
            expect_layout(tensor, "vector", &[config.width])?;
            if codec_of(tensor)? != Codec::F32 || tensor.len != 4 * config.width as u64 {
                bail!(
                    Pack,
                    "tensor {name} has codec {} and {} bytes; expected f32",
                    tensor.codec,
                    tensor.len
                );
            }
            if *vectors_group.get_or_insert(group) != group {
                bail!(Pack, "tensor {name} is in group {}; expected all vectors in one", index.name(group));
            }
            Ok(tensor.range().start)
        };
        for block in config.blocks() {
            let mut vectors = VectorsAt::default();
            for which in block_vectors(block) {
                vectors.set(which, vector(&Role::Vector(block, which).name())?);
            }
            let projections = resolve_projections(&index, &config, block)?;
            let channel_mix = resolve_channel_mix(&index, &config, block)?;
            match block {
                Block::Rwkv(_) => {
                    let low_rank = resolve_low_rank(&index, &config, block, projections.group.index())?;
                    blocks.push(BlockAt { vectors, projections, low_rank, channel_mix });
                }
                Block::Attention(_) => attention.push(AttentionAt { vectors, projections, channel_mix }),
            }
        }
        let ln_out = [vector(&Role::LnOutWeight.name())?, vector(&Role::LnOutBias.name())?];
        Ok(Weights {
            vectors: GroupId::new(vectors_group.expect("every model has vectors")),
            ln_out,
            embedding: resolve_embedding(&index, &config)?,
            blocks,
            attention,
            head: resolve_head(&index, &config)?,
            config,
        })
    }
}

/// The configuration that a manifest's `model` value describes.
pub(crate) fn read_description(model: &Value) -> Result<Config> {
    let family = model.get("family").and_then(Value::as_str);
    if !family.is_some_and(|family| FAMILIES.contains(&family)) {
        let found = family.map_or_else(|| "no family".into(), |family| format!("family {family:?}"));
        let [first, second] = FAMILIES;
        bail!(Unsupported, "the pack's model has {found}; expected {first:?} or {second:?}");
    }
    let description: Description = serde_json::from_value(model.clone()).map_err(|error| {
        ModelError::new(ErrorKind::Pack, "the pack's model description cannot be read").caused_by(error)
    })?;
    let config = description.config;
    if description.family != family_of(&config) {
        let (family, count) = (description.family, config.attention);
        bail!(Pack, "the pack's model has family {family:?} and {count} attention blocks");
    }
    config
        .validate()
        .map_err(|error| ModelError::new(ErrorKind::Pack, format!("the pack's configuration: {error}")))?;
    Ok(config)
}

fn resolve_projections(index: &Index<'_>, config: &Config, block: Block) -> Result<ProjectionsAt> {
    let group = index.find(&Role::Matrix(block, Matrix::Receptance).name())?.0;
    let matrix = |which: Matrix| index.tiles(&Role::Matrix(block, which).name(), which.dims(config), group);
    Ok(ProjectionsAt {
        group: GroupId::new(group),
        receptance: matrix(Matrix::Receptance)?,
        key: matrix(Matrix::Key)?,
        value: matrix(Matrix::Value)?,
        output: matrix(Matrix::Output)?,
    })
}

fn resolve_low_rank(
    index: &Index<'_>,
    config: &Config,
    block: Block,
    group: usize,
) -> Result<[Option<LowRankAt>; 4]> {
    let mut low_rank = [const { None }; 4];
    for (number, which) in low_rank_pairs(block) {
        let rank = which.rank(config);
        let name = |side| Role::LowRank(number, which, side).name();
        low_rank[which as usize] = Some(LowRankAt {
            down: index.tiles(&name(Side::Down), [rank, config.width], group)?,
            up: index.tiles(&name(Side::Up), [config.width, rank], group)?,
        });
    }
    Ok(low_rank)
}

fn resolve_channel_mix(index: &Index<'_>, config: &Config, block: Block) -> Result<ChannelMixAt> {
    let [key, value] = [Matrix::FfnKey, Matrix::FfnValue].map(|which| Role::Matrix(block, which).name());
    let (key_group, value_group) = (index.find(&key)?.0, index.find(&value)?.0);
    Ok(ChannelMixAt {
        key_group: GroupId::new(key_group),
        key: index.tiles(&key, Matrix::FfnKey.dims(config), key_group)?,
        value_group: GroupId::new(value_group),
        value: index.columns(&value, Matrix::FfnValue.dims(config))?,
    })
}

fn resolve_embedding(index: &Index<'_>, config: &Config) -> Result<EmbeddingAt> {
    let (group, tensor) = index.find(packed::EMBEDDING_TENSOR)?;
    expect_layout(tensor, "rows", &[config.vocab, config.width])?;
    let codec = codec_of(tensor)?;
    let row_bytes = match codec {
        Codec::F32 => 4 * config.width,
        Codec::F16 | Codec::Bf16 => 2 * config.width,
        _ => bail!(Pack, "tensor {} has codec {codec}; expected f32, f16 or bf16", tensor.name),
    };
    let expected = row_bytes as u64 * config.vocab as u64;
    if tensor.len != expected {
        bail!(Pack, "tensor {} has {} bytes; expected {expected}", tensor.name, tensor.len);
    }
    Ok(EmbeddingAt { group: GroupId::new(group), offset_in_group: tensor.range().start, codec, row_bytes })
}

fn resolve_head(index: &Index<'_>, config: &Config) -> Result<Vec<HeadPart>> {
    let mut parts = Vec::new();
    let mut first_row = 0;
    while first_row < config.vocab {
        let name = packed::head_tensor(parts.len());
        let (group, tensor) = index.find(&name)?;
        let rows = tensor.shape.first().copied().unwrap_or(0);
        let is_last = rows == config.vocab - first_row;
        if rows == 0 || rows > config.vocab - first_row || !(is_last || rows.is_multiple_of(TILE_ROWS)) {
            bail!(
                Pack,
                "tensor {name} has shape {:?}; expected a multiple of {TILE_ROWS} rows or the last {} of {}",
                tensor.shape,
                config.vocab - first_row,
                config.vocab
            );
        }
        let tiles = index.tiles(&name, [rows, config.width], group)?;
        parts.push(HeadPart { group: GroupId::new(group), first_row, tiles });
        first_row += rows;
    }
    Ok(parts)
}

/// The manifest's tensors by name.
struct Index<'a> {
    groups: &'a [Group],
    tensors: HashMap<&'a str, (usize, &'a PackedTensor)>,
}

impl<'a> Index<'a> {
    fn new(manifest: &'a Manifest) -> Index<'a> {
        let tensors = manifest.groups.iter().enumerate().flat_map(|(group, entry)| {
            entry.tensors.iter().map(move |tensor| (tensor.name.as_str(), (group, tensor)))
        });
        Index { groups: &manifest.groups, tensors: tensors.collect() }
    }

    fn find(&self, name: &str) -> Result<(usize, &'a PackedTensor)> {
        match self.tensors.get(name) {
            Some(&found) => Ok(found),
            None => bail!(Pack, "the pack has no tensor {name}"),
        }
    }

    fn name(&self, group: usize) -> &'a str {
        &self.groups[group].name
    }

    fn find_in(&self, name: &str, group: usize) -> Result<&'a PackedTensor> {
        let (found, tensor) = self.find(name)?;
        if found != group {
            bail!(Pack, "tensor {name} is in group {}; expected {}", self.name(found), self.name(group));
        }
        Ok(tensor)
    }

    fn tiles(&self, name: &str, [rows, cols]: [usize; 2], group: usize) -> Result<TilesAt> {
        let tensor = self.find_in(name, group)?;
        expect_layout(tensor, "row-tiles", &[rows, cols])?;
        let codec = codec_of(tensor)?;
        check_len(tensor, RowTiles::byte_len(codec, rows, cols))?;
        Ok(TilesAt { codec, rows, cols, range: tensor.range() })
    }

    fn columns(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<ColumnsAt> {
        let (_, tensor) = self.find(name)?;
        expect_layout(tensor, "columns", &[rows, cols])?;
        let codec = codec_of(tensor)?;
        check_len(tensor, Columns::byte_len(codec, rows, cols))?;
        Ok(ColumnsAt { codec, rows, cols, range: tensor.range() })
    }
}

fn codec_of(tensor: &PackedTensor) -> Result<Codec> {
    tensor
        .codec
        .parse()
        .map_err(|error| ModelError::new(ErrorKind::Pack, format!("tensor {}: {error}", tensor.name)))
}

fn expect_layout(tensor: &PackedTensor, layout: &str, shape: &[usize]) -> Result<()> {
    if tensor.layout != layout || tensor.shape != shape {
        let PackedTensor { name, layout: found, shape: dims, .. } = tensor;
        bail!(
            Pack,
            "tensor {name} has layout {found:?} and shape {dims:?}; expected {layout:?} and {shape:?}"
        );
    }
    Ok(())
}

fn check_len(tensor: &PackedTensor, expected: Result<usize, LayoutError>) -> Result<()> {
    let name = &tensor.name;
    let expected =
        expected.map_err(|error| ModelError::new(ErrorKind::Pack, format!("tensor {name}: {error}")))?;
    if tensor.len != expected as u64 {
        bail!(Pack, "tensor {name} has {} bytes; its shape and codec take {expected}", tensor.len);
    }
    Ok(())
}
