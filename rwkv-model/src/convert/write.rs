//! Reads tensors of the source and writes them in the pack's layouts, slab by slab.

use std::ops::Range;

use half::{bf16, f16};
use rwkv_kernels::{
    Codec, DType, EncodeError, Isa, TILE_ROWS, encode_columns, encode_row_tiles, layer_norm, widen,
};

use super::layout::{Job, Planned, SourceTensor};
use super::pieces::Pieces;
use super::{Progress, WeightSource};
use crate::error::{ErrorKind, ModelError, Result, bail};

/// Weights of a piece.
const PIECE_WEIGHTS: usize = 1 << 18;

const LN_EPS: f32 = 1e-5;

/// The sum of the squares of a row of larger values may be beyond f32.
const LARGEST_NORMED: f32 = 1e15;

/// The source, and the tensor of it that was read last.
pub(super) struct Loader<'a, S: ?Sized> {
    source: &'a S,
    pieces: Pieces,
    loaded: Option<usize>,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

impl<'a, S: WeightSource + ?Sized> Loader<'a, S> {
    pub fn new(source: &'a S, threads: usize) -> Loader<'a, S> {
        let pieces = Pieces::new(threads);
        Loader { source, pieces, loaded: None, bytes: Vec::new(), values: Vec::new() }
    }

    /// Writes a tensor's bytes, in pieces, to `sink`.
    pub fn write(
        &mut self,
        tensor: &Planned,
        progress: &mut Progress<'_, '_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let element_bytes = element_bytes(tensor.source.dtype);
        let mut hand_on = |elements: usize, bytes: &[u8]| {
            sink(bytes)?;
            progress.advance(&tensor.spec.name, (elements * element_bytes) as u64)
        };
        match &tensor.job {
            Job::Vector => {
                self.widen(&tensor.source)?;
                check_finite(&tensor.source.name, &self.values, 0)?;
                hand_on(self.values.len(), bytemuck::cast_slice(&self.values))
            }
            Job::Embedding { weight, bias } => self.embedding(tensor, [weight, bias], hand_on),
            Job::Tiles { rows } => self.tiles(tensor, rows.clone(), hand_on),
            Job::TransposedTiles => self.transposed_tiles(tensor, hand_on),
            Job::Columns => self.columns(tensor, hand_on),
        }
    }

    fn embedding(
        &mut self,
        tensor: &Planned,
        [weight, bias]: [&SourceTensor; 2],
        mut hand_on: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let [vocab, width] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        let mut vectors = [Vec::new(), Vec::new()];
        for (source, vector) in [weight, bias].into_iter().zip(&mut vectors) {
            self.widen(source)?;
            check_finite(&source.name, &self.values, 0)?;
            vector.append(&mut self.values);
        }
        self.load(&tensor.source)?;
        let bytes = &self.bytes;
        let encode = |rows: Range<usize>, values: &mut Vec<f32>, out: &mut Vec<u8>| {
            widen_some(&tensor.source, bytes, rows.start * width..rows.end * width, values);
            norm_embeddings(tensor, rows.start, &vectors, values, out)
        };
        let size = PIECE_WEIGHTS.div_ceil(width);
        self.pieces.run(0..vocab, size, encode, |rows, bytes| hand_on(rows.len() * width, bytes))
    }

    fn tiles(
        &mut self,
        tensor: &Planned,
        rows: Range<usize>,
        mut hand_on: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let cols = tensor.spec.shape[1];
        self.load(&tensor.source)?;
        let bytes = &self.bytes;
        let encode = |rows: Range<usize>, values: &mut Vec<f32>, out: &mut Vec<u8>| {
            widen_some(&tensor.source, bytes, rows.start * cols..rows.end * cols, values);
            encode_row_tiles(tensor.codec, rows.len(), cols, values, out)
                .map_err(|error| refused(tensor, error, rows.start))
        };
        let size = (PIECE_WEIGHTS / cols).next_multiple_of(TILE_ROWS).max(TILE_ROWS);
        self.pieces.run(rows, size, encode, |rows, bytes| hand_on(rows.len() * cols, bytes))
    }

    /// A low-rank matrix: `[in, out]` in the checkpoint.
    fn transposed_tiles(
        &mut self,
        tensor: &Planned,
        mut hand_on: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let [rows, cols] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        self.widen(&tensor.source)?;
        let at = |r: usize| (0..cols).map(move |c| c * rows + r);
        let transposed: Vec<f32> = (0..rows).flat_map(at).map(|i| self.values[i]).collect();
        let mut encoded = Vec::new();
        encode_row_tiles(tensor.codec, rows, cols, &transposed, &mut encoded)
            .map_err(|error| refused(tensor, error, 0))?;
        hand_on(rows * cols, &encoded)
    }

    fn columns(
        &mut self,
        tensor: &Planned,
        mut hand_on: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let [rows, cols] = [tensor.spec.shape[0], tensor.spec.shape[1]];
        self.widen(&tensor.source)?;
        let weights = &self.values;
        let encode = |inputs: Range<usize>, _: &mut Vec<f32>, out: &mut Vec<u8>| {
            encode_columns(tensor.codec, rows, cols, weights, inputs, out)
                .map_err(|error| refused(tensor, error, 0))
        };
        // The whole matrix is looked at for each piece, so there are few of them.
        self.pieces
            .run(0..cols, cols.div_ceil(8), encode, |inputs, bytes| hand_on(rows * inputs.len(), bytes))
    }

    /// Leaves the bytes of a source tensor in `bytes`.
    fn load(&mut self, source: &SourceTensor) -> Result<()> {
        if self.loaded != Some(source.index) {
            self.loaded = None;
            self.source.read(source.index, &mut self.bytes)?;
            self.loaded = Some(source.index);
        }
        Ok(())
    }

    /// Leaves the elements of a source tensor in `values`.
    fn widen(&mut self, source: &SourceTensor) -> Result<()> {
        self.load(source)?;
        self.values.clear();
        widen(source.dtype, &self.bytes, &mut self.values);
        Ok(())
    }
}

/// Applies `ln0` to rows of the embedding, from `first_row` on, and appends them in the tensor's codec.
fn norm_embeddings(
    tensor: &Planned,
    first_row: usize,
    [weight, bias]: &[Vec<f32>; 2],
    values: &[f32],
    out: &mut Vec<u8>,
) -> Result<()> {
    let (name, width) = (&tensor.source.name, weight.len());
    check_finite(name, values, first_row * width)?;
    if let Some(at) = values.iter().position(|value| value.abs() > LARGEST_NORMED) {
        let (value, at) = (values[at], first_row * width + at);
        bail!(Checkpoint, "tensor {name}: element {at} is {value}; expected a number that ln0 can norm");
    }
    let mut normed = vec![0.0; values.len()];
    // Every instruction set gives the same bits, so the machine does not show in the pack.
    layer_norm(Isa::detect(), values, weight, bias, LN_EPS, &mut normed);
    if let Some(at) = normed.iter().position(|value| value.is_nan() || value.abs() > largest(tensor.codec)) {
        let (row, value, codec) = (first_row + at / width, normed[at], tensor.codec);
        bail!(
            Checkpoint,
            "tensor {name}: row {row} is {value} after ln0; expected a number that {codec} holds"
        );
    }
    narrow(tensor.codec, &normed, out);
    Ok(())
}

fn widen_some(source: &SourceTensor, bytes: &[u8], elements: Range<usize>, out: &mut Vec<f32>) {
    let size = element_bytes(source.dtype);
    widen(source.dtype, &bytes[elements.start * size..elements.end * size], out);
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

/// `first` is the number of the first of the values in its tensor.
fn check_finite(name: &str, values: &[f32], first: usize) -> Result<()> {
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (value, at) = (values[at], first + at);
        bail!(Checkpoint, "tensor {name}: element {at} is {value}; expected a finite number");
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
