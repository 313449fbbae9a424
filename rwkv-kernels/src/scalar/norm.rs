//! Reductions and what is built on them.
//!
//! Every reduction over `x` keeps 16 partial results, element `i` going to partial `i mod 16`, and
//! then folds them: partial `i` takes in `i + 8`, then `i + 4`, `i + 2`, `i + 1`.

use super::math;

pub(crate) const L2_MIN: f32 = 1e-12;

fn fold(mut partials: [f32; 16], join: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            partials[i] = join(partials[i], partials[i + half]);
        }
    }
    partials[0]
}

/// The sum of `term(partial so far, i)` steps.
fn sum_of(len: usize, step: impl Fn(f32, usize) -> f32) -> f32 {
    let mut partials = [0.0; 16];
    for i in 0..len {
        partials[i % 16] = step(partials[i % 16], i);
    }
    fold(partials, |a, b| a + b)
}

pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    sum_of(x.len(), |sum, i| x[i].mul_add(y[i], sum))
}

/// `sum_i r[i] k[i] u[i]`.
pub(crate) fn dot3(r: &[f32], k: &[f32], u: &[f32]) -> f32 {
    sum_of(r.len(), |sum, i| (r[i] * k[i]).mul_add(u[i], sum))
}

/// Comparisons with NaN are false, so that NaN is passed over.
fn max(x: &[f32]) -> f32 {
    let larger = |a, b| if a > b { a } else { b };
    let mut partials = [f32::NEG_INFINITY; 16];
    for (i, &value) in x.iter().enumerate() {
        partials[i % 16] = larger(value, partials[i % 16]);
    }
    fold(partials, larger)
}

/// Mean of `x`, and `1 / sqrt(variance + eps)`.
fn moments(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = sum_of(x.len(), |sum, i| sum + x[i]) / n;
    let squares = sum_of(x.len(), |sum, i| {
        let centred = x[i] - mean;
        centred.mul_add(centred, sum)
    });
    (mean, 1.0 / (squares / n + eps).sqrt())
}

pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    let n = weight.len();
    for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
        let (mean, scale) = moments(x, eps);
        for i in 0..n {
            y[i] = ((x[i] - mean) * scale).mul_add(weight[i], bias[i]);
        }
    }
}

/// The factor that makes a vector with this sum of squares a unit vector.
pub(crate) fn l2_scale(squares: f32) -> f32 {
    let norm = squares.sqrt();
    1.0 / if norm < L2_MIN { L2_MIN } else { norm }
}

pub(crate) fn l2_normalize(x: &mut [f32]) {
    let scale = l2_scale(dot(x, x));
    for value in x {
        *value *= scale;
    }
}

pub(crate) fn softmax(x: &mut [f32]) {
    let max = max(x);
    for value in x.iter_mut() {
        *value = math::exp(*value - max);
    }
    let scale = 1.0 / sum_of(x.len(), |sum, i| sum + x[i]);
    for value in x {
        *value *= scale;
    }
}
