//! Reductions and what is built on them.
//!
//! Every reduction over `x` keeps 16 partial results, element `i` going to partial `i mod 16`, and
//! then folds them: partial `i` takes in `i + 8`, then `i + 4`, `i + 2`, `i + 1`. In a sum the last 16
//! elements are always 16: the missing ones are `+0`.

use super::math;

pub(crate) const L2_MIN: f32 = 1e-12;

pub(crate) fn fold(mut partials: [f32; 16], join: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            partials[i] = join(partials[i], partials[i + half]);
        }
    }
    partials[0]
}

/// A sum over `len` elements: `step` is given a partial sum and the element to take into it.
fn sum_of(len: usize, step: impl Fn(f32, usize) -> f32) -> f32 {
    let mut partials = [0.0; 16];
    for i in 0..len {
        partials[i % 16] = step(partials[i % 16], i);
    }
    for i in len..len.next_multiple_of(16) {
        // This makes +0 of -0, which a product that underflowed has left.
        partials[i % 16] += 0.0;
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

/// A comparison with NaN is false.
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The maximum of what is not NaN.
fn max(x: &[f32]) -> f32 {
    let mut partials = [f32::NEG_INFINITY; 16];
    for (i, &value) in x.iter().enumerate() {
        partials[i % 16] = larger(value, partials[i % 16]);
    }
    fold(partials, larger)
}

/// Mean of `x`, and `1 / sqrt(variance + eps)`.
pub(crate) fn moments(x: &[f32], eps: f32) -> (f32, f32) {
    let mean = sum_of(x.len(), |sum, i| sum + x[i]) / x.len() as f32;
    let squares = sum_of(x.len(), |sum, i| {
        let centred = x[i] - mean;
        centred.mul_add(centred, sum)
    });
    (mean, inverse_deviation(squares, x.len(), eps))
}

/// `1 / sqrt(variance + eps)`, from the sum of the squared distances to the mean.
pub(crate) fn inverse_deviation(squares: f32, n: usize, eps: f32) -> f32 {
    1.0 / (squares / n as f32 + eps).sqrt()
}

pub(crate) fn normed(x: f32, moments: (f32, f32), weight: f32, bias: f32) -> f32 {
    let (mean, scale) = moments;
    ((x - mean) * scale).mul_add(weight, bias)
}

pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    let n = weight.len();
    for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
        let moments = moments(x, eps);
        for i in 0..n {
            y[i] = normed(x[i], moments, weight[i], bias[i]);
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
