//! Attention over consecutive rows: a lane is a row for the scores, and a channel for the values.
#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use super::lanes::Lanes;
use crate::attention::{ATTEND_QUERIES, KvRows};

/// A stored number.
trait Stored: Copy {
    fn load<S: Lanes>(s: S, x: &[Self; 16]) -> S::V;
}

impl Stored for f32 {
    #[inline(always)]
    fn load<S: Lanes>(s: S, x: &[f32; 16]) -> S::V {
        s.load(x)
    }
}

impl Stored for u16 {
    #[inline(always)]
    fn load<S: Lanes>(s: S, x: &[u16; 16]) -> S::V {
        s.load_f16(x)
    }
}

#[inline(always)]
pub(super) fn scores<S: Lanes>(
    s: S,
    q: &[f32],
    keys: KvRows<'_>,
    first: usize,
    scale: f32,
    scores: &mut [f32],
) {
    match keys {
        KvRows::F32(keys) => scores_of(s, q, keys.as_chunks().0, first, scale, scores),
        KvRows::F16(keys) => scores_of(s, q, keys.as_chunks().0, first, scale, scores),
    }
}

#[inline(always)]
fn scores_of<S: Lanes, E: Stored>(
    s: S,
    q: &[f32],
    keys: &[[E; 16]],
    first: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let mut done = 0;
    while done < scores.len() {
        let row = first + done;
        let (tile, lane) = (row / 16, row % 16);
        if lane == 0 && scores.len() - done >= 64 {
            for (i, sums) in tiles::<S, E, 4>(s, q, keys, tile).into_iter().enumerate() {
                s.put(s.mul(sums, s.splat(scale)), scores, done + 16 * i);
            }
            done += 64;
        } else {
            let [sums] = tiles::<S, E, 1>(s, q, keys, tile);
            let mut all = [0.0; 16];
            s.store(s.mul(sums, s.splat(scale)), &mut all);
            let count = (scores.len() - done).min(16 - lane);
            scores[done..done + count].copy_from_slice(&all[lane..lane + count]);
            done += count;
        }
    }
}

/// The products of `R` tiles from `tile` on, not yet scaled.
#[inline(always)]
fn tiles<S: Lanes, E: Stored, const R: usize>(s: S, q: &[f32], keys: &[[E; 16]], tile: usize) -> [S::V; R] {
    let n = q.len();
    let keys = &keys[tile * n..][..R * n];
    let mut sums = [s.splat(0.0); R];
    for c in 0..n {
        let q = s.splat(q[c]);
        for r in 0..R {
            sums[r] = s.fma(E::load(s, &keys[r * n + c]), q, sums[r]);
        }
    }
    sums
}

#[inline(always)]
pub(super) fn add_values<S: Lanes>(s: S, weights: &[f32], values: KvRows<'_>, first: usize, y: &mut [f32]) {
    match values {
        KvRows::F32(values) => add_values_of(s, weights, values, first, y),
        KvRows::F16(values) => add_values_of(s, weights, values, first, y),
    }
}

#[inline(always)]
fn add_values_of<S: Lanes, E: Stored>(s: S, weights: &[f32], values: &[E], first: usize, y: &mut [f32]) {
    let n = y.len();
    let values = &values[first * n..][..weights.len() * n];
    let mut channel = 0;
    while channel + 64 <= n {
        strip::<S, E, 4>(s, weights, values, channel, y);
        channel += 64;
    }
    while channel < n {
        strip::<S, E, 1>(s, weights, values, channel, y);
        channel += 16;
    }
}

/// `16 * R` channels.
#[inline(always)]
fn strip<S: Lanes, E: Stored, const R: usize>(
    s: S,
    weights: &[f32],
    values: &[E],
    channel: usize,
    y: &mut [f32],
) {
    let n = y.len();
    let mut sums = [s.splat(0.0); R];
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = s.get(y, channel + 16 * i);
    }
    for (i, &weight) in weights.iter().enumerate() {
        let weight = s.splat(weight);
        let (row, _) = values[i * n + channel..][..16 * R].as_chunks();
        for r in 0..R {
            sums[r] = s.fma(E::load(s, &row[r]), weight, sums[r]);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        s.put(sum, y, channel + 16 * i);
    }
}

