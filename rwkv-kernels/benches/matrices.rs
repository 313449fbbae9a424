//! Products with row tiles and columns against the limits of the machine, measured in this process.
//!
//! `RWKV_BENCH_MIB` sets the size of the weights that a one-row bench sweeps (1024 by default; more than the last-level
//! cache). The shapes are those of RWKV-7 1.5B.

#![allow(clippy::print_stderr, reason = "limits are printed beside the results")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memmap2::MmapMut;
use rwkv_kernels::{
    Activations, Codec, Columns, Isa, Panels, RowTiles, SparseRows, Team, encode_columns, encode_row_tiles,
    matmul, matmul_columns, outputs_per_task, probe,
};

const OUT: usize = 8192;
const IN: usize = 2048;
/// Tiles of a task.
const TASK_TILES: usize = 8;

fn floats(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A value for a share of the places, zero elsewhere.
fn sparse(n: usize, share: f64, seed: u32) -> Vec<f32> {
    let limit = (share * f64::from(u32::MAX)) as u32;
    (0..n as u32)
        .map(|i| {
            let hash = (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519);
            if hash <= limit { 0.5 + (i % 7) as f32 } else { 0.0 }
        })
        .collect()
}

fn threads() -> impl Iterator<Item = usize> {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2].into_iter().filter(move |&n| n <= available)
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::available().iter().copied().filter(|&isa| isa != Isa::scalar())
}

