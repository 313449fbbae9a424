//! Element-wise functions and norms on a row that stays in the nearest cache, in elements per second.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rwkv_kernels::{
    HeadOutput, HeadParams, HeadRows, Isa, add_assign, decay, exp, head_output, layer_norm, mix,
    prepare_head, relu_squared, sigmoid, softmax, tanh,
};

/// Channels of a model of 1.5 billion parameters.
const CHANNELS: usize = 2048;
const HEAD: usize = 64;
const TOKENS: usize = 32;

fn row(len: usize, scale: f32) -> Vec<f32> {
    (0..len).map(|i| scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect()
}

fn bench(c: &mut Criterion, name: &str, elements: usize, mut run: impl FnMut(Isa)) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(elements as u64));
    for &isa in Isa::available() {
        group.bench_function(BenchmarkId::new(isa.name(), elements), |b| b.iter(|| run(isa)));
    }
}

fn elementwise(c: &mut Criterion) {
    let x = row(CHANNELS, 4.0);
    let mut y = x.clone();
    let functions = [
        ("exp", exp as fn(Isa, &mut [f32])),
        ("sigmoid", sigmoid),
        ("tanh", tanh),
        ("decay", decay),
        ("relu_squared", relu_squared),
        ("softmax", softmax),
    ];
    for (name, function) in functions {
        bench(c, name, CHANNELS, |isa| {
            y.copy_from_slice(&x);
            function(isa, black_box(&mut y));
        });
    }
    let (weight, bias) = (row(CHANNELS, 1.0), row(CHANNELS, 0.5));
    bench(c, "add_assign", CHANNELS, |isa| add_assign(isa, black_box(&mut y), &x));
    bench(c, "mix", CHANNELS, |isa| mix(isa, &x, &bias, &weight, black_box(&mut y)));
    bench(c, "layer_norm", CHANNELS, |isa| layer_norm(isa, &x, &weight, &bias, 1e-5, black_box(&mut y)));
}

fn heads(c: &mut Criterion) {
    let vector = row(HEAD, 1.0);
    let input = row(HEAD * TOKENS, 2.0);
    let [mut w, mut a, mut k, mut kk, mut y] = [(); 5].map(|()| input.clone());
    let params = HeadParams { w0: &vector, a0: &vector, k_k: &vector, k_a: &vector };
    bench(c, "prepare_head", HEAD * TOKENS, |isa| {
        w.copy_from_slice(&input);
        a.copy_from_slice(&input);
        k.copy_from_slice(&input);
        prepare_head(isa, params, HeadRows { w: &mut w, a: &mut a, k: &mut k, kk: black_box(&mut kk) });
    });
    let output = HeadOutput {
        r_k: &vector,
        ln_w: &vector,
        ln_b: &vector,
        eps: 64e-5,
        r: &input,
        k: &input,
        v: &input,
        g: &input,
    };
    bench(c, "head_output", HEAD * TOKENS, |isa| {
        y.copy_from_slice(&input);
        head_output(isa, output, black_box(&mut y));
    });
}

criterion_group!(benches, elementwise, heads);
criterion_main!(benches);
