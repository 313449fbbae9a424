//! The kernels alone: one matrix in every codec, its error, and the same bits whoever computes it.

use std::error::Error;

use rwkv_kernels::{Activations, Codec, Isa, Panels, RowTiles, Team, encode_row_tiles, matmul};

const OUTPUTS: usize = 256;
const INPUTS: usize = 512;
/// Tiles of a task: 16 outputs each.
const TASK_TILES: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let weights = noise(1, OUTPUTS * INPUTS);
    let mut x = Panels::zeroed(1, INPUTS, INPUTS);
    x.write_row(0, &noise(2, INPUTS));
    let exact: Vec<f64> = weights.chunks(INPUTS).map(|row| dot(row, x.as_slice())).collect();

    println!("codec  bits per weight  relative error");
    for codec in Codec::ALL {
        let mut bytes = Vec::new();
        encode_row_tiles(codec, OUTPUTS, INPUTS, &weights, &mut bytes)?;
        let w = RowTiles::new(codec, OUTPUTS, INPUTS, &bytes)?;

        let y = multiply(Isa::detect(), 1, w, &x);
        for &isa in Isa::available() {
            for threads in 1..=4 {
                assert_eq!(multiply(isa, threads, w, &x), y, "{codec} on {isa} with {threads} threads");
            }
        }
        let bits = 8.0 * bytes.len() as f64 / weights.len() as f64;
        println!("{codec:<6} {bits:>15}  {:>14.0e}", relative_error(&y, &exact));
    }
    println!("every instruction set and number of threads gave the same bits");
    Ok(())
}

/// `W x`, its outputs shared out over the threads of a team.
fn multiply(isa: Isa, threads: usize, w: RowTiles<'_>, x: &Panels) -> Vec<f32> {
    let mut input = Activations::new();
    input.prepare(isa, x, w.codec().forms());
    let mut y = vec![0.0; w.rows()];
    let mut tasks: Vec<_> = y.chunks_mut(16 * TASK_TILES).enumerate().collect();
    Team::new(threads).for_each(&mut tasks, |(task, y)| {
        let tiles = *task * TASK_TILES..(*task + 1) * TASK_TILES;
        matmul(isa, w.tile_range(tiles), &input, y);
    });
    y
}

fn dot(row: &[f32], x: &[f32]) -> f64 {
    row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum()
}

fn relative_error(found: &[f32], exact: &[f64]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = squares(&mut found.iter().zip(exact).map(|(&a, &b)| f64::from(a) - b));
    (off / squares(&mut exact.iter().copied())).sqrt()
}

/// Numbers between -1 and 1.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut bits = seed;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
