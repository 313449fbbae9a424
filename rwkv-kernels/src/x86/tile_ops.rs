//! The operations of products with tiles and columns, over the 16 rows of a tile at a time.
//!
//! Every function is `unsafe` for the same reason: the implementor's instructions must exist, and the
//! pointers must be readable (or writable) for the 16 elements that the function's doc names.
//!
//! No intrinsic stands in a closure: what is not inlined into a function with the target features is a call for
//! each instruction, and closures are inlined only if the compiler likes.

#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

/// How far ahead rows prefetch in each tile that wait for memory: beyond the next page, so that its address is translated
/// before it is needed. Hardware prefetchers stop at a page's end.
const AHEAD: usize = 4352;

/// What rows prefetch that wait for memory, in step with the lines that they use: many at once would fill the queue of misses, and loads
/// would wait behind them.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// From a line that is used to the one that is prefetched.
    bytes: usize,
    /// Lines of a group of 64 codes. A number that the compiler does not know: it would unroll the loop over them and move
    /// all prefetches to its start.
    lines: usize,
}

impl Ahead {
    /// At `at` of `T` tiles that are read side by side: near their end, the start of the next `T` tiles.
    #[inline(always)]
    pub(crate) fn new<const T: usize>(at: usize, tile_bytes: usize, lines: usize) -> Ahead {
        let skip = if at + AHEAD < tile_bytes { 0 } else { (T - 1) * tile_bytes };
        Ahead { bytes: AHEAD + skip, lines }
    }

    /// Prefetches the line of each tile that belongs to the line at `w`.
    #[inline(always)]
    pub(crate) unsafe fn prefetch<const T: usize>(self, w: [*const u8; T]) {
        for w in w {
            // SAFETY: a prefetch does not fault, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(self.bytes).cast()) };
        }
    }
}

/// Each pointer that many elements on. Not `map`, which may remain a call in the innermost loop.
#[inline(always)]
pub(crate) unsafe fn on<E, const N: usize>(mut pointers: [*const E; N], count: usize) -> [*const E; N] {
    for p in &mut pointers {
        // SAFETY: the caller's pointers have that many elements.
        *p = unsafe { p.add(count) };
    }
    pointers
}

