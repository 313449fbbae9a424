//! Quantised activations: the bits of [`crate::scalar::quantize`].

use std::arch::x86_64::*;

/// # Safety
/// AVX2 exists; both slices have the same length, a multiple of 64.
#[target_feature(enable = "avx2")]
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
    if scale == 0.0 || !scale.is_finite() {
        codes.fill(0);
        return (scale, [0; 2]);
    }
    let divisor = _mm256_set1_ps(scale);
    let (low, high) = (_mm256_set1_epi32(-127), _mm256_set1_epi32(127));
    let mut sums = [0; 2];
    let half = (x.len() / 2).max(1);
    for ((x, codes), sum) in x.chunks_exact(half).zip(codes.chunks_exact_mut(half)).zip(&mut sums) {
        let mut total = _mm256_setzero_si256();
        for (x, codes) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)) {
            let mut quads = [low; 4];
            for (x, q) in x.chunks_exact(8).zip(&mut quads) {
                // SAFETY: eight values are readable.
                let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
                // Rounds to the nearest, ties to even.
                let rounded = _mm256_cvtps_epi32(_mm256_div_ps(x, divisor));
                *q = _mm256_max_epi32(low, _mm256_min_epi32(high, rounded));
                total = _mm256_add_epi32(total, *q);
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
    if scale == 0.0 || !scale.is_finite() {
        codes.fill(0);
        return (scale, [0; 2]);
    }
    let divisor = _mm512_set1_ps(scale);
    let (low, high) = (_mm512_set1_epi32(-127), _mm512_set1_epi32(127));
    let mut sums = [0; 2];
    let half = (x.len() / 2).max(1);
    for ((x, codes), sum) in x.chunks_exact(half).zip(codes.chunks_exact_mut(half)).zip(&mut sums) {
        let mut total = _mm512_setzero_si512();
        for (x, codes) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)) {
            // SAFETY: 16 values are readable.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
            // Rounds to the nearest, ties to even.
            let q = _mm512_cvtps_epi32(_mm512_div_ps(x, divisor));
            let q = _mm512_max_epi32(low, _mm512_min_epi32(high, q));
            total = _mm512_add_epi32(total, q);
            // SAFETY: 16 codes are writable.
            unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
        }
        *sum = _mm512_reduce_add_epi32(total);
    }
    (scale, sums)
}
