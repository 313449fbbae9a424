//! Reductions and what is built on them: lane `i` is partial `i`.

use super::lanes::Lanes;
use super::math;
use crate::scalar::norm::{fold, inverse_deviation, l2_scale, larger};

#[inline(always)]
pub(super) fn dot<S: Lanes>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for at in (0..x.len()).step_by(16) {
        sum = s.fma(s.get(x, at), s.get(y, at), sum);
    }
    s.fold_sum(sum)
}

#[inline(always)]
pub(super) fn dot3<S: Lanes>(s: S, r: &[f32], k: &[f32], u: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for at in (0..r.len()).step_by(16) {
        sum = s.fma(s.mul(s.get(r, at), s.get(k, at)), s.get(u, at), sum);
    }
    s.fold_sum(sum)
}

/// Mean of `x`, and `1 / sqrt(variance + eps)`.
#[inline(always)]
pub(super) fn moments<S: Lanes>(s: S, x: &[f32], eps: f32) -> (f32, f32) {
    let mut sum = s.splat(0.0);
    for at in (0..x.len()).step_by(16) {
        sum = s.add(sum, s.get(x, at));
    }
    let mean = s.fold_sum(sum) / x.len() as f32;
    let mut squares = s.splat(0.0);
    for at in (0..x.len()).step_by(16) {
        let centred = s.first(s.sub(s.get(x, at), s.splat(mean)), x.len() - at);
        squares = s.fma(centred, centred, squares);
    }
    (mean, inverse_deviation(s.fold_sum(squares), x.len(), eps))
}

/// `fma((x - mean) * scale, weight, bias)`.
#[inline(always)]
pub(super) fn normed<S: Lanes>(s: S, x: S::V, moments: (f32, f32), weight: S::V, bias: S::V) -> S::V {
    let (mean, scale) = moments;
    s.fma(s.mul(s.sub(x, s.splat(mean)), s.splat(scale)), weight, bias)
}

#[inline(always)]
pub(super) fn layer_norm<S: Lanes>(s: S, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    let n = weight.len();
    for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
        let moments = moments(s, x, eps);
        for at in (0..n).step_by(16) {
            s.put(normed(s, s.get(x, at), moments, s.get(weight, at), s.get(bias, at)), y, at);
        }
    }
}

#[inline(always)]
pub(super) fn scale<S: Lanes>(s: S, x: &mut [f32], factor: f32) {
    for at in (0..x.len()).step_by(16) {
        s.put(s.mul(s.get(x, at), s.splat(factor)), x, at);
    }
}

#[inline(always)]
pub(super) fn l2_normalize<S: Lanes>(s: S, x: &mut [f32]) {
    let factor = l2_scale(dot(s, x, x));
    scale(s, x, factor);
}

#[inline(always)]
pub(super) fn softmax<S: Lanes>(s: S, x: &mut [f32]) {
    let mut partials = s.splat(f32::NEG_INFINITY);
    for at in (0..x.len()).step_by(16) {
        partials = s.max(s.get_or(x, at, f32::NEG_INFINITY), partials);
    }
    let mut maxima = [0.0; 16];
    s.store(partials, &mut maxima);
    let max = s.splat(fold(maxima, larger));
    let mut sum = s.splat(0.0);
    for at in (0..x.len()).step_by(16) {
        // Lanes past the end become 0, unless every result is NaN anyway.
        let power = math::exp(s, s.sub(s.get_or(x, at, f32::NEG_INFINITY), max));
        s.put(power, x, at);
        sum = s.add(sum, power);
    }
    let factor = 1.0 / s.fold_sum(sum);
    scale(s, x, factor);
}
