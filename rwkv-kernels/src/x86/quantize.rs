//! Quantised activations: the bits of [`crate::scalar::quantize`].
//!
//! Quotients come without a division, which takes as long as ten products. With `y` the rounded inverse of the scale,
//!
//! ```text
//! q = x y;  q = fma(x - q scale, y, q);  q = fma(x - q scale, y, q)
//! ```
//!
//! is the rounded quotient `x / scale`: the first two values of `q` end within a unit in the last place of it, and from there the third
//! is exact (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). That needs a `y` that is a
//! normal number, and remainders that are exact, which they are for scales in [`EXACT`] unless `q` is below a quarter, where
//! the code is zero anyway. All other scales, zero and NaN among them, are left to the definition.

use std::arch::x86_64::*;
use std::ops::RangeInclusive;

use crate::scalar;

/// 2^-100 to 2^100: the scales for which quotients come out exact.
const EXACT: RangeInclusive<f32> = f32::from_bits(27 << 23)..=f32::from_bits(227 << 23);

/// # Safety
/// AVX2 and FMA exist; both slices have the same length, a multiple of 64.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn avx2(x: &[f32], codes: &mut [i8]) -> (f32, [i32; 2]) {
    let abs = _mm256_set1_epi32(0x7fff_ffff);
    let mut max = _mm256_setzero_si256();
    for x in x.chunks_exact(8) {
        // SAFETY: eight values are readable.
        let bits = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        max = _mm256_max_epu32(max, _mm256_and_si256(bits, abs));
    }
    let mut lanes = [0u32; 8];
    // SAFETY: `lanes` has eight words.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), max) };
    let scale = f32::from_bits(lanes.into_iter().max().unwrap_or(0)) / 127.0;
    if !EXACT.contains(&scale) {
        return scalar::quantize::quantize(x, codes);
    }
    let (divisor, inverse) = (_mm256_set1_ps(scale), _mm256_set1_ps(1.0 / scale));
    let mut sums = [0; 2];
    let half = (x.len() / 2).max(1);
    for ((x, codes), sum) in x.chunks_exact(half).zip(codes.chunks_exact_mut(half)).zip(&mut sums) {
        let mut total = _mm256_setzero_si256();
        for (x, codes) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)) {
            let mut quads = [total; 4];
            for (x, code) in x.chunks_exact(8).zip(&mut quads) {
                // SAFETY: eight values are readable.
                let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
                let q = _mm256_mul_ps(x, inverse);
                let q = _mm256_fmadd_ps(_mm256_fnmadd_ps(q, divisor, x), inverse, q);
                let q = _mm256_fmadd_ps(_mm256_fnmadd_ps(q, divisor, x), inverse, q);
                // Rounds to the nearest, ties to even. With such a scale no quotient is beyond 127.
                *code = _mm256_cvtps_epi32(q);
                total = _mm256_add_epi32(total, *code);
            }
            let [a, b, c, d] = quads;
            // Packing works within halves: the last step puts the eight quads back in order.
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            // SAFETY: 32 codes are writable.
            unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), ordered) };
        }
        let mut lanes = [0i32; 8];
        // SAFETY: `lanes` has eight numbers.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
        *sum = lanes.into_iter().sum();
    }
    (scale, sums)
}

/// # Safety
/// AVX-512 F and BW exist; both slices have the same length, a multiple of 64.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn avx512(x: &[f32], codes: &mut [i8]) -> (f32, [i32; 2]) {
    let abs = _mm512_set1_epi32(0x7fff_ffff);
    let mut max = _mm512_setzero_si512();
    for x in x.chunks_exact(16) {
        // SAFETY: 16 values are readable.
        let bits = unsafe { _mm512_loadu_si512(x.as_ptr().cast()) };
        max = _mm512_max_epu32(max, _mm512_and_si512(bits, abs));
    }
    let scale = f32::from_bits(_mm512_reduce_max_epu32(max)) / 127.0;
    if !EXACT.contains(&scale) {
        return scalar::quantize::quantize(x, codes);
    }
    let (divisor, inverse) = (_mm512_set1_ps(scale), _mm512_set1_ps(1.0 / scale));
    let mut sums = [0; 2];
    let half = (x.len() / 2).max(1);
    for ((x, codes), sum) in x.chunks_exact(half).zip(codes.chunks_exact_mut(half)).zip(&mut sums) {
        let mut total = _mm512_setzero_si512();
        for (x, codes) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)) {
            // SAFETY: 16 values are readable.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
            let q = _mm512_mul_ps(x, inverse);
            let q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, divisor, x), inverse, q);
            let q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, divisor, x), inverse, q);
            // Rounds to the nearest, ties to even. With such a scale no quotient is beyond 127.
            let code = _mm512_cvtps_epi32(q);
            total = _mm512_add_epi32(total, code);
            // SAFETY: 16 codes are writable.
            unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(code)) };
        }
        *sum = _mm512_reduce_add_epi32(total);
    }
    (scale, sums)
}