/// 16 rows in registers.
pub(crate) trait TileOps: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32, or 64 bytes.
    type I: Copy;
    /// The 64 activation codes of a group, in the form that [`TileOps::broadcast`] takes: `[i8; 64]` as they are, or widened.
    type Group: Copy;
    /// Four activation codes, broadcast, in the form that [`TileOps::dot`] takes.
    type X: Copy;

    /// Whether [`TileOps::Group`] is another form than `[i8; 64]`.
    const WIDENS: bool;
    /// How many sums of 16 f32 stay in registers beside the operands.
    const SUMS: usize;

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
    /// 64 codes.
    unsafe fn group(p: *const i8) -> Self::Group;
    /// The codes of a quad, which must be in 0..16.
    unsafe fn broadcast(group: *const Self::Group, quad: usize) -> Self::X;
    /// `acc[r] + Σ w[r][i]·x[i]` over the four bytes of each row: exact.
    unsafe fn dot(acc: Self::I, w: Self::I, x: Self::X) -> Self::I;
    /// The same for bytes 0..=15 and four codes at `x`.
    unsafe fn dot_nibbles(acc: Self::I, w: Self::I, x: *const i8) -> Self::I;
    unsafe fn to_f32(x: Self::I) -> Self::F;

    /// Exact dot products of a group's 64 codes of each row and tile, 16 lines of a tile. Prefetches, if the tiles come from
    /// `MEMORY`.
    #[inline(always)]
    unsafe fn dots_u8<const T: usize, const C: usize, const MEMORY: bool>(
        w: [*const u8; T],
        x: [*const Self::Group; C],
        ahead: Ahead,
    ) -> [[Self::I; C]; T] {
        // SAFETY: the caller's tiles have 16 lines.
        unsafe {
            let mut d = [[Self::izero(); C]; T];
            if MEMORY {
                for quad in 0..ahead.lines {
                    ahead.prefetch(on(w, 64 * quad));
                    Self::dots_quad(&mut d, w, x, quad);
                }
            } else {
                // Unrolled in part: counting takes a place among the products, which fill all of them.
                for quads in 0..4 {
                    for quad in 4 * quads..4 * quads + 4 {
                        Self::dots_quad(&mut d, w, x, quad);
                        // Or the compiler loads four quads at once, and moves sums out of registers for them.
                        compiler_fence(Ordering::SeqCst);
                    }
                }
            }
            d
        }
    }

    /// Adds the products of a quad: [`TileOps::dots_u8`].
    #[inline(always)]
    unsafe fn dots_quad<const T: usize, const C: usize>(
        d: &mut [[Self::I; C]; T],
        w: [*const u8; T],
        x: [*const Self::Group; C],
        quad: usize,
    ) {
        // SAFETY: as in `dots_u8`.
        unsafe {
            let w = on(w, 64 * quad);
            let mut codes = [Self::izero(); T];
            for t in 0..T {
                codes[t] = Self::load_codes(w[t]);
            }
            for c in 0..C {
                let x = Self::broadcast(x[c], quad);
                for t in 0..T {
                    d[t][c] = Self::dot(d[t][c], codes[t], x);
                }
            }
        }
    }

    /// Exact dot products of 32 codes of each row and tile, four lines of nibbles of a tile. Prefetches, if
    /// the tiles come from `MEMORY`.
    #[inline(always)]
    unsafe fn dots_u4<const T: usize, const C: usize, const MEMORY: bool>(
        w: [*const u8; T],
        x: [*const i8; C],
        ahead: Ahead,
    ) -> [[Self::I; C]; T] {
        // SAFETY: the caller's tiles have four lines, and the rows 32 codes.
        unsafe {
            let mut d = [[Self::izero(); C]; T];
            for line in 0..4 {
                let w = on(w, 64 * line);
                if MEMORY {
                    ahead.prefetch(w);
                }
                let mut nibbles = [(Self::izero(), Self::izero()); T];
                for t in 0..T {
                    nibbles[t] = Self::nibbles(Self::load_codes(w[t]));
                }
                for c in 0..C {
                    let x = x[c].add(8 * line);
                    for t in 0..T {
                        let low = Self::dot_nibbles(d[t][c], nibbles[t].0, x);
                        d[t][c] = Self::dot_nibbles(low, nibbles[t].1, x.add(4));
                    }
                }
            }
            d
        }
    }
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
    /// The codes of each quad widened to pairs of 16 bits: those of the codes 0 and 2, then, 16 quads on, of 1 and 3.
    type Group = [i32; 32];
    /// The codes 0 and 2, and 1 and 3, as pairs of 16 bits.
    type X = [__m256i; 2];
    const WIDENS: bool = true;
    const SUMS: usize = 4;

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
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8) -> (Self::F, Self::F) {
        unsafe {
            let first = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let second = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            let mask = _mm256_set1_epi32(15);
            (
                [
                    _mm256_cvtepi32_ps(_mm256_and_si256(first, mask)),
                    _mm256_cvtepi32_ps(_mm256_and_si256(second, mask)),
                ],
                [
                    _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(first)),
                    _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(second)),
                ],
            )
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
            let shifted = [_mm256_srli_epi16::<4>(x[0]), _mm256_srli_epi16::<4>(x[1])];
            (
                [_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)],
                [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)],
            )
        }
    }
    #[inline(always)]
    unsafe fn group(p: *const i8) -> [i32; 32] {
        unsafe { widen_group(p) }
    }
    #[inline(always)]
    unsafe fn broadcast(group: *const [i32; 32], quad: usize) -> Self::X {
        unsafe {
            let pairs = group.cast::<i32>().add(quad);
            [_mm256_set1_epi32(*pairs), _mm256_set1_epi32(*pairs.add(16))]
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, w: Self::I, x: Self::X) -> Self::I {
        unsafe {
            // Bytes widened to 16 bits in place, even and odd apart: no sum of two products can saturate.
            let mask = _mm256_set1_epi16(255);
            let mut sums = acc;
            for half in 0..2 {
                let even = _mm256_madd_epi16(_mm256_and_si256(w[half], mask), x[0]);
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w[half]), x[1]);
                sums[half] = _mm256_add_epi32(_mm256_add_epi32(acc[half], even), odd);
            }
            sums
        }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(acc: Self::I, w: Self::I, x: *const i8) -> Self::I {
        unsafe {
            // Two products of a nibble and a code are at most 2 * 15 * 127 apart from zero: nothing saturates.
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(acc[0], _mm256_madd_epi16(_mm256_maddubs_epi16(w[0], x), ones)),
                _mm256_add_epi32(acc[1], _mm256_madd_epi16(_mm256_maddubs_epi16(w[1], x), ones)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: Self::I) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }

    /// Eight rows of a tile at a time, so that the sums of up to eight rows of activations stay in registers.
    #[inline(always)]
    unsafe fn dots_u8<const T: usize, const C: usize, const MEMORY: bool>(
        w: [*const u8; T],
        x: [*const Self::Group; C],
        ahead: Ahead,
    ) -> [[Self::I; C]; T] {
        unsafe {
            let mask = _mm256_set1_epi16(255);
            let mut d = [[Self::izero(); C]; T];
            if C == 1 {
                for quad in 0..ahead.lines {
                    let w = on(w, 64 * quad);
                    ahead.prefetch(w);
                    let x = Self::broadcast(x[0], quad);
                    for t in 0..T {
                        d[t][0] = Self::dot(d[t][0], Self::load_codes(w[t]), x);
                    }
                }
                return d;
            }
            for t in 0..T {
                for half in 0..2 {
                    let mut sums = [_mm256_setzero_si256(); C];
                    for quad in 0..16 {
                        if MEMORY && half == 0 {
                            ahead.prefetch([w[t].add(64 * quad)]);
                        }
                        let w = _mm256_loadu_si256(w[t].add(64 * quad + 32 * half).cast());
                        let (even, odd) = (_mm256_and_si256(w, mask), _mm256_srli_epi16::<8>(w));
                        for c in 0..C {
                            let even = _mm256_madd_epi16(even, _mm256_set1_epi32((*x[c])[quad]));
                            let odd = _mm256_madd_epi16(odd, _mm256_set1_epi32((*x[c])[16 + quad]));
                            sums[c] = _mm256_add_epi32(_mm256_add_epi32(sums[c], even), odd);
                        }
                    }
                    for c in 0..C {
                        d[t][c][half] = sums[c];
                    }
                }
            }
            d
        }
    }

    /// As the default, but 16-bit sums over a half group before they are widened.
    #[inline(always)]
    unsafe fn dots_u4<const T: usize, const C: usize, const MEMORY: bool>(
        w: [*const u8; T],
        x: [*const i8; C],
        ahead: Ahead,
    ) -> [[Self::I; C]; T] {
        unsafe {
            let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
            let mut d = [[Self::izero(); C]; T];
            if MEMORY {
                for line in 0..4 {
                    ahead.prefetch(on(w, 64 * line));
                }
            }
            for t in 0..T {
                for half in 0..2 {
                    // At most 8 * 2 * 15 * 127 apart from zero: nothing saturates or overflows.
                    let mut sums = [_mm256_setzero_si256(); C];
                    for line in 0..4 {
                        let w = _mm256_loadu_si256(w[t].add(64 * line + 32 * half).cast());
                        let low = _mm256_and_si256(w, mask);
                        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask);
                        for c in 0..C {
                            let x = x[c].add(8 * line).cast::<i32>();
                            let low = _mm256_maddubs_epi16(low, _mm256_set1_epi32(x.read_unaligned()));
                            let high =
                                _mm256_maddubs_epi16(high, _mm256_set1_epi32(x.add(1).read_unaligned()));
                            sums[c] = _mm256_add_epi16(sums[c], _mm256_add_epi16(low, high));
                        }
                    }
                    for c in 0..C {
                        d[t][c][half] = _mm256_madd_epi16(sums[c], ones);
                    }
                }
            }
            d
        }
    }
}

