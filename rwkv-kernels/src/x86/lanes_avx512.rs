//! Sixteen lanes as one register of AVX-512.

use std::arch::x86_64::*;

use super::lanes::Lanes;
use super::lanes_avx2::fold_sum_256;
use crate::scalar::wkv::NOT_TINY;

/// The proof of AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    pub(crate) fn here() -> Avx512 {
        Avx512(())
    }
}

/// A method that is an expression of intrinsics.
macro_rules! lanes {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: `self` can only be made by `here` in code compiled for these features, and only
            // a machine that has them runs such code.
            unsafe { $body }
        }
    )*};
}

impl Lanes for Avx512 {
    type V = __m512;
    const MANY_REGISTERS: bool = true;

    lanes! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        abs(x: __m512) -> __m512 = _mm512_abs_ps(x);
        neg(x: __m512) -> __m512 = _mm512_xor_ps(x, _mm512_set1_ps(-0.0));
        with_sign(magnitude: __m512, sign: __m512) -> __m512 =
            _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0)));
        if_greater(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), yes);
        if_nan(x: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), yes);
        add_exponent(x: __m512, shifted: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(x),
            _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted))
        ));
        decayed(s: __m512, w: __m512) -> __m512 = {
            let kept = _mm512_test_epi32_mask(_mm512_castps_si512(s), _mm512_set1_epi32(NOT_TINY as i32));
            _mm512_maskz_mul_ps(kept, s, w)
        };
        fold_sum(x: __m512) -> f32 = {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            fold_sum_256(eight)
        };
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> __m512 {
        // SAFETY: the array is 64 readable bytes, and the instruction needs no alignment.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> __m512 {
        // SAFETY: the array is 32 readable bytes, and the instruction needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; 16]) {
        // SAFETY: the array is 64 writable bytes, and the instruction needs no alignment.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
}
