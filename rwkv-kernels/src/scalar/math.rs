//! Element-wise functions, one value at a time.
//!
//! Everything rests on one reduction and one polynomial. For a finite `x` of moderate size,
//!
//! ```text
//! n = round(x / ln 2)              (to nearest, ties to even)
//! r = x - n ln 2                   |r| <= ln 2 / 2, ln 2 as a high and a low part
//! m = r + r^2 q(r)                 e^r - 1, q a minimax polynomial of degree 4
//! e^x     = (1 + m) 2^n
//! e^x - 1 = m 2^n + (2^n - 1)
//! ```
//!
//! `n` is found by adding 1.5 * 2^23: the sum's last bits are the integer, so that `n << 23`, which is
//! what an exponent needs, is a shift of the sum's own bits.

pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
pub(crate) const ROUNDER: f32 = 12_582_912.0;
/// ln 2 to 24 bits, and what is left of it. `n * LN2_HIGH` cancels exactly against `x`.
pub(crate) const LN2_HIGH: f32 = std::f32::consts::LN_2;
pub(crate) const LN2_LOW: f32 = -1.904_654_2e-9;
/// `(e^r - 1 - r) / r^2` for `|r| <= ln 2 / 2`, ascending powers; 4.4e-9 of `e^r` at most.
pub(crate) const EXP_POLY: [f32; 5] = [0.5, 0.166_664_88, 0.041_665_55, 0.008_372_285, 0.001_403_604_7];
/// Above this `e^x` is infinite: from the next `f32` on it exceeds the largest one.
pub(crate) const EXP_MAX: f32 = 88.722_83;
/// Below this `e^x` is zero: it would be less than the smallest normal `f32`.
pub(crate) const EXP_MIN: f32 = -87.336_54;
/// tanh is 1 from `2 |x| = 20` on.
pub(crate) const TANH_MAX: f32 = 20.0;
/// `-e^-0.5`, the strongest decay of RWKV-7 as a logarithm.
pub(crate) const DECAY_RATE: f32 = -0.606_530_66;

/// `n + ROUNDER` and `e^r - 1`.
fn reduce(x: f32) -> (f32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut q = EXP_POLY[4];
    for power in (0..4).rev() {
        q = q.mul_add(r, EXP_POLY[power]);
    }
    (shifted, q.mul_add(r * r, r))
}

pub(crate) fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return f32::NAN;
    }
    if x > EXP_MAX {
        return f32::INFINITY;
    }
    if x < EXP_MIN {
        return 0.0;
    }
    let (shifted, m) = reduce(x);
    f32::from_bits((1.0 + m).to_bits().wrapping_add(shifted.to_bits() << 23))
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `(e^2|x| - 1) / (e^2|x| + 1)` with the sign of `x`; the difference never cancels.
pub(crate) fn tanh(x: f32) -> f32 {
    if x.is_nan() {
        return f32::NAN;
    }
    let twice = x.abs() + x.abs();
    let twice = if twice < TANH_MAX { twice } else { TANH_MAX };
    let (shifted, m) = reduce(twice);
    let power = f32::from_bits(1.0_f32.to_bits().wrapping_add(shifted.to_bits() << 23));
    let exp_m1 = power.mul_add(m, power - 1.0);
    (exp_m1 / (exp_m1 + 2.0)).copysign(x)
}

pub(crate) fn relu_squared(x: f32) -> f32 {
    let positive = if x <= 0.0 { 0.0 } else { x };
    positive * positive
}

pub(crate) fn decay(x: f32) -> f32 {
    exp(DECAY_RATE * sigmoid(x))
}

/// From `x` to `other` by the share `t`.
pub(crate) fn lerp(x: f32, other: f32, t: f32) -> f32 {
    (other - x).mul_add(t, x)
}
