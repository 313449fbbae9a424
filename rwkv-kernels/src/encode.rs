mod fit;

use std::ops::Range;

use half::{bf16, f16};

use crate::codec::{Codec, GROUP, GROUP_U4, LayoutError, TILE_ROWS};
use crate::columns::{Columns, code_bytes, column_bytes, column_group};
use crate::isa::Isa;
use crate::tiles::{I8_SCALE_BYTES, ROW_HALVES, RowTiles, U4_GROUP_BYTES, U8_GROUP_BYTES};

/// Weights that a codec cannot hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The shape has no such layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A weight is infinite or not a number.
    #[error("weight [{row}, {col}] is {value}")]
    NotFinite {
        /// Output.
        row: usize,
        /// Input.
        col: usize,
        /// What it is.
        value: f32,
    },
    /// A weight, or the scale of its group, is beyond the codec's largest number.
    #[error("weight [{row}, {col}] = {value} is too large for codec {codec}")]
    TooLarge {
        /// Output.
        row: usize,
        /// Input.
        col: usize,
        /// What it is.
        value: f32,
        /// The codec that was asked for.
        codec: Codec,
    },
}

/// Appends `weights`, row-major `[rows, cols]`, to `out` as [`RowTiles`].
///
/// A tall matrix may be encoded slab by slab, each but the last of a multiple of 16 rows: the tiles of
/// the slabs, one after another, are the tiles of the matrix.
///
/// # Errors
/// The shape cannot be stored, or a weight cannot (its row counts from the slab's first). `out` is then as long as before.
///
/// # Panics
/// `weights` has not `rows * cols` elements.
pub fn encode_row_tiles(
    codec: Codec,
    rows: usize,
    cols: usize,
    weights: &[f32],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let len = RowTiles::byte_len(codec, rows, cols)?;
    assert_eq!(weights.len(), rows * cols, "one weight per row and column");
    check(codec, weights, cols)?;
    let isa = Isa::detect();
    let start = out.len();
    out.resize(start + len, 0);
    let size = len / rows.div_ceil(TILE_ROWS);
    for (tile, rows) in out[start..].chunks_exact_mut(size).zip(weights.chunks(TILE_ROWS * cols)) {
        for (lane, row) in rows.chunks_exact(cols).enumerate() {
            encode_lane(isa, codec, tile, lane, row);
        }
    }
    Ok(())
}

/// Appends the columns `inputs` of `weights`, row-major `[rows, cols]`, to `out` as [`Columns`].
///
/// The ranges of several calls, one after another, make the columns of the matrix.
///
/// # Errors
/// The codec has no columns, the shape cannot be stored, or a weight cannot. `out` is then as long as before.
///
/// # Panics
/// `weights` has not `rows * cols` elements, or `inputs` leaves the matrix.
pub fn encode_columns(
    codec: Codec,
    rows: usize,
    cols: usize,
    weights: &[f32],
    inputs: Range<usize>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    Columns::byte_len(codec, rows, cols)?;
    assert_eq!(weights.len(), rows * cols, "one weight per row and column");
    assert!(inputs.end <= cols, "columns {inputs:?} of {cols}");
    check(codec, weights, cols)?;
    let size = column_bytes(codec, rows);
    let isa = Isa::detect();
    let start = out.len();
    out.resize(start + inputs.len() * size, 0);
    // Eight columns at a time: a cache line of the row-major weights serves them all.
    let mut values = vec![0.0f32; 8 * rows];
    for (block, columns) in out[start..].chunks_mut(8 * size).enumerate() {
        let first = inputs.start + 8 * block;
        let count = columns.len() / size;
        for (r, row) in weights.chunks_exact(cols).enumerate() {
            for (c, &w) in row[first..first + count].iter().enumerate() {
                values[c * rows + r] = w;
            }
        }
        for (column, values) in columns.chunks_exact_mut(size).zip(values.chunks_exact(rows)) {
            encode_column(isa, codec, column, values);
        }
    }
    Ok(())
}

/// Refuses what the codec cannot hold.
fn check(codec: Codec, weights: &[f32], cols: usize) -> Result<(), EncodeError> {
    let largest = match codec {
        Codec::F32 => f32::MAX,
        // 127 times its scale, rounded up, is still a number.
        Codec::I8 => f32::MAX * (1.0 - f32::EPSILON),
        Codec::Bf16 => bf16::MAX.to_f32(),
        // A group's minimum is an f16, and so is its scale, 1/255 or 1/15 of the group's range.
        Codec::F16 | Codec::U8 | Codec::U4 => f16::MAX.to_f32(),
    };
    let fits = weights.iter().fold(true, |fits, w| fits & (w.abs() <= largest));
    if fits {
        return Ok(());
    }
    let i = weights.iter().position(|w| w.is_nan() || w.abs() > largest).expect("one does not fit");
    let (row, col, value) = (i / cols, i % cols, weights[i]);
    Err(if value.is_finite() {
        EncodeError::TooLarge { row, col, value, codec }
    } else {
        EncodeError::NotFinite { row, col, value }
    })
}

