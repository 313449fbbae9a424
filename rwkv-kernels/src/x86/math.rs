//! Element-wise functions on 16 lanes, step by step as [`crate::scalar::math`] has them.

use super::lanes::Lanes;
use crate::scalar::math::{
    DECAY_RATE, EXP_MAX, EXP_MIN, EXP_POLY, LN2_HIGH, LN2_LOW, LOG2_E, ROUNDER, TANH_MAX,
};

/// `n + ROUNDER` and `e^r - 1`.
#[inline(always)]
fn reduce<S: Lanes>(s: S, x: S::V) -> (S::V, S::V) {
    let shifted = s.fma(x, s.splat(LOG2_E), s.splat(ROUNDER));
    let n = s.sub(shifted, s.splat(ROUNDER));
    let r = s.fnma(n, s.splat(LN2_LOW), s.fnma(n, s.splat(LN2_HIGH), x));
    let mut q = s.splat(EXP_POLY[4]);
    for power in (0..4).rev() {
        q = s.fma(q, r, s.splat(EXP_POLY[power]));
    }
    (shifted, s.fma(q, s.mul(r, r), r))
}

#[inline(always)]
pub(super) fn exp<S: Lanes>(s: S, x: S::V) -> S::V {
    let (shifted, m) = reduce(s, x);
    let y = s.add_exponent(s.add(s.splat(1.0), m), shifted);
    let y = s.if_greater(x, s.splat(EXP_MAX), s.splat(f32::INFINITY), y);
    let y = s.if_greater(s.splat(EXP_MIN), x, s.splat(0.0), y);
    s.if_nan(x, s.splat(f32::NAN), y)
}

#[inline(always)]
pub(super) fn sigmoid<S: Lanes>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

#[inline(always)]
pub(super) fn tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    let magnitude = s.abs(x);
    let twice = s.min(s.add(magnitude, magnitude), s.splat(TANH_MAX));
    let (shifted, m) = reduce(s, twice);
    let one = s.splat(1.0);
    let power = s.add_exponent(one, shifted);
    let exp_m1 = s.fma(power, m, s.sub(power, one));
    let y = s.with_sign(s.div(exp_m1, s.add(exp_m1, s.splat(2.0))), x);
    s.if_nan(x, s.splat(f32::NAN), y)
}

#[inline(always)]
pub(super) fn relu_squared<S: Lanes>(s: S, x: S::V) -> S::V {
    let positive = s.max(s.splat(0.0), x);
    s.mul(positive, positive)
}

#[inline(always)]
pub(super) fn decay<S: Lanes>(s: S, x: S::V) -> S::V {
    exp(s, s.mul(s.splat(DECAY_RATE), sigmoid(s, x)))
}

#[inline(always)]
pub(super) fn lerp<S: Lanes>(s: S, x: S::V, other: S::V, t: S::V) -> S::V {
    s.fma(s.sub(other, x), t, x)
}
