//! Attention of heads of 64 over 2k, 8k and 32k rows, held against the limits of the machine in the same process.
//!
//! Decoding reads each key and value once for one query, so it is held against the bandwidth of the memory, which is measured
//! in turns with it. The heads together are larger than what the processor keeps, as those of a model are. A prompt's queries
//! share what they read, so they are arithmetic, and held against the peak of the multiply-adds.
//!
//! All figures are medians. It takes about a minute.
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]
#![allow(clippy::print_stdout, reason = "a bench prints its results")]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use rwkv_kernels::{Isa, KvBlock, KvFormat, KvHead, KvRows, Team, attend, attend_each, probe};

const N: usize = 64;
const BLOCK_ROWS: usize = 64;
/// Of all heads together.
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;
/// Queries of a prompt, and the rows that they go over.
const PROMPT: usize = 64;
const PROMPT_ROWS: usize = 8 << 10;

/// Keys and values of all heads, as they are stored.
struct Stored {
    f32: Vec<f32>,
    f16: Vec<u16>,
}

impl Stored {
    fn new() -> Stored {
        let f32 = (0..BYTES / 4).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let f16 = (0..BYTES / 2).map(|i| 0x3000 + (i * 37 % 1021) as u16 + ((i as u16 & 1) << 15)).collect();
        Stored { f32, f16 }
    }

    fn blocks(&self, format: KvFormat) -> Vec<KvBlock<'_>> {
        const HALF: usize = BLOCK_ROWS * N;
        match format {
            KvFormat::F32 => {
                let halves = self.f32.chunks_exact(2 * HALF).map(|both| both.split_at(HALF));
                halves.map(|(k, v)| KvBlock { keys: KvRows::F32(k), values: KvRows::F32(v) }).collect()
            }
            KvFormat::F16 => {
                let halves = self.f16.chunks_exact(2 * HALF).map(|both| both.split_at(HALF));
                halves.map(|(k, v)| KvBlock { keys: KvRows::F16(k), values: KvRows::F16(v) }).collect()
            }
        }
    }
}

/// A head and what its task writes.
struct Task<'a> {
    blocks: &'a [KvBlock<'a>],
    weights: Vec<f32>,
    y: Vec<f32>,
}

impl<'a> Task<'a> {
    fn all(blocks: &'a [KvBlock<'a>], rows: usize, queries: usize) -> Vec<Task<'a>> {
        let heads = blocks.chunks_exact(rows / BLOCK_ROWS);
        heads.map(|blocks| Task { blocks, weights: Vec::new(), y: vec![0.0; queries * N] }).collect()
    }

    fn head(&self) -> KvHead<'a> {
        KvHead { n: N, block_rows: BLOCK_ROWS, blocks: self.blocks }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// One query of each head.
fn decode(isa: Isa, threads: usize, stored: &Stored, q: &[f32]) {
    let mut team = Team::new(threads);
    let probed = vec![1; BYTES];
    for format in [KvFormat::F16, KvFormat::F32] {
        let blocks = stored.blocks(format);
        for rows in [2 << 10, 8 << 10, 32 << 10] {
            let mut tasks = Task::all(&blocks, rows, 1);
            let (mut speeds, mut shares) = (Vec::new(), Vec::new());
            for round in 0..=ROUNDS {
                let memory = probe::memory_bandwidth(isa, &mut team, &probed, 1);
                let time = seconds(|| {
                    team.for_each(&mut tasks, |task| {
                        let head = task.head();
                        attend(isa, black_box(q), head, &[0..rows], &mut task.weights, &mut task.y);
                    });
                });
                let speed = (tasks.len() * rows * 2 * N * format.bytes()) as f64 / time;
                // The first round finds the lists of weights without memory.
                if round > 0 {
                    speeds.push(speed);
                    shares.push(speed / memory);
                }
            }
            let (speed, share) = (median(speeds) / 1e9, 100.0 * median(shares));
            println!(
                "decode   {isa:<12} {threads} threads  {format}  {rows:>6} rows  {speed:>6.1} GB/s  {share:>4.0} % of memory"
            );
        }
    }
}

/// Queries of a prompt, each after the other and together.
fn prefill(isa: Isa, threads: usize, stored: &Stored, q: &[f32]) {
    let mut team = Team::new(threads);
    let ranges: Vec<Range<usize>> = (0..PROMPT).map(|query| 0..PROMPT_ROWS - PROMPT + query + 1).collect();
    let visible: Vec<&[Range<usize>]> = ranges.iter().map(std::slice::from_ref).collect();
    let seen: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    for format in [KvFormat::F16, KvFormat::F32] {
        let blocks = stored.blocks(format);
        let mut tasks = Task::all(&blocks, PROMPT_ROWS, PROMPT);
        tasks.truncate(4 * threads);
        let (mut alone, mut together, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let peak = probe::f32_peak(isa, &mut team);
            alone.push(seconds(|| {
                team.for_each(&mut tasks, |task| {
                    let head = task.head();
                    let rows = q.chunks_exact(N).zip(task.y.chunks_exact_mut(N)).zip(&visible);
                    for ((q, y), visible) in rows {
                        attend(isa, q, head, visible, &mut task.weights, y);
                    }
                });
            }));
            let time = seconds(|| {
                team.for_each(&mut tasks, |task| {
                    let head = task.head();
                    attend_each(isa, black_box(q), head, &visible, &mut task.weights, &mut task.y);
                });
            });
            together.push(time);
            shares.push((tasks.len() * seen * 2 * N) as f64 / time / peak);
        }
        let per_query =
            |times: Vec<f64>| 1e6 * median(times) * threads as f64 / (tasks.len() * PROMPT) as f64;
        println!(
            "prefill  {isa:<12} {threads} threads  {format}  {PROMPT_ROWS:>6} rows  {:>6.0} us/query alone  {:>4.0} together  {:>4.0} % of f32 peak",
            per_query(alone),
            per_query(together),
            100.0 * median(shares)
        );
    }
}

fn main() {
    let stored = Stored::new();
    let q: Vec<f32> = (0..PROMPT * N).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = Isa::from_env().expect("RWKV_ISA names an instruction set of this machine");
    for threads in [1, 2].into_iter().filter(|&threads| threads <= available) {
        decode(isa, threads, &stored, &q[..N]);
        prefill(isa, threads, &stored, &q);
    }
}
