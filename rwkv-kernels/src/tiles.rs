use std::ops::Range;

use half::{bf16, f16};

use crate::activations::Activations;
use crate::codec::{Codec, GROUP, GROUP_U4, LayoutError, MAX_COLS, TILE_ROWS};
use crate::isa::{Isa, Kind};
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// Bytes of 16 f16 numbers, one per row of a tile.
pub(crate) const ROW_HALVES: usize = 2 * TILE_ROWS;
/// Bytes of a `u8` group of a tile: scales, minimums, codes.
pub(crate) const U8_GROUP_BYTES: usize = 2 * ROW_HALVES + GROUP * TILE_ROWS;
/// Bytes of the two `u4` groups that share a group of activations.
pub(crate) const U4_GROUP_BYTES: usize = 4 * ROW_HALVES + GROUP / 2 * TILE_ROWS;
/// Bytes of the f32 scales at the head of an `i8` tile.
pub(crate) const I8_SCALE_BYTES: usize = 4 * TILE_ROWS;

/// A matrix `W[rows, cols]` (outputs by inputs) in tiles of 16 rows: a view of the bytes of a pack.
///
/// The 16 rows of a tile are interleaved, so that a SIMD lane is a row. Rows past the last are
/// stored as zeros. Within a tile:
///
/// - `f32`, `f16`, `bf16`: for each input, 16 weights (`[tiles, cols, 16]`).
/// - `u8`: for each group of 64 inputs 16 f16 scales, 16 f16 minimums, then for each quad of inputs
///   16 rows x 4 bytes (`[tiles, groups, 1088]`).
/// - `i8`: 16 f32 scales, then quads as above, biased by 128 (`[tiles, 64 + 1024 * groups]`).
/// - `u4`: for each group of 64 inputs: for each half of it 16 f16 scales and 16 f16 minimums, then for
///   each pair of quads 16 rows x 4 bytes, the first quad in the low nibbles (`[tiles, groups, 640]`).
#[derive(Clone, Copy, Debug)]
pub struct RowTiles<'a> {
    codec: Codec,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> RowTiles<'a> {
    /// A view of `bytes`, which [`encode_row_tiles`](crate::encode_row_tiles) has written.
    ///
    /// # Errors
    /// The shape cannot be stored, or `bytes` is not of [`RowTiles::byte_len`].
    pub fn new(codec: Codec, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = RowTiles::byte_len(codec, rows, cols)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { rows, cols, codec, found: bytes.len(), expected });
        }
        Ok(RowTiles { codec, rows, cols, bytes })
    }

    /// Bytes of a matrix.
    ///
    /// # Errors
    /// The shape is empty, has more than [`MAX_COLS`] columns, or overflows.
    pub fn byte_len(codec: Codec, rows: usize, cols: usize) -> Result<usize, LayoutError> {
        if rows == 0 || cols == 0 || cols > MAX_COLS {
            return Err(LayoutError::Shape { rows, cols, codec });
        }
        rows.div_ceil(TILE_ROWS)
            .checked_mul(tile_bytes(codec, cols))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(LayoutError::Shape { rows, cols, codec })
    }

    /// The element type and shape under which a safetensors file lists these tiles.
    pub fn array_shape(codec: Codec, rows: usize, cols: usize) -> (&'static str, Vec<usize>) {
        let (tiles, groups) = (rows.div_ceil(TILE_ROWS), cols.div_ceil(GROUP));
        let shape = match codec {
            Codec::F32 | Codec::F16 | Codec::Bf16 => vec![tiles, cols, TILE_ROWS],
            Codec::U8 => vec![tiles, groups, U8_GROUP_BYTES],
            Codec::U4 => vec![tiles, groups, U4_GROUP_BYTES],
            Codec::I8 => vec![tiles, tile_bytes(codec, cols)],
        };
        (codec.stored_dtype(), shape)
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

    /// Tiles of 16 rows, the last one perhaps padded.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Bytes of one tile.
    pub fn tile_bytes(&self) -> usize {
        tile_bytes(self.codec, self.cols)
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The matrix of some of the tiles.
    ///
    /// # Panics
    /// The range is empty or leaves the matrix.
    pub fn tile_range(&self, tiles: Range<usize>) -> RowTiles<'a> {
        assert!(tiles.start < tiles.end && tiles.end <= self.tiles(), "tiles {tiles:?} of {}", self.tiles());
        let size = self.tile_bytes();
        RowTiles {
            rows: self.rows.min(tiles.end * TILE_ROWS) - tiles.start * TILE_ROWS,
            bytes: &self.bytes[tiles.start * size..tiles.end * size],
            ..*self
        }
    }

    /// The weights of one row, as the kernels understand them.
    ///
    /// # Panics
    /// There is no such row, or `out` has not `cols` elements.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "one weight per column");
        let (tile, lane) = (row / TILE_ROWS, row % TILE_ROWS);
        let tile = &self.bytes[tile * self.tile_bytes()..][..self.tile_bytes()];
        for (k, weight) in out.iter_mut().enumerate() {
            let (group, in_group) = (k / GROUP, k % GROUP);
            let quad = |quads: &[u8], k: usize| quads[(k / 4) * 4 * TILE_ROWS + 4 * lane + k % 4];
            *weight = match self.codec {
                Codec::F32 => f32_at(tile, k * TILE_ROWS + lane),
                Codec::F16 => f16_at(tile, k * TILE_ROWS + lane),
                Codec::Bf16 => bf16_at(tile, k * TILE_ROWS + lane),
                Codec::U8 => {
                    let group = &tile[group * U8_GROUP_BYTES..][..U8_GROUP_BYTES];
                    let q = quad(&group[2 * ROW_HALVES..], in_group);
                    f32::from(q).mul_add(f16_at(group, lane), f16_at(group, TILE_ROWS + lane))
                }
                Codec::U4 => {
                    let group = &tile[group * U4_GROUP_BYTES..][..U4_GROUP_BYTES];
                    let half = in_group / GROUP_U4;
                    let q = nibble(&group[4 * ROW_HALVES..], lane, in_group);
                    let scale = f16_at(group, half * 2 * TILE_ROWS + lane);
                    let min = f16_at(group, (half * 2 + 1) * TILE_ROWS + lane);
                    f32::from(q).mul_add(scale, min)
                }
                Codec::I8 => {
                    let q = i32::from(quad(&tile[I8_SCALE_BYTES..], k)) - 128;
                    q as f32 * f32_at(tile, lane)
                }
            };
        }
    }
}

