//! One query of a head of 64 over 2k, 8k and 32k rows: bytes of keys and values per second, each read once.
//!
//! The heads are taken in turn, so that a cache is read from where a model's would be: memory, once all heads are larger
//! than what the processor keeps.
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rwkv_kernels::{Isa, KvBlock, KvHead, KvRows, attend};

const N: usize = 64;
const BLOCK_ROWS: usize = 64;
/// Of all heads together.
const BYTES: usize = 256 << 20;

fn attention(c: &mut Criterion) {
    let numbers = |i: usize| (i * 37 % 101) as f32 / 50.0 - 1.0;
    let q: Vec<f32> = (0..N).map(numbers).collect();
    let singles: Vec<f32> = (0..BYTES / 4).map(numbers).collect();
    let halves: Vec<u16> =
        (0..BYTES / 2).map(|i| 0x3000 + (i * 37 % 1021) as u16 + ((i as u16 & 1) << 15)).collect();
    for format in ["f16", "f32"] {
        let mut blocks: Vec<KvBlock<'_>> = match format {
            "f16" => halves
                .chunks_exact(2 * BLOCK_ROWS * N)
                .map(|both| both.split_at(BLOCK_ROWS * N))
                .map(|(keys, values)| KvBlock { keys: KvRows::F16(keys), values: KvRows::F16(values) })
                .collect(),
            _ => singles
                .chunks_exact(2 * BLOCK_ROWS * N)
                .map(|both| both.split_at(BLOCK_ROWS * N))
                .map(|(keys, values)| KvBlock { keys: KvRows::F32(keys), values: KvRows::F32(values) })
                .collect(),
        };
        let row_bytes = if format == "f16" { 4 * N } else { 8 * N };
        let mut group = c.benchmark_group(format!("attention/{format}"));
        for rows in [2 << 10, 8 << 10, 32 << 10] {
            group.throughput(Throughput::Bytes((rows * row_bytes) as u64));
            for &isa in Isa::available().iter().skip(1) {
                let (mut weights, mut y) = (Vec::new(), [0.0; N]);
                group.bench_function(BenchmarkId::new(isa.name(), format!("{rows} rows")), |b| {
                    b.iter(|| {
                        blocks.rotate_left(rows / BLOCK_ROWS);
                        let head =
                            KvHead { n: N, block_rows: BLOCK_ROWS, blocks: &blocks[..rows / BLOCK_ROWS] };
                        attend(isa, black_box(&q), head, &[0..rows], &mut weights, black_box(&mut y));
                    });
                });
            }
        }
    }
}

criterion_group!(benches, attention);
criterion_main!(benches);