/// 64 codes widened once, so that a quad costs two loads: see [`TileOps::Group`] of [`Avx2`].
#[inline(always)]
unsafe fn widen_group(p: *const i8) -> [i32; 32] {
    let mut wide = MaybeUninit::<[i32; 32]>::uninit();
    // SAFETY: 64 codes are readable, and 128 bytes are written; AVX2 exists with all who call this.
    unsafe {
        let to: *mut __m256i = wide.as_mut_ptr().cast();
        for half in 0..2 {
            let x = _mm256_loadu_si256(p.cast::<__m256i>().add(half));
            _mm256_storeu_si256(to.add(half), _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)));
            _mm256_storeu_si256(to.add(2 + half), _mm256_srai_epi16::<8>(x));
        }
        wide.assume_init()
    }
}

/// What the two AVX-512 variants share; the dot product is theirs.
macro_rules! avx512_ops {
    ($name:ty, $group:ty, $widens:literal, $x:ty, $widen:item, $broadcast:item, $dot:item, $dot_nibbles:item) => {
        #[allow(clippy::undocumented_unsafe_blocks, reason = "one contract for the whole trait, stated above")]
        impl TileOps for $name {
            type F = __m512;
            type I = __m512i;
            type Group = $group;
            type X = $x;
            const WIDENS: bool = $widens;
            const SUMS: usize = 24;

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
            $widen
            #[inline(always)]
            $broadcast
            #[inline(always)]
            $dot
            #[inline(always)]
            $dot_nibbles
            #[inline(always)]
            unsafe fn to_f32(x: __m512i) -> __m512 {
                unsafe { _mm512_cvtepi32_ps(x) }
            }
        }
    };
}

