//! Attention over consecutive rows.

use crate::attention::{ATTEND_QUERIES, KvRows, key_place};

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

/// The same for several queries.
pub(crate) fn scores_each(
    q: [&[f32]; ATTEND_QUERIES],
    keys: KvRows<'_>,
    first: usize,
    scale: f32,
    lists: [&mut [f32]; ATTEND_QUERIES],
) {
    q.into_iter().zip(lists).for_each(|(q, list)| scores(q, keys, first, scale, list));
}

/// The same for several queries.
pub(crate) fn add_values_each(
    weights: [&[f32]; ATTEND_QUERIES],
    values: KvRows<'_>,
    first: usize,
    y: [&mut [f32]; ATTEND_QUERIES],
) {
    weights.into_iter().zip(y).for_each(|(weights, y)| add_values(weights, values, first, y));
}
