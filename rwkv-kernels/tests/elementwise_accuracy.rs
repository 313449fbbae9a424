//! The element-wise functions against the same functions in double precision.

use rwkv_kernels::{Isa, decay, exp, relu_squared, sigmoid, silu, tanh};

/// Distance of `got` from `exact` in units of the last place of `exact`, a normal `f32`.
fn ulps(got: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    let ulp = f32::from_bits(rounded.abs().to_bits() + 1) - rounded.abs();
    (f64::from(got) - exact).abs() / f64::from(ulp)
}

/// The largest error over `count` values from `low` to `high` and their neighbours near zero.
fn worst(
    function: fn(Isa, &mut [f32]),
    exact: fn(f64) -> f64,
    inputs: impl Iterator<Item = f32>,
) -> (f64, f32) {
    let inputs: Vec<f32> = inputs.collect();
    let mut outputs = inputs.clone();
    function(Isa::detect(), &mut outputs);
    inputs.iter().zip(&outputs).map(|(&x, &y)| (ulps(y, exact(f64::from(x))), x)).fold(
        (0.0, 0.0),
        |worst, this| {
            if this.0 > worst.0 || this.0.is_nan() { this } else { worst }
        },
    )
}

/// Evenly spaced values, `high` included.
fn range(low: f32, high: f32) -> impl Iterator<Item = f32> {
    const COUNT: usize = 1_000_000;
    (0..=COUNT).map(move |i| low + (high - low) * (i as f32 / COUNT as f32))
}

/// Every 4099th positive `f32` from the smallest normal to `high`, with both signs.
fn all_scales(high: f32) -> impl Iterator<Item = f32> {
    (f32::MIN_POSITIVE.to_bits()..high.to_bits()).step_by(4099).map(f32::from_bits).flat_map(|x| [x, -x])
}

#[track_caller]
fn assert_within(limit: f64, worst: (f64, f32)) {
    assert!(worst.0 <= limit, "error of {} ulp at {:e}, allowed {limit}", worst.0, worst.1);
}

#[test]
fn exp_is_within_little_more_than_one_ulp() {
    assert_within(1.1, worst(exp, f64::exp, range(-87.3365, 88.7228)));
    assert_within(1.1, worst(exp, f64::exp, all_scales(87.0)));
}

#[test]
fn sigmoid_is_within_three_ulp() {
    let exact = |x: f64| 1.0 / (1.0 + (-x).exp());
    assert_within(3.0, worst(sigmoid, exact, range(-87.0, 40.0)));
    assert_within(3.0, worst(sigmoid, exact, all_scales(80.0)));
}

#[test]
fn silu_is_within_four_ulp() {
    let exact = |x: f64| x / (1.0 + (-x).exp());
    assert_within(4.0, worst(silu, exact, range(-80.0, 40.0)));
    assert_within(4.0, worst(silu, exact, all_scales(80.0).filter(|x| x.abs() > 1e-30)));
}

#[test]
fn tanh_is_within_four_ulp_of_its_own_size() {
    assert_within(4.0, worst(tanh, f64::tanh, range(-12.0, 12.0)));
    assert_within(4.0, worst(tanh, f64::tanh, all_scales(1e30)));
}

#[test]
fn decay_is_within_three_ulp() {
    let exact = |x: f64| (-(-0.5_f64).exp() / (1.0 + (-x).exp())).exp();
    assert_within(3.0, worst(decay, exact, range(-40.0, 40.0)));
}

#[test]
fn extremes_are_exact() {
    let limits = |function: fn(Isa, &mut [f32]), inputs: &[f32]| {
        let mut values = inputs.to_vec();
        function(Isa::detect(), &mut values);
        values
    };
    let inf = f32::INFINITY;
    assert_eq!(
        limits(exp, &[0.0, -0.0, inf, -inf, 88.73, -87.34, f32::MAX, f32::MIN, 1e-40]),
        [1.0, 1.0, inf, 0.0, inf, 0.0, inf, 0.0, 1.0]
    );
    // The last input whose power is a number, and the ones beside it.
    let last = 88.722_83f32;
    for isa in Isa::available() {
        let mut powers = [last.next_down(), last, last.next_up(), last.next_up().next_up()];
        exp(*isa, &mut powers);
        assert!(powers[0] < powers[1] && powers[1] <= f32::MAX, "{isa}: {powers:?}");
        assert_eq!(powers[2..], [inf, inf], "{isa}");
        let mut inverse = [-last, -last.next_up()];
        sigmoid(*isa, &mut inverse);
        assert!(inverse.iter().all(|x| (0.0..1e-38).contains(x)), "{isa}: {inverse:?}");
    }
    assert_eq!(limits(sigmoid, &[0.0, inf, -inf, 1e30, -1e30]), [0.5, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(limits(tanh, &[inf, -inf, 1e30, -1e30, 9.5]), [1.0, -1.0, 1.0, -1.0, 1.0]);
    assert_eq!(limits(relu_squared, &[-inf, -3.0, 3.0, inf, 1e-30]), [0.0, 0.0, 9.0, inf, 0.0]);
    assert_eq!(limits(decay, &[-inf, -200.0]), [1.0, 1.0]);
    let signs: Vec<u32> = limits(tanh, &[0.0, -0.0]).iter().map(|x| x.to_bits()).collect();
    assert_eq!(signs, [0, 0x8000_0000]);
    assert_eq!(limits(relu_squared, &[-0.0])[0].to_bits(), 0);
    for function in [exp, sigmoid, silu, tanh, relu_squared, decay] {
        assert!(limits(function, &[f32::NAN])[0].is_nan());
    }
}
