//! Every instruction set gives the bits of the definitions: element-wise functions, norms, reductions.

mod bits;

use bits::{Numbers, assert_equal_bits};
use rwkv_kernels::{
    HeadOutput, HeadParams, HeadRows, Isa, add_assign, add_bias, decay, dot, exp, head_output, l2_normalize,
    layer_norm, mix, mix_value, mul_assign, prepare_head, relu_squared, sigmoid, silu, softmax, tanh,
};

const LENGTHS: [usize; 16] = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 100, 768, 1000];

/// One named function on a slice in place.
type Named = (&'static str, fn(Isa, &mut [f32]));

const IN_PLACE: [Named; 8] = [
    ("exp", exp),
    ("sigmoid", sigmoid),
    ("silu", silu),
    ("tanh", tanh),
    ("relu_squared", relu_squared),
    ("decay", decay),
    ("softmax", softmax),
    ("l2_normalize", l2_normalize),
];

/// Input sets of one length: wild values, ordinary ones, tiny ones, equal ones.
fn inputs(seed: u64, len: usize) -> [Vec<f32>; 4] {
    let mut numbers = Numbers::new(seed);
    [
        numbers.wild(len),
        numbers.vector(len, -8.0, 8.0),
        numbers.vector(len, -1e-30, 1e-30),
        vec![numbers.uniform(-1.0, 1.0); len],
    ]
}

#[test]
fn functions_in_place() {
    for (name, function) in IN_PLACE {
        for len in LENGTHS {
            for x in inputs(len as u64 + 1, len) {
                assert_equal_bits(name, &x, function);
            }
        }
    }
}

#[test]
fn functions_of_every_kind_of_float() {
    let x: Vec<f32> = (0..=u32::MAX).step_by(10_007).map(f32::from_bits).collect();
    for (name, function) in &IN_PLACE[..6] {
        assert_equal_bits(name, &x, function);
    }
}

#[test]
fn two_operands() {
    for len in LENGTHS {
        for (x, y) in inputs(3, len).into_iter().zip(inputs(4, len)) {
            assert_equal_bits("add_assign", &y, |isa, y| add_assign(isa, y, &x));
            assert_equal_bits("mul_assign", &y, |isa, y| mul_assign(isa, y, &x));
            assert_equal_bits("dot", &[0.0], |isa, result| result[0] = dot(isa, &x, &y));
        }
    }
}

#[test]
fn rows_with_a_vector() {
    for n in LENGTHS {
        for rows in [0, 1, 3] {
            for kind in 0..4 {
                let vector = |seed| inputs(seed, n)[kind].clone();
                let matrix = |seed| inputs(seed, n * rows)[kind].clone();
                let (x, other, third) = (matrix(5), matrix(6), matrix(7));
                let (weight, bias) = (vector(8), vector(9));
                assert_equal_bits("add_bias", &x, |isa, x| add_bias(isa, x, &bias));
                assert_equal_bits("mix", &x, |isa, y| mix(isa, &third, &other, &weight, y));
                assert_equal_bits("mix_value", &x, |isa, v| mix_value(isa, &weight, &other, &third, v));
                assert_equal_bits("layer_norm", &x, |isa, y| {
                    layer_norm(isa, &other, &weight, &bias, 1e-5, y);
                });
            }
        }
    }
}

#[test]
fn heads() {
    for n in LENGTHS {
        for rows in [0, 1, 3] {
            for kind in 0..4 {
                let vector = |seed| inputs(seed, n)[kind].clone();
                let matrix = |seed| inputs(seed, n * rows)[kind].clone();
                let [p0, p1, p2, p3] = [10, 11, 12, 13].map(vector);
                let [m0, m1, m2, m3] = [14, 15, 16, 17].map(matrix);
                let output =
                    HeadOutput { r_k: &p0, ln_w: &p1, ln_b: &p2, eps: 64e-5, r: &m0, k: &m1, v: &m2, g: &m3 };
                assert_equal_bits("head_output", &matrix(18), |isa, y| head_output(isa, output, y));
                let params = HeadParams { w0: &p0, a0: &p1, k_k: &p2, k_a: &p3 };
                let all = [m0.clone(), m1.clone(), m2.clone(), m3.clone()].concat();
                assert_equal_bits("prepare_head", &all, |isa, all| {
                    let (w, rest) = all.split_at_mut(n * rows);
                    let (a, rest) = rest.split_at_mut(n * rows);
                    let (k, kk) = rest.split_at_mut(n * rows);
                    prepare_head(isa, params, HeadRows { w, a, k, kk });
                });
            }
        }
    }
}

/// The sum of 16 products that vanish is -0; a 17th, absent one must not be lost on the way.
#[test]
fn vanishing_sums() {
    for len in LENGTHS {
        let (x, y) = (vec![1e-30; len], vec![-1e-30; len]);
        assert_equal_bits("dot", &[1.0], |isa, result| result[0] = dot(isa, &x, &y));
    }
}
