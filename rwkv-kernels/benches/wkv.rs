//! WKV-7 for one head: bytes of state read and written per second, once each for a token.
//!
//! `state/aligned` is what a model has; `state/unaligned` is 4 bytes off a multiple of 64.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rwkv_kernels::{Isa, Wkv7, wkv7};

/// Index of the first element of `buffer` whose address is a multiple of 64.
fn aligned(buffer: &[f32]) -> usize {
    (buffer.as_ptr().addr().next_multiple_of(64) - buffer.as_ptr().addr()) / 4
}

fn wkv(c: &mut Criterion) {
    for (n, tokens, offset) in [(64, 1, 0), (64, 256, 0), (64, 256, 1), (32, 256, 0), (128, 256, 0)] {
        let alignment = if offset == 0 { "aligned" } else { "unaligned" };
        let mut group = c.benchmark_group(format!("wkv7/{alignment}/n{n}"));
        group.throughput(Throughput::Bytes((2 * 4 * n * n * tokens) as u64));
        let row = |scale: f32, shift: f32| -> Vec<f32> {
            (0..n * tokens).map(|i| shift + scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect()
        };
        let (r, w, k, v) = (row(1.0, 0.0), row(0.2, 0.77), row(1.0, 0.0), row(1.0, 0.0));
        let (kk, kka) = (row(0.1, 0.0), row(0.05, 0.0));
        let head = Wkv7 { n, r: &r, w: &w, k: &k, v: &v, kk: &kk, kka: &kka };
        let mut buffer = vec![0.0; n * n + 32];
        let start = aligned(&buffer) + offset;
        let state = &mut buffer[start..start + n * n];
        let mut y = vec![0.0; n * tokens];
        for &isa in Isa::available() {
            if isa == Isa::scalar() && tokens > 1 && n != 64 {
                continue;
            }
            group.bench_function(BenchmarkId::new(isa.name(), format!("{tokens} tokens")), |b| {
                b.iter(|| wkv7(isa, black_box(head), state, black_box(&mut y)));
            });
        }
    }
}

criterion_group!(benches, wkv);
criterion_main!(benches);
