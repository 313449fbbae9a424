//! Work for the probes in plain loops; nothing here is a definition.

use std::hint::black_box;

/// A sum of all bytes of a kind, so that all are read.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail = rest.iter().map(|&b| u64::from(b)).sum::<u64>();
    words.iter().fold(tail, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

/// Multiplies and adds; returns how often.
pub(crate) fn int8(rounds: usize) -> usize {
    let (w, x) = (black_box([3u8; 64]), black_box([-5i8; 64]));
    let mut sums = [0i32; 16];
    for _ in 0..rounds {
        for (i, (&w, &x)) in w.iter().zip(&x).enumerate() {
            sums[i / 4] = sums[i / 4].wrapping_add(i32::from(w) * i32::from(x));
        }
        sums = black_box(sums);
    }
    64 * rounds
}

/// Multiplies and adds; returns how often.
pub(crate) fn f32(rounds: usize) -> usize {
    let (w, x) = (black_box([0.5f32; 16]), black_box(0.25f32));
    let mut sums = [0.0f32; 16];
    for _ in 0..rounds {
        for (sum, w) in sums.iter_mut().zip(&w) {
            *sum = w.mul_add(x, *sum);
        }
        sums = black_box(sums);
    }
    16 * rounds
}
