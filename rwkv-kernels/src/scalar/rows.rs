//! Element-wise functions over slices; `mix`, `bias` and the like are repeated for every row.

use super::math;

fn map(x: &mut [f32], function: impl Fn(f32) -> f32) {
    for value in x {
        *value = function(*value);
    }
}

pub(crate) fn exp(x: &mut [f32]) {
    map(x, math::exp);
}

pub(crate) fn sigmoid(x: &mut [f32]) {
    map(x, math::sigmoid);
}

pub(crate) fn silu(x: &mut [f32]) {
    map(x, math::silu);
}

pub(crate) fn tanh(x: &mut [f32]) {
    map(x, math::tanh);
}

pub(crate) fn relu_squared(x: &mut [f32]) {
    map(x, math::relu_squared);
}

pub(crate) fn decay(x: &mut [f32]) {
    map(x, math::decay);
}

pub(crate) fn add_assign(y: &mut [f32], x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

pub(crate) fn mul_assign(y: &mut [f32], x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y *= x;
    }
}

pub(crate) fn add_bias(x: &mut [f32], bias: &[f32]) {
    for (x, &bias) in x.iter_mut().zip(bias.iter().cycle()) {
        *x += bias;
    }
}

pub(crate) fn mix(x: &[f32], prev: &[f32], mix: &[f32], y: &mut [f32]) {
    for i in 0..y.len() {
        y[i] = math::lerp(x[i], prev[i], mix[i % mix.len()]);
    }
}

pub(crate) fn mix_value(v0: &[f32], gate: &[f32], v_first: &[f32], v: &mut [f32]) {
    for i in 0..v.len() {
        v[i] = math::lerp(v[i], v_first[i], math::sigmoid(v0[i % v0.len()] + gate[i]));
    }
}
