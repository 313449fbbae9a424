//! Sixteen lanes as two registers of AVX2.

use std::arch::x86_64::*;

use super::lanes::Lanes;
use crate::scalar::wkv::NOT_TINY;

/// The proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(crate) fn here() -> Avx2 {
        Avx2(())
    }
}

/// Lanes 0 to 7 and 8 to 15.
type Pair = [__m256; 2];

/// A method that is an expression of intrinsics for each half.
macro_rules! halves {
    ($($name:ident($($argument:ident),*) = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: Pair),*) -> Pair {
            // SAFETY: `self` can only be made by `here` in code compiled for these features, and only
            // a machine that has them runs such code.
            unsafe {
                let low = { $(let $argument = $argument[0];)* $body };
                let high = { $(let $argument = $argument[1];)* $body };
                [low, high]
            }
        }
    )*};
}

impl Lanes for Avx2 {
    type V = Pair;
    const MANY_REGISTERS: bool = false;

    halves! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
        fnma(a, b, c) = _mm256_fnmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        min(a, b) = _mm256_min_ps(a, b);
        abs(x) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        neg(x) = _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
        with_sign(magnitude, sign) = _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0)));
        if_greater(a, b, yes, no) = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b));
        if_nan(x, yes, no) = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        add_exponent(x, shifted) = _mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(x),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted))
        ));
        decayed(s, w) = {
            let high = _mm256_and_si256(_mm256_castps_si256(s), _mm256_set1_epi32(NOT_TINY as i32));
            let tiny = _mm256_cmpeq_epi32(high, _mm256_setzero_si256());
            _mm256_andnot_ps(_mm256_castsi256_ps(tiny), _mm256_mul_ps(s, w))
        };
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `self` proves the features.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Pair {
        // SAFETY: `self` proves the features; the array is twice 32 readable bytes, of any alignment.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; 16]) -> Pair {
        // SAFETY: `self` proves the features; the array is twice 16 readable bytes, of any alignment.
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast()));
            [low, _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast()))]
        }
    }

    #[inline(always)]
    fn store(self, x: Pair, to: &mut [f32; 16]) {
        // SAFETY: `self` proves the features; the array is twice 32 writable bytes, of any alignment.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
    }

    #[inline(always)]
    fn fold_sum(self, x: Pair) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { fold_sum_256(_mm256_add_ps(x[0], x[1])) }
    }
}

/// Lane `i` takes in lane `i + 4`, then `i + 2`, `i + 1`.
#[target_feature(enable = "avx")]
#[inline]
pub(super) fn fold_sum_256(eight: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