fn encode_lane(isa: Isa, codec: Codec, tile: &mut [u8], lane: usize, row: &[f32]) {
    let put_half =
        |bytes: &mut [u8], i: usize, half: f16| bytes[2 * i..2 * i + 2].copy_from_slice(&half.to_le_bytes());
    let quad_at = |k: usize| k / 4 * 4 * TILE_ROWS + 4 * lane + k % 4;
    let mut codes = [0u8; GROUP];
    match codec {
        Codec::F32 => {
            for (slots, w) in tile.chunks_exact_mut(4 * TILE_ROWS).zip(row) {
                slots[4 * lane..4 * lane + 4].copy_from_slice(&w.to_le_bytes());
            }
        }
        Codec::F16 => {
            for (slots, &w) in tile.chunks_exact_mut(ROW_HALVES).zip(row) {
                put_half(slots, lane, f16::from_f32(w));
            }
        }
        Codec::Bf16 => {
            for (slots, &w) in tile.chunks_exact_mut(ROW_HALVES).zip(row) {
                slots[2 * lane..2 * lane + 2].copy_from_slice(&bf16::from_f32(w).to_le_bytes());
            }
        }
        Codec::U8 => {
            for (group, weights) in tile.chunks_exact_mut(U8_GROUP_BYTES).zip(row.chunks(GROUP)) {
                let (scale, min) = fit::cover(weights, 255.0, &mut codes);
                put_half(group, lane, scale);
                put_half(group, TILE_ROWS + lane, min);
                for (k, &code) in codes[..weights.len()].iter().enumerate() {
                    group[2 * ROW_HALVES + quad_at(k)] = code;
                }
            }
        }
        Codec::U4 => {
            for (group, weights) in tile.chunks_exact_mut(U4_GROUP_BYTES).zip(row.chunks(GROUP)) {
                for (half, weights) in weights.chunks(GROUP_U4).enumerate() {
                    let (scale, min) = fit::least_squares(isa, weights, &mut codes);
                    put_half(group, 2 * half * TILE_ROWS + lane, scale);
                    put_half(group, (2 * half + 1) * TILE_ROWS + lane, min);
                    for (k, &code) in codes[..weights.len()].iter().enumerate() {
                        let k = half * GROUP_U4 + k;
                        let at = 4 * ROW_HALVES + k / 8 * 4 * TILE_ROWS + 4 * lane + k % 4;
                        group[at] |= code << (k % 8 / 4 * 4);
                    }
                }
            }
        }
        Codec::I8 => {
            let max = row.iter().fold(0.0f32, |max, w| max.max(w.abs()));
            let scale = max / 127.0;
            tile[4 * lane..4 * lane + 4].copy_from_slice(&scale.to_le_bytes());
            for (k, w) in row.iter().enumerate() {
                let q = if scale > 0.0 { (w / scale).round_ties_even().clamp(-127.0, 127.0) } else { 0.0 };
                tile[I8_SCALE_BYTES + quad_at(k)] = (q as i32 + 128) as u8;
            }
        }
    }
}

fn encode_column(isa: Isa, codec: Codec, column: &mut [u8], weights: &[f32]) {
    let (data, pairs) = column.split_at_mut(code_bytes(codec, weights.len()));
    let mut codes = [0u8; GROUP];
    match codec {
        Codec::F32 => {
            for (slot, w) in data.chunks_exact_mut(4).zip(weights) {
                slot.copy_from_slice(&w.to_le_bytes());
            }
        }
        Codec::F16 => {
            for (slot, &w) in data.chunks_exact_mut(2).zip(weights) {
                slot.copy_from_slice(&f16::from_f32(w).to_le_bytes());
            }
        }
        Codec::Bf16 => {
            for (slot, &w) in data.chunks_exact_mut(2).zip(weights) {
                slot.copy_from_slice(&bf16::from_f32(w).to_le_bytes());
            }
        }
        Codec::U8 | Codec::I8 | Codec::U4 => {
            let size = column_group(codec);
            for (g, (pair, weights)) in pairs.chunks_exact_mut(4).zip(weights.chunks(size)).enumerate() {
                let (scale, min) = match codec {
                    Codec::U4 => fit::least_squares(isa, weights, &mut codes),
                    _ => fit::cover(weights, 255.0, &mut codes),
                };
                pair[..2].copy_from_slice(&scale.to_le_bytes());
                pair[2..].copy_from_slice(&min.to_le_bytes());
                for (i, &code) in codes[..weights.len()].iter().enumerate() {
                    if codec == Codec::U4 {
                        data[g / 2 * size + i] |= code << (g % 2 * 4);
                    } else {
                        data[g * size + i] = code;
                    }
                }
            }
        }
    }
}
