//! The operations of products with tiles and columns, over the 16 rows of a tile at a time.
//!
//! Every function is `unsafe` for the same reason: the implementor's instructions must exist, and the
//! pointers must be readable (or writable) for the 16 elements that the function's doc names.

use std::arch::x86_64::*;

/// 16 rows in registers.
pub(crate) trait TileOps: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32, or 64 bytes.
    type I: Copy;
    /// Four activation codes, broadcast, in the form that [`TileOps::dot`] takes.
    type X: Copy;

    unsafe fn zero() -> Self::F;
    unsafe fn splat(x: f32) -> Self::F;
    /// 16 f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// 16 f32 in bytes.
    unsafe fn load_f32(p: *const u8) -> Self::F;
    /// 16 f16.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// 16 bf16.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// 16 bytes as numbers 0..=255.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    /// The low and the high nibbles of 16 bytes as numbers 0..=15.
    unsafe fn load_u4(p: *const u8) -> (Self::F, Self::F);
    /// 16 f32.
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    unsafe fn izero() -> Self::I;
    unsafe fn isplat(x: i32) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// 64 bytes.
    unsafe fn load_codes(p: *const u8) -> Self::I;
    /// The low and the high nibbles of 64 bytes.
    unsafe fn nibbles(x: Self::I) -> (Self::I, Self::I);
    /// Four codes.
    unsafe fn broadcast(p: *const i8) -> Self::X;
    /// `acc[r] + Σ w[r][i]·x[i]` over the four bytes of each row: exact.
    unsafe fn dot(acc: Self::I, w: Self::I, x: Self::X) -> Self::I;
    unsafe fn to_f32(x: Self::I) -> Self::F;
}

/// AVX2, FMA, F16C: two registers for 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// AVX-512 F, BW, DQ, VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The same with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

// SAFETY of every block below: the trait's contract, handed on to the intrinsics.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one contract for the whole trait, stated above")]
impl TileOps for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    /// The codes 0 and 2, and 1 and 3, widened to pairs of 16 bits.
    type X = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self::F {
        unsafe { Self::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::F {
        unsafe {
            [p, p.add(16)].map(|p| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        unsafe { [p, p.add(8)].map(|p| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8) -> (Self::F, Self::F) {
        unsafe {
            let wide = [p, p.add(8)].map(|p| _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
            let low = wide.map(|x| _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15))));
            let high = wide.map(|x| _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(x)));
            (low, high)
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn izero() -> Self::I {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I {
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn load_codes(p: *const u8) -> Self::I {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn nibbles(x: Self::I) -> (Self::I, Self::I) {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let low = x.map(|x| _mm256_and_si256(x, mask));
            let high = x.map(|x| _mm256_and_si256(_mm256_srli_epi16::<4>(x), mask));
            (low, high)
        }
    }
    #[inline(always)]
    unsafe fn broadcast(p: *const i8) -> Self::X {
        unsafe {
            let x = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x)]
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, w: Self::I, x: Self::X) -> Self::I {
        unsafe {
            // Bytes widened to 16 bits in place, even and odd apart: no sum of two products can saturate.
            let even = |w| _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), x[0]);
            let odd = |w| _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), x[1]);
            [
                _mm256_add_epi32(_mm256_add_epi32(acc[0], even(w[0])), odd(w[0])),
                _mm256_add_epi32(_mm256_add_epi32(acc[1], even(w[1])), odd(w[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: Self::I) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }
}

/// What the two AVX-512 variants share; the dot product is theirs.
macro_rules! avx512_ops {
    ($name:ty, $x:ty, $broadcast:item, $dot:item) => {
        #[allow(clippy::undocumented_unsafe_blocks, reason = "one contract for the whole trait, stated above")]
        impl TileOps for $name {
            type F = __m512;
            type I = __m512i;
            type X = $x;

            #[inline(always)]
            unsafe fn zero() -> __m512 {
                unsafe { _mm512_setzero_ps() }
            }
            #[inline(always)]
            unsafe fn splat(x: f32) -> __m512 {
                unsafe { _mm512_set1_ps(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> __m512 {
                unsafe { _mm512_loadu_ps(p) }
            }
            #[inline(always)]
            unsafe fn load_f32(p: *const u8) -> __m512 {
                unsafe { _mm512_loadu_ps(p.cast()) }
            }
            #[inline(always)]
            unsafe fn load_f16(p: *const u8) -> __m512 {
                unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
            }
            #[inline(always)]
            unsafe fn load_bf16(p: *const u8) -> __m512 {
                unsafe {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
            }
            #[inline(always)]
            unsafe fn load_u8(p: *const u8) -> __m512 {
                unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
            }
            #[inline(always)]
            unsafe fn load_u4(p: *const u8) -> (__m512, __m512) {
                unsafe {
                    let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
                    let low = _mm512_and_si512(wide, _mm512_set1_epi32(15));
                    (_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(wide)))
                }
            }
            #[inline(always)]
            unsafe fn store(p: *mut f32, x: __m512) {
                unsafe { _mm512_storeu_ps(p, x) }
            }
            #[inline(always)]
            unsafe fn mul(a: __m512, b: __m512) -> __m512 {
                unsafe { _mm512_mul_ps(a, b) }
            }
            #[inline(always)]
            unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
                unsafe { _mm512_fmadd_ps(a, b, c) }
            }
            #[inline(always)]
            unsafe fn izero() -> __m512i {
                unsafe { _mm512_setzero_si512() }
            }
            #[inline(always)]
            unsafe fn isplat(x: i32) -> __m512i {
                unsafe { _mm512_set1_epi32(x) }
            }
            #[inline(always)]
            unsafe fn iadd(a: __m512i, b: __m512i) -> __m512i {
                unsafe { _mm512_add_epi32(a, b) }
            }
            #[inline(always)]
            unsafe fn isub(a: __m512i, b: __m512i) -> __m512i {
                unsafe { _mm512_sub_epi32(a, b) }
            }
            #[inline(always)]
            unsafe fn load_codes(p: *const u8) -> __m512i {
                unsafe { _mm512_loadu_si512(p.cast()) }
            }
            #[inline(always)]
            unsafe fn nibbles(x: __m512i) -> (__m512i, __m512i) {
                unsafe {
                    let mask = _mm512_set1_epi8(15);
                    (_mm512_and_si512(x, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(x), mask))
                }
            }
            #[inline(always)]
            $broadcast
            #[inline(always)]
            $dot
            #[inline(always)]
            unsafe fn to_f32(x: __m512i) -> __m512 {
                unsafe { _mm512_cvtepi32_ps(x) }
            }
        }
    };
}

avx512_ops!(
    Avx512Vnni,
    __m512i,
    unsafe fn broadcast(p: *const i8) -> __m512i {
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    },
    unsafe fn dot(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, x) }
    }
);

avx512_ops!(
    Avx512,
    [__m512i; 2],
    unsafe fn broadcast(p: *const i8) -> [__m512i; 2] {
        unsafe {
            let x = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
            [_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x)), _mm512_srai_epi16::<8>(x)]
        }
    },
    unsafe fn dot(acc: __m512i, w: __m512i, x: [__m512i; 2]) -> __m512i {
        unsafe {
            let even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), x[0]);
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(w), x[1]);
            _mm512_add_epi32(_mm512_add_epi32(acc, even), odd)
        }
    }
);