avx512_ops!(
    Avx512Vnni,
    [i8; 64],
    false,
    __m512i,
    unsafe fn group(p: *const i8) -> [i8; 64] {
        unsafe { p.cast::<[i8; 64]>().read() }
    },
    unsafe fn broadcast(group: *const [i8; 64], quad: usize) -> __m512i {
        unsafe { _mm512_set1_epi32(group.cast::<i32>().add(quad).read_unaligned()) }
    },
    unsafe fn dot(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, x) }
    },
    unsafe fn dot_nibbles(acc: __m512i, w: __m512i, x: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
);

avx512_ops!(
    Avx512,
    [i32; 32],
    true,
    [__m512i; 2],
    unsafe fn group(p: *const i8) -> [i32; 32] {
        unsafe { widen_group(p) }
    },
    unsafe fn broadcast(group: *const [i32; 32], quad: usize) -> [__m512i; 2] {
        unsafe {
            let pairs = group.cast::<i32>().add(quad);
            [_mm512_set1_epi32(*pairs), _mm512_set1_epi32(*pairs.add(16))]
        }
    },
    unsafe fn dot(acc: __m512i, w: __m512i, x: [__m512i; 2]) -> __m512i {
        unsafe {
            let even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), x[0]);
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(w), x[1]);
            _mm512_add_epi32(_mm512_add_epi32(acc, even), odd)
        }
    },
    unsafe fn dot_nibbles(acc: __m512i, w: __m512i, x: *const i8) -> __m512i {
        unsafe {
            // Two products of a nibble and a code are at most 2 * 15 * 127 apart from zero: nothing saturates.
            let pairs = _mm512_maddubs_epi16(w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()));
            _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
);
