//! Work for the probes, over the operations that the kernels use.

#![allow(clippy::needless_range_loop, reason = "arrays of registers are indexed alike")]

use std::hint::black_box;

use crate::scalar;
use crate::x86::tile_ops::{Avx2, Avx512, Avx512Vnni, TileOps};

/// The functions of this file, compiled for one instruction set.
macro_rules! probes {
    ($($module:ident: $ops:ty, $sums:literal, $features:literal;)*) => {$(
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
                unsafe { super::int8::<$ops, $sums>(rounds) }
            }

            /// # Safety
            /// The instruction set exists.
            #[target_feature(enable = $features)]
            #[allow(dead_code, reason = "as above")]
            pub(crate) unsafe fn f32(rounds: usize) -> usize {
                // SAFETY: handed on.
                unsafe { super::f32::<$ops, $sums>(rounds) }
            }
        }
    )*};
}

// How many independent sums: enough to hide the latency of an operation in all units that execute it (cores have up to two of
// 512 bits with a latency of up to 5), and few enough for the sums to stay in registers. AVX2 has 16, and a sum takes two.
probes! {
    avx2: Avx2, 5, "avx2,fma,f16c";
    avx512: Avx512, 20, "avx512f,avx512bw,avx512dq,avx512vl,f16c";
    avx512_vnni: Avx512Vnni, 20, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c";
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

#[inline(always)]
unsafe fn int8<O: TileOps, const SUMS: usize>(rounds: usize) -> usize {
    let codes = black_box([3i8; 64]);
    // SAFETY: the codes of a group are readable.
    unsafe {
        // For all that the compiler knows they differ, so that it cannot compute a product once and add it to every sum.
        let group = O::group(codes.as_ptr());
        let mut xs = [O::broadcast(&raw const group, 0); SUMS];
        for x in &mut xs {
            *x = black_box(*x);
        }
        let one = O::isplat(1);
        let mut w = O::isplat(0x0203_0405);
        let mut sums = [O::izero(); SUMS];
        for _ in 0..rounds {
            // A new operand each round, so that no product can be moved out of the loop.
            w = O::iadd(w, one);
            for i in 0..SUMS {
                sums[i] = O::dot(sums[i], w, xs[i]);
            }
        }
        black_box(sums);
    }
    64 * SUMS * rounds
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