#[inline(always)]
pub(super) fn scores_each<S: Lanes>(
    s: S,
    q: [&[f32]; ATTEND_QUERIES],
    keys: KvRows<'_>,
    first: usize,
    scale: f32,
    lists: [&mut [f32]; ATTEND_QUERIES],
) {
    match keys {
        KvRows::F32(keys) => scores_each_of(s, q, keys.as_chunks().0, first, scale, lists),
        KvRows::F16(keys) => scores_each_of(s, q, keys.as_chunks().0, first, scale, lists),
    }
}

#[inline(always)]
fn scores_each_of<S: Lanes, E: Stored>(
    s: S,
    q: [&[f32]; ATTEND_QUERIES],
    keys: &[[E; 16]],
    first: usize,
    scale: f32,
    mut lists: [&mut [f32]; ATTEND_QUERIES],
) {
    let rows = lists[0].len();
    let mut done = 0;
    while done < rows {
        let (tile, lane) = ((first + done) / 16, (first + done) % 16);
        let count = (rows - done).min(16 - lane);
        let sums = tile_of_each(s, q, keys, tile);
        for (sums, list) in sums.into_iter().zip(&mut lists) {
            let scores = s.mul(sums, s.splat(scale));
            if count == 16 {
                s.put(scores, list, done);
            } else {
                let mut all = [0.0; 16];
                s.store(scores, &mut all);
                list[done..done + count].copy_from_slice(&all[lane..lane + count]);
            }
        }
        done += count;
    }
}

/// The products of a tile with each query, not yet scaled.
#[inline(always)]
fn tile_of_each<S: Lanes, E: Stored>(
    s: S,
    q: [&[f32]; ATTEND_QUERIES],
    keys: &[[E; 16]],
    tile: usize,
) -> [S::V; ATTEND_QUERIES] {
    let n = q[0].len();
    let keys = &keys[tile * n..][..n];
    let q = q.map(|q| &q[..n]);
    let mut sums = [s.splat(0.0); ATTEND_QUERIES];
    for c in 0..n {
        let key = E::load(s, &keys[c]);
        for i in 0..ATTEND_QUERIES {
            sums[i] = s.fma(key, s.splat(q[i][c]), sums[i]);
        }
    }
    sums
}

#[inline(always)]
pub(super) fn add_values_each<S: Lanes>(
    s: S,
    weights: [&[f32]; ATTEND_QUERIES],
    values: KvRows<'_>,
    first: usize,
    y: [&mut [f32]; ATTEND_QUERIES],
) {
    match values {
        KvRows::F32(values) => add_values_each_of(s, weights, values, first, y),
        KvRows::F16(values) => add_values_each_of(s, weights, values, first, y),
    }
}

#[inline(always)]
fn add_values_each_of<S: Lanes, E: Stored>(
    s: S,
    weights: [&[f32]; ATTEND_QUERIES],
    values: &[E],
    first: usize,
    mut y: [&mut [f32]; ATTEND_QUERIES],
) {
    let (n, rows) = (y[0].len(), weights[0].len());
    let values = &values[first * n..][..rows * n];
    let weights = weights.map(|weights| &weights[..rows]);
    for channel in (0..n).step_by(16) {
        let mut sums = [s.splat(0.0); ATTEND_QUERIES];
        for (sum, y) in sums.iter_mut().zip(&y) {
            *sum = s.get(y, channel);
        }
        for row in 0..rows {
            let (value, _) = values[row * n + channel..][..16].as_chunks();
            let value = E::load(s, &value[0]);
            for i in 0..ATTEND_QUERIES {
                sums[i] = s.fma(value, s.splat(weights[i][row]), sums[i]);
            }
        }
        for (sum, y) in sums.into_iter().zip(&mut y) {
            s.put(sum, y, channel);
        }
    }
}
