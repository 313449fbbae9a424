//! Attention of one query over consecutive rows.

use crate::attention::{KvRows, key_place};

/// Scores of the rows from `first` on, one for each element of `scores`.
pub(crate) fn scores(q: &[f32], keys: KvRows<'_>, first: usize, scale: f32, scores: &mut [f32]) {
    for (i, score) in scores.iter_mut().enumerate() {
        let mut sum = 0.0_f32;
        for c in 0..q.len() {
            sum = keys.at(key_place(q.len(), first + i, c)).mul_add(q[c], sum);
        }
        *score = sum * scale;
    }
}

/// Adds the values of the rows from `first` on, each times its weight, to `y`.
pub(crate) fn add_values(weights: &[f32], values: KvRows<'_>, first: usize, y: &mut [f32]) {
    let n = y.len();
    for (i, &weight) in weights.iter().enumerate() {
        for (c, y) in y.iter_mut().enumerate() {
            *y = values.at((first + i) * n + c).mul_add(weight, *y);
        }
    }
}
