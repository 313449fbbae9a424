//! Entries that are not zero: what [`crate::scalar::sparse`] finds.

use std::arch::x86_64::*;

use crate::sparse::BLOCK;

/// # Safety
/// AVX2 exists.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn avx2(x: &[f32], places: &mut [u8], values: &mut [f32]) -> (usize, u128) {
    let (eights, rest) = x.as_chunks::<8>();
    let mut bits = 0;
    for (i, eight) in eights.iter().enumerate() {
        // SAFETY: eight values are readable.
        let x = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
        let found = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NEQ_UQ>(x, _mm256_setzero_ps()));
        bits |= u128::from(found as u32) << (8 * i);
    }
    for (i, value) in (8 * eights.len()..).zip(rest) {
        bits |= u128::from(*value != 0.0) << i;
    }
    let mut count = 0;
    for place in ones(bits) {
        (places[count], values[count]) = (place as u8, x[place]);
        count += 1;
    }
    (count, bits)
}

/// # Safety
/// AVX-512 F exists.
///
/// # Panics
/// `x` is longer than a block, or the places or values are shorter.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn avx512(x: &[f32], places: &mut [u8], values: &mut [f32]) -> (usize, u128) {
    assert!(x.len() <= BLOCK && places.len() >= BLOCK && values.len() >= BLOCK, "room for a block");
    let mut ids = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let (mut count, mut bits) = (0, 0);
    for (i, x) in x.chunks(16).enumerate() {
        let there = u16::MAX >> (16 - x.len());
        // SAFETY: as many values are readable as bits are set. Sixteen are written, of which the found ones stay: before this chunk at most
        // 16 i were found, and a block has eight chunks.
        unsafe {
            let x = _mm512_maskz_loadu_ps(there, x.as_ptr());
            let found = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(x, _mm512_setzero_ps());
            _mm512_storeu_ps(values.as_mut_ptr().add(count), _mm512_maskz_compress_ps(found, x));
            let found_ids = _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(found, ids));
            _mm_storeu_si128(places.as_mut_ptr().add(count).cast(), found_ids);
            bits |= u128::from(found) << (16 * i);
            count += found.count_ones() as usize;
        }
        ids = _mm512_add_epi32(ids, _mm512_set1_epi32(16));
    }
    (count, bits)
}

/// The places of the bits that are set, ascending.
#[inline(always)]
pub(crate) fn ones(bits: u128) -> impl Iterator<Item = usize> {
    ones_of_64(bits as u64).chain(ones_of_64((bits >> 64) as u64).map(|place| 64 + place))
}

#[inline(always)]
fn ones_of_64(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}
