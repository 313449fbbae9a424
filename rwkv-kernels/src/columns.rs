use std::ops::Range;

use crate::codec::{Codec, GROUP, GROUP_U4, LayoutError, MAX_COLS};
use crate::isa::{Isa, Kind};
use crate::scalar;
use crate::sparse::SparseRows;
use crate::tiles::{bf16_at, f16_at, f32_at};
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// Up to this many rows of activations, reading a column again for each row is cheaper than widening it for all.
pub(crate) const FEW: usize = 24;

/// A matrix `W[rows, cols]` (outputs by inputs) stored by columns: a view of the bytes of a pack.
///
/// The weights of one input are contiguous, so that an activation of zero skips them unread. Outputs
/// are padded with zeros to a multiple of 64, columns to a multiple of 64 bytes. A column is
///
/// - `f32`, `f16`, `bf16`: its weights, output after output;
/// - `u8`: a byte per output, then for each group of 64 outputs its f16 scale and f16 minimum;
/// - `u4`: for each 64 outputs 32 bytes, of which the low nibbles are the first 32 outputs and the high
///   nibbles the others, then for each group of 32 outputs its f16 scale and f16 minimum.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    codec: Codec,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Columns<'a> {
    /// A view of `bytes`, which [`encode_columns`](crate::encode_columns) has written.
    ///
    /// # Errors
    /// The codec has no columns, the shape cannot be stored, or `bytes` is not of [`Columns::byte_len`].
    pub fn new(codec: Codec, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = Columns::byte_len(codec, rows, cols)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { rows, cols, codec, found: bytes.len(), expected });
        }
        Ok(Columns { codec, rows, cols, bytes })
    }

    /// Bytes of a matrix.
    ///
    /// # Errors
    /// The codec has no columns, or the shape is empty, has more than [`MAX_COLS`] columns, or overflows.
    pub fn byte_len(codec: Codec, rows: usize, cols: usize) -> Result<usize, LayoutError> {
        if codec == Codec::I8 {
            return Err(LayoutError::NoColumns { codec });
        }
        if rows == 0 || cols == 0 || cols > MAX_COLS || rows > usize::MAX / 64 {
            return Err(LayoutError::Shape { rows, cols, codec });
        }
        cols.checked_mul(column_bytes(codec, rows))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(LayoutError::Shape { rows, cols, codec })
    }

    /// The element type and shape under which a safetensors file lists these columns.
    pub fn array_shape(codec: Codec, rows: usize, cols: usize) -> (&'static str, Vec<usize>) {
        let width = column_bytes(codec, rows) / codec.float_bytes().unwrap_or(1);
        (codec.stored_dtype(), vec![cols, width])
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes of one column.
    pub fn column_bytes(&self) -> usize {
        column_bytes(self.codec, self.rows)
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The weights of one input, as the kernels understand them.
    ///
    /// # Panics
    /// There is no such input, or `out` has not `rows` elements.
    pub fn decode_column(&self, col: usize, out: &mut [f32]) {
        assert!(col < self.cols, "column {col} of {}", self.cols);
        assert_eq!(out.len(), self.rows, "one weight per row");
        let column = ColumnView::new(self, col);
        for (r, weight) in out.iter_mut().enumerate() {
            *weight = column.weight(r);
        }
    }
}

/// One column's elements by output.
pub(crate) struct ColumnView<'a> {
    codec: Codec,
    bytes: &'a [u8],
    pairs: &'a [u8],
}

