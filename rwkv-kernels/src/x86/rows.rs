//! Element-wise functions over slices, 16 elements at a time.

use super::lanes::Lanes;
use super::math;

/// `x[i] = function(x[i])`. A macro, for the body of a closure would not be inlined for certain.
macro_rules! map {
    ($s:ident, $x:ident => $function:expr) => {
        for at in (0..$x.len()).step_by(16) {
            let value = $s.get($x, at);
            $s.put($function($s, value), $x, at);
        }
    };
}

#[inline(always)]
pub(super) fn exp<S: Lanes>(s: S, x: &mut [f32]) {
    map!(s, x => math::exp);
}

#[inline(always)]
pub(super) fn sigmoid<S: Lanes>(s: S, x: &mut [f32]) {
    map!(s, x => math::sigmoid);
}

#[inline(always)]
pub(super) fn silu<S: Lanes>(s: S, x: &mut [f32]) {
    for at in (0..x.len()).step_by(16) {
        let value = s.get(x, at);
        s.put(s.mul(value, math::sigmoid(s, value)), x, at);
    }
}

#[inline(always)]
pub(super) fn tanh<S: Lanes>(s: S, x: &mut [f32]) {
    map!(s, x => math::tanh);
}

#[inline(always)]
pub(super) fn relu_squared<S: Lanes>(s: S, x: &mut [f32]) {
    map!(s, x => math::relu_squared);
}

#[inline(always)]
pub(super) fn decay<S: Lanes>(s: S, x: &mut [f32]) {
    map!(s, x => math::decay);
}

#[inline(always)]
pub(super) fn add_assign<S: Lanes>(s: S, y: &mut [f32], x: &[f32]) {
    for at in (0..y.len()).step_by(16) {
        s.put(s.add(s.get(y, at), s.get(x, at)), y, at);
    }
}

#[inline(always)]
pub(super) fn mul_assign<S: Lanes>(s: S, y: &mut [f32], x: &[f32]) {
    for at in (0..y.len()).step_by(16) {
        s.put(s.mul(s.get(y, at), s.get(x, at)), y, at);
    }
}

#[inline(always)]
pub(super) fn add_bias<S: Lanes>(s: S, x: &mut [f32], bias: &[f32]) {
    for x in x.chunks_exact_mut(bias.len().max(1)) {
        add_assign(s, x, bias);
    }
}

#[inline(always)]
pub(super) fn mix<S: Lanes>(s: S, x: &[f32], prev: &[f32], mix: &[f32], y: &mut [f32]) {
    let n = mix.len().max(1);
    for ((x, prev), y) in x.chunks_exact(n).zip(prev.chunks_exact(n)).zip(y.chunks_exact_mut(n)) {
        for at in (0..n).step_by(16) {
            s.put(math::lerp(s, s.get(x, at), s.get(prev, at), s.get(mix, at)), y, at);
        }
    }
}

#[inline(always)]
pub(super) fn mix_value<S: Lanes>(s: S, v0: &[f32], gate: &[f32], v_first: &[f32], v: &mut [f32]) {
    let n = v0.len().max(1);
    for ((gate, v_first), v) in gate.chunks_exact(n).zip(v_first.chunks_exact(n)).zip(v.chunks_exact_mut(n)) {
        for at in (0..n).step_by(16) {
            let share = math::sigmoid(s, s.add(s.get(v0, at), s.get(gate, at)));
            s.put(math::lerp(s, s.get(v, at), s.get(v_first, at), share), v, at);
        }
    }
}