/// `y = W x` for every row of `x`, on the calling thread.
///
/// `y` is row-major `[x.rows(), w.rows()]`. For each row of `x` and each row of `w` this is one chain
/// of operations in a fixed order, stated in the source of the scalar definition; no other row, column count, thread or
/// instruction set changes a bit of it.
///
/// # Panics
/// The widths differ, `y` has another size, or `x` was prepared without the [forms](Codec::forms) of `w`'s codec.
pub fn matmul(isa: Isa, w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    assert_eq!(w.cols, x.cols(), "inputs of the matrix and of the activations");
    assert_eq!(y.len(), x.rows() * w.rows, "one output per row of activations and row of the matrix");
    x.assert_forms(w.codec.forms());
    match isa.kind() {
        Kind::Scalar => scalar::tiles::matmul(w, x, y),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx2, fma and f16c were detected; sizes were checked above.
        Kind::Avx2 => unsafe { x86::tiles::avx2(w, x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx512 f, bw, dq and vl were detected; sizes were checked above.
        Kind::Avx512 => unsafe { x86::tiles::avx512(w, x, y) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, and avx512vnni was detected.
        Kind::Avx512Vnni => unsafe { x86::tiles::avx512_vnni(w, x, y) },
    }
}

fn tile_bytes(codec: Codec, cols: usize) -> usize {
    let groups = cols.div_ceil(GROUP);
    match codec {
        Codec::F32 => cols * TILE_ROWS * 4,
        Codec::F16 | Codec::Bf16 => cols * TILE_ROWS * 2,
        Codec::U8 => groups * U8_GROUP_BYTES,
        Codec::U4 => groups * U4_GROUP_BYTES,
        Codec::I8 => I8_SCALE_BYTES + groups * GROUP * TILE_ROWS,
    }
}

/// The code of input `k` (of 64) and row `lane` among the packed quads of a `u4` group.
pub(crate) fn nibble(quads: &[u8], lane: usize, k: usize) -> u8 {
    let (pair, high) = (k / 8, k % 8 / 4);
    quads[pair * 4 * TILE_ROWS + 4 * lane + k % 4] >> (4 * high) & 15
}

pub(crate) fn f32_at(bytes: &[u8], i: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes"))
}

pub(crate) fn f16_at(bytes: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}

pub(crate) fn bf16_at(bytes: &[u8], i: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}