impl<'a> ColumnView<'a> {
    pub(crate) fn new(w: &Columns<'a>, col: usize) -> ColumnView<'a> {
        let size = w.column_bytes();
        let bytes = &w.bytes[col * size..][..size];
        ColumnView { codec: w.codec, bytes, pairs: &bytes[code_bytes(w.codec, w.rows)..] }
    }

    /// The weight of output `r`; of a code, `fma(f32(q), scale, min)`.
    pub(crate) fn weight(&self, r: usize) -> f32 {
        match self.codec {
            Codec::F16 => f16_at(self.bytes, r),
            Codec::Bf16 => bf16_at(self.bytes, r),
            Codec::F32 => f32_at(self.bytes, r),
            Codec::U8 | Codec::I8 | Codec::U4 => self.code(r).mul_add(self.scale(r), self.min(r)),
        }
    }

    fn code(&self, r: usize) -> f32 {
        f32::from(match self.codec {
            Codec::U4 => {
                let byte = self.bytes[r / GROUP * GROUP_U4 + r % GROUP_U4];
                byte >> (r % GROUP / GROUP_U4 * 4) & 15
            }
            _ => self.bytes[r],
        })
    }

    fn scale(&self, r: usize) -> f32 {
        f16_at(self.pairs, 2 * (r / column_group(self.codec)))
    }

    fn min(&self, r: usize) -> f32 {
        f16_at(self.pairs, 2 * (r / column_group(self.codec)) + 1)
    }
}

/// `y = W x` for some outputs and every row of `x`, on the calling thread; columns whose activation is zero are skipped.
///
/// `outs` starts at a multiple of 64; `y` is row-major `[x.rows(), outs.len()]`. The definition, for each output, inputs `k` with
/// `x[k] != 0` ascending: `acc = fma(w[k], x[k], acc)`, where the weight of a code is `w = fma(f32(q), scale, min)`.
///
/// # Panics
/// The widths differ, the range leaves the matrix or does not start at a multiple of 64, or `y` has another size.
pub fn matmul_columns(isa: Isa, w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    assert_eq!(w.cols, x.cols(), "inputs of the matrix and of the activations");
    assert!(
        outs.start < outs.end && outs.end <= w.rows && outs.start.is_multiple_of(GROUP),
        "outputs {outs:?} of {} (from a multiple of {GROUP})",
        w.rows
    );
    assert_eq!(y.len(), x.rows() * outs.len(), "one output per row of activations and row of the matrix");
    match isa.kind() {
        Kind::Scalar => scalar::columns::matmul(w, outs, x, y),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx2, fma and f16c were detected; sizes were checked above.
        Kind::Avx2 => unsafe { x86::columns::avx2(w, outs, x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx512 f, bw, dq and vl were detected; sizes were checked above.
        Kind::Avx512 | Kind::Avx512Vnni => unsafe { x86::columns::avx512(w, outs, x, y) },
    }
}

/// Outputs that one call of [`matmul_columns`] should compute, where `threads` threads share `outputs` for `rows` rows of activations: a
/// multiple of 64.
///
/// For a few rows a call goes over whole columns, and the more outputs it has the longer are the runs of memory that it reads. For
/// many rows it goes over 64 outputs after another: then many small calls share out the work better.
pub fn outputs_per_task(outputs: usize, rows: usize, threads: usize) -> usize {
    let tasks = threads.max(1) * if rows <= FEW { 1 } else { 8 };
    (outputs / tasks).next_multiple_of(GROUP).max(GROUP)
}

/// Outputs that share a scale in a column.
pub(crate) fn column_group(codec: Codec) -> usize {
    if codec == Codec::U4 { GROUP_U4 } else { GROUP }
}

/// Bytes of a column's weights or codes, before its scales.
pub(crate) fn code_bytes(codec: Codec, rows: usize) -> usize {
    let padded = rows.div_ceil(GROUP) * GROUP;
    match codec {
        Codec::U4 => padded / 2,
        _ => padded * codec.float_bytes().unwrap_or(1),
    }
}

pub(crate) fn column_bytes(codec: Codec, rows: usize) -> usize {
    let padded = rows.div_ceil(GROUP) * GROUP;
    let pairs = match codec {
        Codec::U8 | Codec::I8 | Codec::U4 => padded / column_group(codec) * 4,
        Codec::F32 | Codec::F16 | Codec::Bf16 => 0,
    };
    (code_bytes(codec, rows) + pairs).div_ceil(64) * 64
}
