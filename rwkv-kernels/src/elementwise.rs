use crate::dispatch::by_isa;
use crate::isa::Isa;

/// `e^x` in place, for any number of values.
///
/// The error is at most 1.1 ulp. Above 88.72283 the result is infinite; below -87.33654, where it would be less than
/// the smallest normal `f32`, it is zero. NaN gives NaN.
pub fn exp(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::exp(x));
}

/// The logistic function `1 / (1 + e^-x)` in place, for any number of values.
///
/// The error is at most 3 ulp where the result is a normal number. NaN gives NaN.
pub fn sigmoid(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::sigmoid(x));
}

/// `x * sigmoid(x)` in place, for any number of values. Negative infinity gives NaN, as `-inf * 0` does.
pub fn silu(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::silu(x));
}

/// The hyperbolic tangent in place, for any number of values.
///
/// The error is at most 4 ulp, near zero too; the sign of zero is kept. NaN gives NaN.
pub fn tanh(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::tanh(x));
}

/// `max(x, 0)^2` in place, for any number of values: the activation of the channel mix.
///
/// The result for `x <= 0` is exactly `+0`. NaN gives NaN.
pub fn relu_squared(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::relu_squared(x));
}

/// The decay of RWKV-7, `exp(-e^-0.5 * sigmoid(x))`, in place, for any number of values.
///
/// The result is the decay itself, between 0.545 and 1, not its logarithm.
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), time mix.
pub fn decay(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, rows::decay(x));
}

/// `y += x`, the residual connection.
///
/// # Panics
/// The lengths differ.
pub fn add_assign(isa: Isa, y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "y and x are of one length");
    by_isa!(isa, rows::add_assign(y, x));
}

/// `y *= x`, element by element.
///
/// # Panics
/// The lengths differ.
pub fn mul_assign(isa: Isa, y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "y and x are of one length");
    by_isa!(isa, rows::mul_assign(y, x));
}

/// Adds `bias` to every row of `x`.
///
/// Shapes: `x` is `[rows, n]` row-major, `bias` is `[n]`.
///
/// # Panics
/// `x` is not a whole number of rows.
pub fn add_bias(isa: Isa, x: &mut [f32], bias: &[f32]) {
    assert_rows(x.len(), bias.len());
    by_isa!(isa, rows::add_bias(x, bias));
}

/// The token shift `y = fma(prev - x, mix, x)`: from the token's own value to the previous token's by
/// the share `mix` of its channel.
///
/// Shapes: `x`, `prev` and `y` are `[rows, n]` row-major, `mix` is `[n]`.
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), token shift.
///
/// # Panics
/// `x`, `prev` and `y` differ in length, or are not a whole number of rows.
pub fn mix(isa: Isa, x: &[f32], prev: &[f32], mix: &[f32], y: &mut [f32]) {
    assert_rows(x.len(), mix.len());
    assert_eq!(prev.len(), x.len(), "one previous value per value");
    assert_eq!(y.len(), x.len(), "one result per value");
    by_isa!(isa, rows::mix(x, prev, mix, y));
}

/// The value residual of RWKV-7, `v = fma(v_first - v, sigmoid(v0 + gate), v)`.
///
/// Shapes: `gate` (the low-rank product, before the bias), `v_first` (the values of the first block)
/// and `v` are `[rows, n]` row-major, `v0` is `[n]`.
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), time mix.
///
/// # Panics
/// `gate`, `v_first` and `v` differ in length, or are not a whole number of rows.
pub fn mix_value(isa: Isa, v0: &[f32], gate: &[f32], v_first: &[f32], v: &mut [f32]) {
    assert_rows(v.len(), v0.len());
    assert_eq!(gate.len(), v.len(), "one gate per value");
    assert_eq!(v_first.len(), v.len(), "one first value per value");
    by_isa!(isa, rows::mix_value(v0, gate, v_first, v));
}

/// Panics unless `len` elements are whole rows of `n`.
#[track_caller]
pub(crate) fn assert_rows(len: usize, n: usize) {
    assert!(
        len == 0 || (n != 0 && len.is_multiple_of(n)),
        "{len} elements are not whole rows of {n} elements"
    );
}
