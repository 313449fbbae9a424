//! Which tensors a pack has, in which groups, with which codecs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use rwkv_kernels::{Codec, Columns, DType, RowTiles, TILE_ROWS, widen};
use rwkv_pack::{GroupSpec, TensorSpec};

use super::WeightSource;
use super::pattern::Pattern;
use crate::block::Block;
use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::names::{LowRank, Matrix, Role, Side, block_vectors, canonical, low_rank_pairs, packed};

/// The largest number that f16 holds.
const F16_MAX: f32 = 65504.0;

/// Bytes of the embedding that have a checksum of their own. A row is checked together with its neighbours when one of them is
/// read for the first time: little more than the row to a disk, and checksums of some 100 KB for a table of 256 MB.
const EMBEDDING_PART: u64 = 64 << 10;

/// A group of the pack to be written.
pub(super) struct PlannedGroup {
    name: String,
    swept: bool,
    pub tensors: Vec<Planned>,
}

/// A tensor of the pack to be written, and where it comes from.
pub(super) struct Planned {
    pub spec: TensorSpec,
    pub codec: Codec,
    pub source: SourceTensor,
    pub job: Job,
}

/// A tensor of the source.
#[derive(Debug, Clone)]
pub(super) struct SourceTensor {
    pub index: usize,
    pub name: String,
    pub dtype: DType,
}

/// How a source tensor becomes a tensor of the pack.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// All its values.
    Vector,
    /// Its rows, normed with these.
    Embedding { weight: SourceTensor, bias: SourceTensor },
    /// Some of its rows, as tiles.
    Tiles { rows: Range<usize> },
    /// Its columns, as the rows of tiles.
    TransposedTiles,
    /// All of it, as columns.
    Columns,
}

impl PlannedGroup {
    fn new(name: impl Into<String>, swept: bool, tensors: Vec<Planned>) -> PlannedGroup {
        PlannedGroup { name: name.into(), swept, tensors }
    }

    pub fn spec(&self) -> GroupSpec {
        let tensors = self.tensors.iter().map(|tensor| tensor.spec.clone()).collect();
        let part_len = (self.name == packed::EMBEDDING).then_some(EMBEDDING_PART);
        GroupSpec { name: self.name.clone(), swept: self.swept, part_len, tensors }
    }
}

/// The groups of a pack, in execution order, and notes on codecs that were not followed.
pub(super) fn plan_groups<S: WeightSource + ?Sized>(
    source: &S,
    config: &Config,
    codec: Codec,
    overrides: &[(Pattern, Codec)],
) -> Result<(Vec<PlannedGroup>, Vec<String>)> {
    let index = source.tensors().iter().enumerate().map(|(i, tensor)| (canonical(&tensor.name), i)).collect();
    let mut planner = Planner {
        source,
        config,
        index,
        codec,
        overrides: overrides.iter().map(|(pattern, codec)| (pattern, *codec, false)).collect(),
        notes: idle_note(config).into_iter().collect(),
        bytes: Vec::new(),
        values: Vec::new(),
    };
    let mut groups = vec![
        PlannedGroup::new(packed::VECTORS, false, planner.vectors()?),
        PlannedGroup::new(packed::EMBEDDING, false, vec![planner.embedding()?]),
    ];
    for block in config.blocks() {
        groups.push(PlannedGroup::new(packed::att(block), true, planner.att(block)?));
        let key = planner.matrix(Role::Matrix(block, Matrix::FfnKey))?;
        groups.push(PlannedGroup::new(packed::key(block), true, vec![key]));
        let value = planner.columns(block)?;
        groups.push(PlannedGroup::new(packed::value(block), true, vec![value]));
    }
    let head = planner.head()?;
    groups.extend(
        head.into_iter().enumerate().map(|(part, t)| PlannedGroup::new(packed::head(part), true, vec![t])),
    );
    if let Some((pattern, ..)) = planner.overrides.iter().find(|(.., used)| !used) {
        bail!(Parameter, "pattern {:?} matches no matrix that can take its codec", pattern.as_str());
    }
    Ok((groups, planner.notes))
}

/// What is said of blocks that are in the checkpoint but never run.
fn idle_note(config: &Config) -> Option<String> {
    let (run, all, attention) = (config.active_layers(), config.layers, config.attention);
    (run < all).then(|| {
        let last = all - 1;
        format!("blocks {run} to {last}: not packed, as only {run} of {all} run before {attention} attention blocks")
    })
}

