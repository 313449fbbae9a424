//! The definition of products with row tiles.
//!
//! Every output is one chain over its row, inputs (or groups of inputs) ascending:
//!
//! - floats: `acc = fma(w[k], x[k], acc)`.
//! - `u8`: per group of 64 inputs `d = Σ q·code` (exact, i32), then
//!   `acc = fma(f32(d), scale * x.scale, acc)` and `acc = fma(f32(Σ code) * x.scale, min, acc)`.
//! - `u4`: the same per group of 32 inputs, with the activations' scale of the 64 that hold it.
//! - `i8`: `d = Σ (q - 128)·code` over the row (exact, i32), then `f32(d) * (scale * x.scale)`.

use crate::activations::Activations;
use crate::codec::{Codec, GROUP, GROUP_U4, TILE_ROWS};
use crate::tiles::{
    I8_SCALE_BYTES, ROW_HALVES, RowTiles, U4_GROUP_BYTES, U8_GROUP_BYTES, bf16_at, f16_at, f32_at, nibble,
};

/// See [`crate::matmul`].
pub(crate) fn matmul(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    let rows = w.rows();
    for t in 0..x.rows() {
        for o in 0..rows {
            let tile = &w.bytes()[o / TILE_ROWS * w.tile_bytes()..][..w.tile_bytes()];
            y[t * rows + o] = dot(w.codec(), tile, o % TILE_ROWS, x, t);
        }
    }
}

/// Row `lane` of a tile times row `t` of the activations.
fn dot(codec: Codec, tile: &[u8], lane: usize, x: &Activations, t: usize) -> f32 {
    let groups = x.padded() / GROUP;
    let row = t * x.padded()..(t + 1) * x.padded();
    match codec {
        Codec::F32 => chain(x, t, |k| f32_at(tile, k * TILE_ROWS + lane)),
        Codec::F16 => chain(x, t, |k| f16_at(tile, k * TILE_ROWS + lane)),
        Codec::Bf16 => chain(x, t, |k| bf16_at(tile, k * TILE_ROWS + lane)),
        Codec::U8 => {
            let mut acc = 0.0f32;
            for (g, codes) in x.codes()[row].chunks_exact(GROUP).enumerate() {
                let group = &tile[g * U8_GROUP_BYTES..][..U8_GROUP_BYTES];
                let (scale, min) = (f16_at(group, lane), f16_at(group, TILE_ROWS + lane));
                let d = dot_quads(&group[2 * ROW_HALVES..], lane, codes, 0);
                acc = (d as f32).mul_add(scale * x.scales()[t * groups + g], acc);
                acc = x.sums()[t * groups + g].mul_add(min, acc);
            }
            acc
        }
        Codec::U4 => {
            let mut acc = 0.0f32;
            for (h, codes) in x.codes()[row].chunks_exact(GROUP_U4).enumerate() {
                let (g, half) = (h / 2, h % 2);
                let group = &tile[g * U4_GROUP_BYTES..][..U4_GROUP_BYTES];
                let scale = f16_at(group, 2 * half * TILE_ROWS + lane);
                let min = f16_at(group, (2 * half + 1) * TILE_ROWS + lane);
                let d: i32 = codes
                    .iter()
                    .enumerate()
                    .map(|(k, &code)| {
                        let q = nibble(&group[4 * ROW_HALVES..], lane, half * GROUP_U4 + k);
                        i32::from(q) * i32::from(code)
                    })
                    .sum();
                acc = (d as f32).mul_add(scale * x.scales()[t * groups + g], acc);
                acc = x.half_sums()[t * 2 * groups + h].mul_add(min, acc);
            }
            acc
        }
        Codec::I8 => {
            let d = dot_quads(&tile[I8_SCALE_BYTES..], lane, &x.row_codes()[row], 128);
            d as f32 * (f32_at(tile, lane) * x.row_scales()[t])
        }
    }
}

fn chain(x: &Activations, t: usize, weight: impl Fn(usize) -> f32) -> f32 {
    let x = &x.dense()[t * x.padded()..][..x.cols()];
    x.iter().enumerate().fold(0.0, |acc, (k, &x)| weight(k).mul_add(x, acc))
}

/// `Σ (q - bias)·code` of row `lane`.
fn dot_quads(quads: &[u8], lane: usize, codes: &[i8], bias: i32) -> i32 {
    codes
        .iter()
        .enumerate()
        .map(|(k, &code)| {
            let q = quads[k / 4 * 4 * TILE_ROWS + 4 * lane + k % 4];
            (i32::from(q) - bias) * i32::from(code)
        })
        .sum()
}