fn swept_bytes() -> usize {
    let mib = std::env::var("RWKV_BENCH_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    mib << 20
}

/// Memory of the kind that the weights of a model are held in: of huge pages, where there are any.
fn memory_of(len: usize) -> MmapMut {
    let memory = MmapMut::map_anon(len).expect("memory");
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory
}

/// Copies of a matrix that fill the swept size.
fn copies_to_sweep(matrix: &[u8]) -> MmapMut {
    copies(matrix, swept_bytes().div_ceil(matrix.len()).max(1))
}

fn copies(matrix: &[u8], count: usize) -> MmapMut {
    let mut all = memory_of(count * matrix.len());
    all.chunks_exact_mut(matrix.len()).for_each(|copy| copy.copy_from_slice(matrix));
    all
}

fn memory(c: &mut Criterion) {
    let mut buffer = memory_of(swept_bytes());
    buffer.fill(1);
    for threads in threads() {
        let mut team = Team::new(threads);
        let isa = Isa::detect();
        eprintln!(
            "limits, {threads} threads: memory {:.1} GB/s, {}",
            probe::memory_bandwidth(isa, &mut team, &buffer, 4) / 1e9,
            isas()
                .map(|isa| format!(
                    "{isa} int8 {:.0} f32 {:.0} GMAC/s",
                    probe::int8_peak(isa, &mut team) / 1e9,
                    probe::f32_peak(isa, &mut team) / 1e9
                ))
                .collect::<Vec<_>>()
                .join(", ")
        );
        let mut group = c.benchmark_group("memory");
        group.sample_size(10).throughput(Throughput::Bytes(buffer.len() as u64));
        group.bench_function(BenchmarkId::new("read", format!("{threads} threads")), |b| {
            b.iter(|| probe::memory_bandwidth(isa, &mut team, &buffer, 1));
        });
    }
}

/// One row of activations: bytes of weights per second, to be compared with the memory's.
fn one_row(c: &mut Criterion) {
    let mut group = c.benchmark_group("row tiles, one row");
    group.sample_size(10);
    for codec in Codec::ALL {
        let mut matrix = Vec::new();
        encode_row_tiles(codec, OUT, IN, &floats(OUT * IN), &mut matrix).expect("fits");
        let len = matrix.len();
        let bytes = copies_to_sweep(&matrix);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        for isa in isas() {
            let mut x = Activations::new();
            let mut row = Panels::zeroed(1, IN, IN);
            row.write_row(0, &floats(IN));
            x.prepare(isa, &row, codec.forms());
            for threads in threads() {
                let mut team = Team::new(threads);
                let mut tasks: Vec<(RowTiles<'_>, Vec<f32>)> = bytes
                    .chunks(len)
                    .flat_map(|matrix| {
                        let w = RowTiles::new(codec, OUT, IN, matrix).expect("encoded");
                        (0..w.tiles()).step_by(TASK_TILES).map(move |t| w.tile_range(t..t + TASK_TILES))
                    })
                    .map(|w| (w, vec![0.0; w.rows()]))
                    .collect();
                group.bench_function(
                    BenchmarkId::new(codec.name(), format!("{isa}, {threads} threads")),
                    |b| {
                        b.iter(|| team.for_each(&mut tasks, |(w, y)| matmul(isa, *w, &x, y)));
                    },
                );
            }
        }
    }
}

/// Many rows of activations: multiply-adds per second, to be compared with the peak.
fn many_rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("row tiles, many rows");
    group.sample_size(10);
    for codec in [Codec::U8, Codec::U4, Codec::I8, Codec::F16] {
        let mut matrix = Vec::new();
        encode_row_tiles(codec, OUT, IN, &floats(OUT * IN), &mut matrix).expect("fits");
        let bytes = copies(&matrix, 1);
        let w = RowTiles::new(codec, OUT, IN, &bytes).expect("encoded");
        for isa in isas() {
            for n in [2, 4, 8, 256] {
                group.throughput(Throughput::Elements((OUT * IN * n) as u64));
                let mut x = Activations::new();
                let mut rows = Panels::zeroed(n, IN, IN);
                rows.as_mut_slice().copy_from_slice(&floats(n * IN));
                x.prepare(isa, &rows, codec.forms());
                for threads in threads() {
                    let mut team = Team::new(threads);
                    let mut y = Panels::zeroed(n, OUT, TASK_TILES * 16);
                    let mut tasks: Vec<(RowTiles<'_>, &mut [f32])> = y
                        .panels_mut()
                        .enumerate()
                        .map(|(p, y)| (w.tile_range(p * TASK_TILES..(p + 1) * TASK_TILES), y))
                        .collect();
                    let id = BenchmarkId::new(codec.name(), format!("{isa}, {n} rows, {threads} threads"));
                    group.bench_function(id, |b| {
                        b.iter(|| team.for_each(&mut tasks, |(w, y)| matmul(isa, *w, &x, y)));
                    });
                }
            }
        }
    }
}

/// Columns: bytes of the dense matrix per second, skipped or not.
fn columns(c: &mut Criterion) {
    let mut group = c.benchmark_group("columns, one row");
    group.sample_size(10);
    // The value matrix: outputs and inputs the other way round.
    let (out, cols) = (IN, OUT);
    for codec in [Codec::U8, Codec::F16, Codec::U4] {
        let mut matrix = Vec::new();
        encode_columns(codec, out, cols, &floats(out * cols), 0..cols, &mut matrix).expect("fits");
        let len = matrix.len();
        let bytes = copies_to_sweep(&matrix);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        for isa in isas() {
            for share in [0.14, 1.0] {
                // Each matrix has active columns of its own, as each layer has.
                let matrices: Vec<(Columns<'_>, SparseRows)> = bytes
                    .chunks(len)
                    .enumerate()
                    .map(|(m, matrix)| {
                        let mut row = Panels::zeroed(1, cols, cols);
                        row.write_row(0, &sparse(cols, share, m as u32 * 7919));
                        let mut x = SparseRows::new();
                        x.gather(isa, &row);
                        (Columns::new(codec, out, cols, matrix).expect("encoded"), x)
                    })
                    .collect();
                for threads in threads() {
                    let mut team = Team::new(threads);
                    let width = outputs_per_task(out, 1, threads);
                    let mut y = Panels::zeroed(1, out, width);
                    let id = BenchmarkId::new(
                        codec.name(),
                        format!("{isa}, {:.0} % active, {threads} threads", share * 100.0),
                    );
                    group.bench_function(id, |b| {
                        b.iter(|| {
                            for (w, x) in &matrices {
                                let mut tasks: Vec<(usize, &mut [f32])> =
                                    y.panels_mut().enumerate().collect();
                                team.for_each(&mut tasks, |(p, y)| {
                                    matmul_columns(isa, *w, *p * width..(*p + 1) * width, x, y);
                                });
                            }
                        });
                    });
                }
            }
        }
    }
    group.finish();

    let mut group = c.benchmark_group("columns, many rows");
    group.sample_size(10);
    for codec in [Codec::U8, Codec::F16] {
        let mut matrix = Vec::new();
        encode_columns(codec, out, cols, &floats(out * cols), 0..cols, &mut matrix).expect("fits");
        let bytes = copies(&matrix, 1);
        let w = Columns::new(codec, out, cols, &bytes).expect("encoded");
        for isa in isas() {
            for n in [4, 8, 16, 256] {
                group.throughput(Throughput::Elements((out * cols * n) as u64));
                let mut rows = Panels::zeroed(n, cols, cols);
                rows.as_mut_slice().copy_from_slice(&sparse(n * cols, 0.14, 1));
                let mut x = SparseRows::new();
                x.gather(isa, &rows);
                for threads in threads() {
                    let mut team = Team::new(threads);
                    let width = outputs_per_task(out, n, threads);
                    let mut y = Panels::zeroed(n, out, width);
                    let mut tasks: Vec<(usize, &mut [f32])> = y.panels_mut().enumerate().collect();
                    let id = BenchmarkId::new(
                        codec.name(),
                        format!("{isa}, {n} rows, 14 % active, {threads} threads"),
                    );
                    group.bench_function(id, |b| {
                        b.iter(|| {
                            team.for_each(&mut tasks, |(p, y)| {
                                matmul_columns(isa, w, *p * width..(*p + 1) * width, &x, y);
                            });
                        });
                    });
                }
            }
        }
    }
}

/// A phase of as many empty items as threads: the price of a hand-off.
fn hand_off(c: &mut Criterion) {
    let mut group = c.benchmark_group("team");
    for threads in threads() {
        let mut team = Team::new(threads);
        let mut items = vec![0u64; threads];
        group.bench_function(BenchmarkId::new("hand-off", format!("{threads} threads")), |b| {
            b.iter(|| team.for_each(&mut items, |item| *item = black_box(*item + 1)));
        });
    }
}

criterion_group!(benches, memory, hand_off, one_row, many_rows, columns);
criterion_main!(benches);