struct Planner<'a, S: ?Sized> {
    source: &'a S,
    config: &'a Config,
    /// Tensors by their canonical names.
    index: HashMap<Cow<'a, str>, usize>,
    codec: Codec,
    overrides: Vec<(&'a Pattern, Codec, bool)>,
    notes: Vec<String>,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl<S: WeightSource + ?Sized> Planner<'_, S> {
    fn source(&self, role: Role) -> Result<SourceTensor> {
        let name = role.name();
        let index = self.index[name.as_str()];
        let dtype = match self.source.tensors()[index].dtype {
            rwkv_pack::DType::F32 => DType::F32,
            rwkv_pack::DType::F16 => DType::F16,
            rwkv_pack::DType::Bf16 => DType::Bf16,
            other => {
                bail!(Checkpoint, "tensor {name} has elements of type {other}; expected F32, F16 or BF16")
            }
        };
        Ok(SourceTensor { index, name, dtype })
    }

    fn vectors(&mut self) -> Result<Vec<Planned>> {
        let width = self.config.width;
        let of_blocks = self
            .config
            .blocks()
            .flat_map(|block| block_vectors(block).map(move |vector| Role::Vector(block, vector)));
        let roles = of_blocks.chain([Role::LnOutWeight, Role::LnOutBias]);
        roles
            .map(|role| {
                let source = self.source(role)?;
                let spec = TensorSpec {
                    name: source.name.clone(),
                    codec: Codec::F32.to_string(),
                    layout: "vector".into(),
                    shape: vec![width],
                    stored_dtype: rwkv_pack::DType::F32,
                    stored_shape: vec![width],
                };
                Ok(Planned { spec, codec: Codec::F32, source, job: Job::Vector })
            })
            .collect()
    }

    fn embedding(&mut self) -> Result<Planned> {
        let source = self.source(Role::Embedding)?;
        let (weight, bias) = (self.source(Role::Ln0Weight)?, self.source(Role::Ln0Bias)?);
        let is_float = |codec| matches!(codec, Codec::F32 | Codec::F16 | Codec::Bf16);
        let asked = self.overridden(&source.name, is_float);
        let codec = match asked {
            Some(codec) => codec,
            None if self.codec == Codec::F32 => Codec::F32,
            // A normed value is at most sqrt(C), so its weight and bias bound the result.
            None => {
                let bound =
                    self.largest(&weight)? * (self.config.width as f32).sqrt() + self.largest(&bias)?;
                if bound <= F16_MAX {
                    Codec::F16
                } else {
                    self.notes.push(format!(
                        "tensor {}: f32, as f16 may be too small for ln0's result",
                        source.name
                    ));
                    Codec::F32
                }
            }
        };
        let shape = vec![self.config.vocab, self.config.width];
        let spec = TensorSpec {
            name: packed::EMBEDDING_TENSOR.into(),
            codec: codec.to_string(),
            layout: "rows".into(),
            shape: shape.clone(),
            stored_dtype: stored_dtype(RowTiles::array_shape(codec, 1, 1).0),
            stored_shape: shape,
        };
        Ok(Planned { spec, codec, source, job: Job::Embedding { weight, bias } })
    }

    fn att(&mut self, block: Block) -> Result<Vec<Planned>> {
        let mut tensors = Vec::new();
        for matrix in [Matrix::Receptance, Matrix::Key, Matrix::Value] {
            tensors.push(self.matrix(Role::Matrix(block, matrix))?);
        }
        for (number, which) in low_rank_pairs(block) {
            for side in [Side::Down, Side::Up] {
                tensors.push(self.low_rank(Role::LowRank(number, which, side), which, side)?);
            }
        }
        tensors.push(self.matrix(Role::Matrix(block, Matrix::Output))?);
        Ok(tensors)
    }

    fn matrix(&mut self, role: Role) -> Result<Planned> {
        let Role::Matrix(_, matrix) = role else { unreachable!("only matrices are asked for") };
        let source = self.source(role)?;
        let usual = if matrix == Matrix::FfnKey { self.eight_bits_for_four() } else { self.codec };
        let codec = self.overridden(&source.name, |_| true).unwrap_or(usual);
        let [rows, cols] = matrix.dims(self.config);
        let spec = tiles_spec(source.name.clone(), codec, rows, cols)?;
        Ok(Planned { spec, codec, source, job: Job::Tiles { rows: 0..rows } })
    }

    fn columns(&mut self, block: Block) -> Result<Planned> {
        let source = self.source(Role::Matrix(block, Matrix::FfnValue))?;
        let mut codec = self.overridden(&source.name, |_| true).unwrap_or(self.codec);
        if codec == Codec::I8 {
            codec = Codec::U8;
            if block == Block::Rwkv(0) {
                self.notes.push("ffn.value matrices: u8, as i8 has no columns".into());
            }
        }
        let [rows, cols] = Matrix::FfnValue.dims(self.config);
        Columns::byte_len(codec, rows, cols).map_err(|error| unfit(&source.name, error))?;
        let (dtype, stored_shape) = Columns::array_shape(codec, rows, cols);
        let spec = TensorSpec {
            name: source.name.clone(),
            codec: codec.to_string(),
            layout: "columns".into(),
            shape: vec![rows, cols],
            stored_dtype: stored_dtype(dtype),
            stored_shape,
        };
        Ok(Planned { spec, codec, source, job: Job::Columns })
    }

    fn low_rank(&mut self, role: Role, which: LowRank, side: Side) -> Result<Planned> {
        let source = self.source(role)?;
        let codec = match self.overridden(&source.name, |_| true) {
            Some(codec) => codec,
            None if self.codec == Codec::F32 => Codec::F32,
            None => self.sixteen_bits(&source)?,
        };
        let (width, rank) = (self.config.width, which.rank(self.config));
        let (rows, cols) = if side == Side::Down { (rank, width) } else { (width, rank) };
        let spec = tiles_spec(source.name.clone(), codec, rows, cols)?;
        Ok(Planned { spec, codec, source, job: Job::TransposedTiles })
    }

    /// The head in parts of about the size of a channel mix matrix, so that all groups of a sweep are alike.
    fn head(&mut self) -> Result<Vec<Planned>> {
        let source = self.source(Role::Head)?;
        let codec = self.overridden(&source.name, |_| true).unwrap_or(self.eight_bits_for_four());
        let Config { vocab, width, .. } = *self.config;
        let parts = vocab.div_ceil(4 * width);
        let rows_of_part = vocab.div_ceil(parts).next_multiple_of(TILE_ROWS);
        let mut tensors = Vec::new();
        for (part, begin) in (0..vocab).step_by(rows_of_part).enumerate() {
            let rows = begin..vocab.min(begin + rows_of_part);
            let spec = tiles_spec(packed::head_tensor(part), codec, rows.len(), width)?;
            tensors.push(Planned { spec, codec, source: source.clone(), job: Job::Tiles { rows } });
        }
        Ok(tensors)
    }

    /// The codec of the matrices that lose most with 4 bits: the head, and the channel mix's keys, whose errors `relu^2`
    /// enlarges. Of the loss of a model that has 4 bits everywhere, the two are more than half.
    fn eight_bits_for_four(&self) -> Codec {
        if self.codec == Codec::U4 { Codec::U8 } else { self.codec }
    }

    /// The codec of the last pattern that matches, of those with a codec that fits.
    fn overridden(&mut self, name: &str, fits: impl Fn(Codec) -> bool) -> Option<Codec> {
        let mut chosen = None;
        for (pattern, codec, used) in &mut self.overrides {
            if fits(*codec) && pattern.matches(name) {
                chosen = Some(*codec);
                *used = true;
            }
        }
        chosen
    }

    fn sixteen_bits(&mut self, source: &SourceTensor) -> Result<Codec> {
        if source.dtype == DType::F16 || self.largest(source)? <= F16_MAX {
            return Ok(Codec::F16);
        }
        let codec = if source.dtype == DType::Bf16 { Codec::Bf16 } else { Codec::F32 };
        self.notes.push(format!("tensor {}: {codec}, as a value is too large for f16", source.name));
        Ok(codec)
    }

    /// The largest magnitude in a tensor. A NaN counts as nothing here: it is refused when the tensor is written.
    fn largest(&mut self, source: &SourceTensor) -> Result<f32> {
        self.source.read(source.index, &mut self.bytes)?;
        self.values.clear();
        widen(source.dtype, &self.bytes, &mut self.values);
        Ok(self.values.iter().fold(0.0, |largest, value| f32::max(largest, value.abs())))
    }
}

fn tiles_spec(name: String, codec: Codec, rows: usize, cols: usize) -> Result<TensorSpec> {
    RowTiles::byte_len(codec, rows, cols).map_err(|error| unfit(&name, error))?;
    let (dtype, stored_shape) = RowTiles::array_shape(codec, rows, cols);
    Ok(TensorSpec {
        name,
        codec: codec.to_string(),
        layout: "row-tiles".into(),
        shape: vec![rows, cols],
        stored_dtype: stored_dtype(dtype),
        stored_shape,
    })
}

fn stored_dtype(name: &str) -> rwkv_pack::DType {
    name.parse().expect("the kernels use the names of the safetensors format")
}

fn unfit(name: &str, error: rwkv_kernels::LayoutError) -> ModelError {
    ModelError::new(ErrorKind::Checkpoint, format!("tensor {name}: {error}"))
}
