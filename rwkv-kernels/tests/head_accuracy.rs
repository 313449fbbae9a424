//! Norms and the functions of a head against the same formulas in double precision.

mod bits;

use bits::Numbers;
use rwkv_kernels::{
    HeadOutput, HeadParams, HeadRows, Isa, dot, head_output, l2_normalize, layer_norm, mix_value,
    prepare_head, softmax,
};

const N: usize = 64;
const ROWS: usize = 5;

#[track_caller]
fn assert_close(name: &str, got: &[f32], exact: &[f64], limit: f64) {
    assert_eq!(got.len(), exact.len());
    for (i, (&got, &exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(got) - exact).abs();
        assert!(error <= limit * exact.abs().max(1.0), "{name}[{i}] is {got}, not {exact}");
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Layer norm of one row.
fn normed(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (var + eps).sqrt();
    x.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
}

#[test]
fn layer_norm_of_rows_far_from_zero() {
    let numbers = &mut Numbers::new(1);
    let (weight, bias) = (numbers.vector(768, -2.0, 2.0), numbers.vector(768, -1.0, 1.0));
    let x = numbers.vector(768 * ROWS, 99.0, 101.0);
    let mut y = vec![0.0; x.len()];
    layer_norm(Isa::detect(), &x, &weight, &bias, 1e-5, &mut y);
    let exact: Vec<f64> =
        wide(&x).chunks(768).flat_map(|x| normed(x, &wide(&weight), &wide(&bias), 1e-5)).collect();
    assert_close("y", &y, &exact, 1e-4);
}

#[test]
fn a_constant_row_becomes_the_bias() {
    let mut y = [0.0; 32];
    layer_norm(Isa::detect(), &[7.5; 32], &[3.0; 32], &[0.25; 32], 1e-5, &mut y);
    assert_eq!(y, [0.25; 32]);
}

#[test]
fn lengths_and_shares() {
    let isa = Isa::detect();
    let mut x = [0.0_f32; 20];
    l2_normalize(isa, &mut x);
    assert_eq!(x, [0.0; 20], "nothing has no direction");
    x[3] = -3e-20;
    l2_normalize(isa, &mut x);
    assert!((x[3] + 3e-8).abs() < 1e-13, "shorter than 1e-12: divided by that, {}", x[3]);
    let mut x: Vec<f32> = vec![3.0, 0.0, -4.0];
    l2_normalize(isa, &mut x);
    assert_close("l2", &x, &[0.6, 0.0, -0.8], 1e-7);

    let mut x = [1.0, f32::NEG_INFINITY, 3.0, 2.0];
    softmax(isa, &mut x);
    let sum: f64 = [1.0, 3.0, 2.0].map(f64::exp).iter().sum();
    let exact = [1.0_f64.exp() / sum, 0.0, 3.0_f64.exp() / sum, 2.0_f64.exp() / sum];
    assert_close("softmax", &x, &exact, 1e-7);
    let mut x = [1000.0, -1000.0];
    softmax(isa, &mut x);
    assert_eq!(x, [1.0, 0.0]);
    for poison in [f32::NAN, f32::INFINITY] {
        let mut x = vec![0.0; 40];
        x[33] = poison;
        softmax(isa, &mut x);
        assert!(x.iter().all(|x| x.is_nan()), "{poison}: {x:?}");
    }
    assert_eq!(dot(isa, &[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 32.0);
    assert_eq!(dot(isa, &[], &[]), 0.0);
}

#[test]
fn inputs_of_a_head() {
    let numbers = &mut Numbers::new(2);
    let [w0, a0, k_k, k_a] = [(); 4].map(|()| numbers.vector(N, -2.0, 2.0));
    let [w, a, k] = [(); 3].map(|()| numbers.vector(N * ROWS, -3.0, 3.0));
    let (mut w_out, mut a_out, mut k_out, mut kk) = (w.clone(), a.clone(), k.clone(), vec![0.0; N * ROWS]);
    prepare_head(
        Isa::detect(),
        HeadParams { w0: &w0, a0: &a0, k_k: &k_k, k_a: &k_a },
        HeadRows { w: &mut w_out, a: &mut a_out, k: &mut k_out, kk: &mut kk },
    );
    for row in 0..ROWS {
        let at = |x: &[f32], i: usize| f64::from(x[row * N + i]);
        let vector = |x: &[f32], i: usize| f64::from(x[i]);
        let norm = (0..N).map(|i| (at(&k, i) * vector(&k_k, i)).powi(2)).sum::<f64>().sqrt();
        let rate = |i| sigmoid(vector(&a0, i) + at(&a, i));
        let decay = |i| (-(-0.5_f64).exp() * sigmoid(vector(&w0, i) + at(&w, i))).exp();
        let removal = |i| at(&k, i) * vector(&k_k, i) / norm;
        let key = |i| at(&k, i) * (1.0 + (rate(i) - 1.0) * vector(&k_a, i));
        let exact = |f: &dyn Fn(usize) -> f64| (0..N).map(f).collect::<Vec<_>>();
        let range = row * N..(row + 1) * N;
        assert_close("w", &w_out[range.clone()], &exact(&decay), 1e-6);
        assert_close("kk", &kk[range.clone()], &exact(&removal), 1e-6);
        assert_close("k", &k_out[range.clone()], &exact(&key), 1e-6);
        assert_close("kka", &a_out[range], &exact(&|i| removal(i) * rate(i)), 1e-6);
    }
}

#[test]
fn output_of_a_head() {
    let numbers = &mut Numbers::new(3);
    let [r_k, ln_w, ln_b] = [(); 3].map(|()| numbers.vector(N, -1.0, 1.0));
    let [r, k, v, g, y] = [(); 5].map(|()| numbers.vector(N * ROWS, -2.0, 2.0));
    let mut out = y.clone();
    let head = HeadOutput { r_k: &r_k, ln_w: &ln_w, ln_b: &ln_b, eps: 64e-5, r: &r, k: &k, v: &v, g: &g };
    head_output(Isa::detect(), head, &mut out);
    for row in 0..ROWS {
        let range = row * N..(row + 1) * N;
        let of = |x: &[f32]| wide(&x[range.clone()]);
        let (r, k, v, g, y) = (of(&r), of(&k), of(&v), of(&g), of(&y));
        let bonus: f64 = (0..N).map(|i| r[i] * k[i] * f64::from(r_k[i])).sum();
        let normed = normed(&y, &wide(&ln_w), &wide(&ln_b), f64::from(64e-5_f32));
        let exact: Vec<f64> = (0..N).map(|i| (normed[i] + bonus * v[i]) * g[i]).collect();
        assert_close("y", &out[range], &exact, 1e-5);
    }
}

#[test]
fn values_mix_with_the_first_ones() {
    let numbers = &mut Numbers::new(4);
    let v0 = numbers.vector(N, -2.0, 2.0);
    let [gate, v_first, v] = [(); 3].map(|()| numbers.vector(N * ROWS, -3.0, 3.0));
    let mut out = v.clone();
    mix_value(Isa::detect(), &v0, &gate, &v_first, &mut out);
    let exact: Vec<f64> = (0..N * ROWS)
        .map(|i| {
            let [v, first, gate, v0] = [v[i], v_first[i], gate[i], v0[i % N]].map(f64::from);
            v + (first - v) * sigmoid(v0 + gate)
        })
        .collect();
    assert_close("v", &out, &exact, 1e-6);
}

#[test]
#[should_panic(expected = "100 elements are not whole rows of 64 elements")]
fn broken_rows_are_refused() {
    layer_norm(Isa::scalar(), &[0.0; 100], &[1.0; 64], &[0.0; 64], 1e-5, &mut [0.0; 100]);
}
