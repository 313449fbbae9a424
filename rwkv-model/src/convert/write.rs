//! Reads tensors of the source and writes them in the pack's layouts, slab by slab.

use half::{bf16, f16};
use rwkv_kernels::{
    Codec, DType, EncodeError, Isa, TILE_ROWS, encode_columns, encode_row_tiles, layer_norm, widen,
};

use super::layout::{Job, Planned, SourceTensor};
use super::{Progress, WeightSource};
use crate::error::{ErrorKind, ModelError, Result, bail};

/// Weights that are widened at a time, unless a layout needs the whole matrix.
const SLAB_WEIGHTS: usize = 1 << 20;

const LN_EPS: f32 = 1e-5;

/// The sum of the squares of a row of larger values may be beyond f32.
const LARGEST_NORMED: f32 = 1e15;

/// The source, and the tensor of it that was read last.
pub(super) struct Loader<'a, S: ?Sized> {
    source: &'a S,
    loaded: Option<usize>,
    bytes: Vec<u8>,
    values: Vec<f32>,
    encoded: Vec<u8>,
}

type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

impl<'a, S: WeightSource + ?Sized> Loader<'a, S> {
    pub fn new(source: &'a S) -> Loader<'a, S> {
        Loader { source, loaded: None, bytes: Vec::new(), values: Vec::new(), encoded: Vec::new() }
    }

    /// Writes a tensor's bytes, in pieces, to `sink`.
    pub fn write(
        &mut self,
        tensor: &Planned,
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        match &tensor.job {
            Job::Vector => self.vector(tensor, progress, sink),
            Job::Embedding { weight, bias } => self.embedding(tensor, [weight, bias], progress, sink),
            Job::Tiles { rows } => {
                let cols = tensor.spec.shape[1];
                let slab = (SLAB_WEIGHTS / cols).next_multiple_of(TILE_ROWS);
                for begin in rows.clone().step_by(slab) {
                    let slab = begin..rows.end.min(begin + slab);
                    self.widen(&tensor.source, slab.start * cols..slab.end * cols)?;
                    self.encoded.clear();
                    encode_row_tiles(tensor.codec, slab.len(), cols, &self.values, &mut self.encoded)
                        .map_err(|error| refused(tensor, error, slab.start))?;
                    sink(&self.encoded)?;
                    self.advance(tensor, slab.len() * cols, progress)?;
                }
                Ok(())
            }
            Job::TransposedTiles => self.transposed_tiles(tensor, progress, sink),
            Job::Columns => self.columns(tensor, progress, sink),
        }
    }

    fn vector(
        &mut self,
        tensor: &Planned,
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let len = tensor.spec.shape[0];
        self.widen(&tensor.source, 0..len)?;
        check_finite(&tensor.source.name, &self.values)?;
        sink(bytemuck::cast_slice(&self.values))?;
        self.advance(tensor, len, progress)
    }

    fn embedding(
        &mut self,
        tensor: &Planned,
        [weight, bias]: [&SourceTensor; 2],
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let [vocab, width] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        let mut vectors = [Vec::new(), Vec::new()];
        for (source, vector) in [weight, bias].into_iter().zip(&mut vectors) {
            self.widen(source, 0..width)?;
            check_finite(&source.name, &self.values)?;
            vector.append(&mut self.values);
        }
        let slab = SLAB_WEIGHTS.div_ceil(width);
        let mut normed = Vec::new();
        for begin in (0..vocab).step_by(slab) {
            let rows = begin..vocab.min(begin + slab);
            self.widen(&tensor.source, rows.start * width..rows.end * width)?;
            check_finite(&tensor.source.name, &self.values)?;
            if let Some(at) = self.values.iter().position(|value| value.abs() > LARGEST_NORMED) {
                let (name, value, at) = (&tensor.source.name, self.values[at], rows.start * width + at);
                bail!(
                    Checkpoint,
                    "tensor {name}: element {at} is {value}; expected a number that ln0 can norm"
                );
            }
            normed.resize(self.values.len(), 0.0);
            // Every instruction set gives the same bits, so the machine does not show in the pack.
            layer_norm(Isa::detect(), &self.values, &vectors[0], &vectors[1], LN_EPS, &mut normed);
            let holds = |value: f32| value.abs() <= largest(tensor.codec);
            if let Some(at) = normed.iter().position(|&value| !holds(value)) {
                let (row, value) = (rows.start + at / width, normed[at]);
                let name = &tensor.source.name;
                bail!(
                    Checkpoint,
                    "tensor {name}: row {row} is {value} after ln0; expected a number that {} holds",
                    tensor.codec
                );
            }
            self.encoded.clear();
            narrow(tensor.codec, &normed, &mut self.encoded);
            sink(&self.encoded)?;
            self.advance(tensor, rows.len() * width, progress)?;
        }
        Ok(())
    }

    /// A low-rank matrix: `[in, out]` in the checkpoint.
    fn transposed_tiles(
        &mut self,
        tensor: &Planned,
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let [rows, cols] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        self.widen(&tensor.source, 0..rows * cols)?;
        let transposed: Vec<f32> =
            (0..rows).flat_map(|r| (0..cols).map(move |c| c * rows + r)).map(|i| self.values[i]).collect();
        self.encoded.clear();
        encode_row_tiles(tensor.codec, rows, cols, &transposed, &mut self.encoded)
            .map_err(|error| refused(tensor, error, 0))?;
        sink(&self.encoded)?;
        self.advance(tensor, rows * cols, progress)
    }

    fn columns(
        &mut self,
        tensor: &Planned,
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let [rows, cols] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        self.widen(&tensor.source, 0..rows * cols)?;
        // The whole matrix is looked at for each piece, so there are few of them.
        let piece = cols.div_ceil(8);
        for begin in (0..cols).step_by(piece) {
            let inputs = begin..cols.min(begin + piece);
            self.encoded.clear();
            let count = inputs.len();
            encode_columns(tensor.codec, rows, cols, &self.values, inputs, &mut self.encoded)
                .map_err(|error| refused(tensor, error, 0))?;
            sink(&self.encoded)?;
            self.advance(tensor, rows * count, progress)?;
        }
        Ok(())
    }

    /// Leaves some elements of a source tensor in `values`.
    fn widen(&mut self, source: &SourceTensor, elements: std::ops::Range<usize>) -> Result<()> {
        if self.loaded != Some(source.index) {
            self.loaded = None;
            self.source.read(source.index, &mut self.bytes)?;
            self.loaded = Some(source.index);
        }
        let size = element_bytes(source.dtype);
        self.values.clear();
        widen(source.dtype, &self.bytes[elements.start * size..elements.end * size], &mut self.values);
        Ok(())
    }

    fn advance(&self, tensor: &Planned, elements: usize, progress: &mut Progress<'_, '_>) -> Result<()> {
        progress.advance(&tensor.spec.name, (elements * element_bytes(tensor.source.dtype)) as u64)
    }
}

fn element_bytes(dtype: DType) -> usize {
    if dtype == DType::F32 { 4 } else { 2 }
}

/// The largest number of a float codec.
fn largest(codec: Codec) -> f32 {
    match codec {
        Codec::F16 => f16::MAX.to_f32(),
        Codec::Bf16 => bf16::MAX.to_f32(),
        _ => f32::MAX,
    }
}

/// Appends values as plain floats.
fn narrow(codec: Codec, values: &[f32], out: &mut Vec<u8>) {
    match codec {
        Codec::F16 => values.iter().for_each(|&v| out.extend(f16::from_f32(v).to_le_bytes())),
        Codec::Bf16 => values.iter().for_each(|&v| out.extend(bf16::from_f32(v).to_le_bytes())),
        _ => out.extend_from_slice(bytemuck::cast_slice(values)),
    }
}

fn check_finite(name: &str, values: &[f32]) -> Result<()> {
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        bail!(Checkpoint, "tensor {name}: element {at} is {}; expected a finite number", values[at]);
    }
    Ok(())
}

/// Names the tensor, and the place in the checkpoint's own terms.
fn refused(tensor: &Planned, error: EncodeError, first_row: usize) -> ModelError {
    let name = &tensor.source.name;
    let place = |row: usize, col: usize| match tensor.job {
        Job::TransposedTiles => format!("element [{col}, {row}]"),
        _ => format!("element [{}, {col}]", row + first_row),
    };
    let line = match error {
        EncodeError::NotFinite { row, col, value } => {
            format!("tensor {name}: {} is {value}; expected a finite number", place(row, col))
        }
        EncodeError::TooLarge { row, col, value, codec } => format!(
            "tensor {name}: {} is {value}, too large for codec {codec}; use bf16 or f32 for it",
            place(row, col)
        ),
        other => format!("tensor {name}: {other}"),
    };
    ModelError::new(ErrorKind::Checkpoint, line)
}
