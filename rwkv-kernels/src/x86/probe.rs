//! Work for the probes, over the operations that the kernels use.

#![allow(clippy::needless_range_loop, reason = "arrays of registers are indexed alike")]

use std::hint::black_box;

use crate::scalar;
use crate::x86::tile_ops::{Avx2, Avx512, Avx512Vnni, TileOps};

/// The functions of this file, compiled for one instruction set.
macro_rules! probes {
    ($($module:ident: $ops:ty, $w:literal x $x:literal, $features:literal;)*) => {$(
        pub(crate) mod $module {
            use super::*;

            /// # Safety
            /// The instruction set exists.
            #[target_feature(enable = $features)]
            #[allow(dead_code, reason = "both AVX-512 variants read and multiply floats alike")]
            pub(crate) unsafe fn read(bytes: &[u8]) -> u64 {
                // SAFETY: handed on.
                unsafe { super::read::<$ops>(bytes) }
            }

            /// # Safety
            /// The instruction set exists.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn int8(rounds: usize) -> usize {
                // SAFETY: handed on.
                unsafe { super::int8::<$ops, $w, $x>(rounds) }
            }

            /// # Safety
            /// The instruction set exists.
            #[target_feature(enable = $features)]
            #[allow(dead_code, reason = "as above")]
            pub(crate) unsafe fn f32(rounds: usize) -> usize {
                // SAFETY: handed on.
                unsafe { super::f32::<$ops, { $w * $x }>(rounds) }
            }
        }
    )*};
}

// How many independent sums: enough to hide the latency of an operation in all units that execute it (cores have up to two of
// 512 bits with a latency of up to 5), and few enough for sums and operands to stay in registers, of which AVX2 has 16, and a sum
// takes two.
probes! {
    avx2: Avx2, 1 x 5, "avx2,fma,f16c";
    avx512: Avx512, 2 x 5, "avx512f,avx512bw,avx512dq,avx512vl,f16c";
    avx512_vnni: Avx512Vnni, 4 x 5, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c";
}

#[inline(always)]
unsafe fn read<O: TileOps>(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<256>();
    // SAFETY: each block is four times 64 bytes.
    unsafe {
        let mut sums = [O::izero(); 4];
        for block in blocks {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = O::iadd(*sum, O::load_codes(block.as_ptr().add(64 * i)));
            }
        }
        black_box(sums);
    }
    scalar::probe::read(rest)
}

/// `W` operands by `X`, each pair of them with a sum of its own.
#[inline(always)]
unsafe fn int8<O: TileOps, const W: usize, const X: usize>(rounds: usize) -> usize {
    let codes = [3i8; 64];
    let mut weights = [[2u8; 64]; W];
    // SAFETY: the codes of a group are readable, and those of a row of 64 bytes.
    unsafe {
        // For all that the compiler knows they differ, so that it cannot compute a product once and add it to several sums.
        let group = O::group(codes.as_ptr());
        let mut xs = [O::broadcast(&raw const group, 0); X];
        for x in &mut xs {
            *x = black_box(*x);
        }
        let mut sums = [[O::izero(); X]; W];
        for _ in 0..rounds {
            // New ones each round, as far as it knows, so that no product can be moved out of the loop.
            let weights = black_box(&mut weights);
            for w in 0..W {
                let codes = O::load_codes(weights[w].as_ptr());
                for x in 0..X {
                    sums[w][x] = O::dot(sums[w][x], codes, xs[x]);
                }
            }
        }
        black_box(sums);
    }
    64 * W * X * rounds
}

#[inline(always)]
unsafe fn f32<O: TileOps, const SUMS: usize>(rounds: usize) -> usize {
    // SAFETY: registers only.
    unsafe {
        let (w, x) = (O::splat(black_box(0.5)), O::splat(black_box(0.25)));
        let mut sums = [O::zero(); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = O::fma(w, x, *sum);
            }
        }
        black_box(sums);
    }
    16 * SUMS * rounds
}
