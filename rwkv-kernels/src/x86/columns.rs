//! Products with columns: the columns of zero activations are not read.
//!
//! A few rows take their active columns several at a time over accumulators in the first-level cache (`few`). Many rows
//! share the work of widening: a block of columns, 64 outputs wide, is widened once and added to every row where it is active (`many`).

#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use crate::codec::{Codec, GROUP};
use crate::columns::{Columns, code_bytes};
use crate::sparse::{BLOCK, SparseRows};
use crate::x86::tile_ops::{Avx2, Avx512Vnni, TileOps};

/// Outputs of a span: its accumulators stay in the first-level cache.
const SPAN: usize = 1024;
/// Active columns of a pass over the accumulators.
const PASS: usize = 4;
/// How many active columns ahead are prefetched: hardware cannot guess them.
const AHEAD: usize = 2 * PASS;
/// Up to this many rows, reading a column again for each row is cheaper than widening it for all.
const FEW: usize = 4;

/// # Safety
/// AVX2, FMA and F16C exist; `outs` lies in `w` and starts at a multiple of 64; `x` has the width of `w`, and
/// `y` is `[x.rows(), outs.len()]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn avx2(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { matmul::<Avx2>(w, outs, x, y) }
}

/// # Safety
/// AVX-512 F, BW, DQ and VL exist; sizes as for [`avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(crate) unsafe fn avx512(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    // SAFETY: handed on. No dot product is used, so the VNNI operations never run.
    unsafe { matmul::<Avx512Vnni>(w, outs, x, y) }
}

#[inline(always)]
unsafe fn matmul<O: TileOps>(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe {
        if x.rows() <= FEW {
            for (t, y) in y.chunks_exact_mut(outs.len()).enumerate() {
                for (i, y) in y.chunks_mut(SPAN).enumerate() {
                    few::<O>(&w, outs.start + i * SPAN, x.row(t), y);
                }
            }
        } else {
            many::<O>(&w, outs, x, y);
        }
    }
}

/// Where the parts of a column lie.
#[derive(Clone, Copy)]
struct Parts {
    base: *const u8,
    stride: usize,
    pairs: usize,
    /// Bytes of 64 outputs' weights or codes.
    bytes_per_64: usize,
}

impl Parts {
    #[inline(always)]
    fn new(w: &Columns<'_>) -> Parts {
        Parts {
            base: w.bytes().as_ptr(),
            stride: w.column_bytes(),
            pairs: code_bytes(w.codec(), w.rows()),
            bytes_per_64: code_bytes(w.codec(), GROUP),
        }
    }
}

/// 64 weights or codes of a column as four times 16 numbers.
#[inline(always)]
unsafe fn load_64<O: TileOps>(codec: Codec, p: *const u8) -> [O::F; 4] {
    // SAFETY: the caller's pointer has 64 outputs of this codec.
    unsafe {
        match codec {
            Codec::F32 => {
                [O::load_f32(p), O::load_f32(p.add(64)), O::load_f32(p.add(128)), O::load_f32(p.add(192))]
            }
            Codec::F16 => {
                [O::load_f16(p), O::load_f16(p.add(32)), O::load_f16(p.add(64)), O::load_f16(p.add(96))]
            }
            Codec::Bf16 => {
                [O::load_bf16(p), O::load_bf16(p.add(32)), O::load_bf16(p.add(64)), O::load_bf16(p.add(96))]
            }
            Codec::U8 | Codec::I8 => {
                [O::load_u8(p), O::load_u8(p.add(16)), O::load_u8(p.add(32)), O::load_u8(p.add(48))]
            }
            Codec::U4 => {
                let ((a, c), (b, d)) = (O::load_u4(p), O::load_u4(p.add(16)));
                [a, b, c, d]
            }
        }
    }
}

/// `[scale, min]` pairs as f32, at most eight at a time: the bytes after the last pair may not exist.
#[inline(always)]
unsafe fn load_pairs<O: TileOps>(p: *const u8, pairs: usize) -> O::F {
    // SAFETY: `pairs` pairs of two f16 are readable at `p`; a full load reads eight.
    unsafe {
        if pairs >= 8 {
            return O::load_f16(p);
        }
        let mut bytes = [0u8; 32];
        std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), 4 * pairs);
        O::load_f16(bytes.as_ptr())
    }
}

/// One row of activations and at most [`SPAN`] outputs from `first`.
#[inline(always)]
unsafe fn few<O: TileOps>(w: &Columns<'_>, first: usize, active: (&[u32], &[f32]), y: &mut [f32]) {
    // SAFETY: outputs `first..first + y.len()`, rounded up to whole groups, exist in every column, and every index is a column.
    unsafe {
        match w.codec() {
            Codec::F32 => few_of::<O, 0>(Codec::F32, w, first, active, y),
            Codec::F16 => few_of::<O, 0>(Codec::F16, w, first, active, y),
            Codec::Bf16 => few_of::<O, 0>(Codec::Bf16, w, first, active, y),
            Codec::U8 | Codec::I8 => few_of::<O, 1>(Codec::U8, w, first, active, y),
            Codec::U4 => few_of::<O, 2>(Codec::U4, w, first, active, y),
        }
    }
}

/// [`few`] for a codec with `P` pairs for 64 outputs.
#[inline(always)]
unsafe fn few_of<O: TileOps, const P: usize>(
    codec: Codec,
    w: &Columns<'_>,
    first: usize,
    (indices, values): (&[u32], &[f32]),
    y: &mut [f32],
) {
    let parts = Parts::new(w);
    let groups = y.len().div_ceil(GROUP);
    let mut acc = Aligned([0.0f32; SPAN]);
    // Interleaved as the pairs are: the even places (scales) are not used.
    let mut offsets = Aligned([0.0f32; 4 * SPAN / GROUP]);
    let mut scales = [Aligned([0.0f32; 4 * SPAN / GROUP]); PASS];
    let codes_at = first / GROUP * parts.bytes_per_64;
    let pairs_at = parts.pairs + first / GROUP * 4 * P;
    let mut at = 0;
    // SAFETY: as in `few`.
    unsafe {
        while at < indices.len() {
            let end = indices.len().min(at + PASS);
            for &k in &indices[indices.len().min(at + AHEAD)..indices.len().min(at + AHEAD + PASS)] {
                let column = parts.base.add(k as usize * parts.stride);
                for line in (0..groups * parts.bytes_per_64).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(column.add(codes_at + line).cast());
                }
                if P > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(column.add(pairs_at).cast());
                }
            }
            let mut columns = [parts.base; PASS];
            for (j, (&k, &x)) in indices[at..end].iter().zip(&values[at..end]).enumerate() {
                columns[j] = parts.base.add(k as usize * parts.stride);
                let x = O::splat(x);
                for i in (0..groups * P).step_by(8) {
                    let pairs = load_pairs::<O>(columns[j].add(pairs_at + 4 * i), groups * P - i);
                    O::store(scales[j].0.as_mut_ptr().add(2 * i), O::mul(pairs, x));
                    let offset = offsets.0.as_mut_ptr().add(2 * i);
                    O::store(offset, O::fma(pairs, x, O::load(offset)));
                }
            }
            let columns = columns.map(|column| column.add(codes_at));
            let values = &values[at..end];
            match end - at {
                4 => pass::<O, P, 4>(codec, &columns, values, &scales, &mut acc.0[..groups * GROUP]),
                3 => pass::<O, P, 3>(codec, &columns, values, &scales, &mut acc.0[..groups * GROUP]),
                2 => pass::<O, P, 2>(codec, &columns, values, &scales, &mut acc.0[..groups * GROUP]),
                _ => pass::<O, P, 1>(codec, &columns, values, &scales, &mut acc.0[..groups * GROUP]),
            }
            at = end;
        }
    }
    finish::<P>(&acc.0, y, |g, p| offsets.0[2 * (g * P + p) + 1]);
}

/// Adds `J` columns to the accumulators.
#[inline(always)]
unsafe fn pass<O: TileOps, const P: usize, const J: usize>(
    codec: Codec,
    columns: &[*const u8; PASS],
    values: &[f32],
    scales: &[Aligned<{ 4 * SPAN / GROUP }>; PASS],
    acc: &mut [f32],
) {
    let step = code_bytes(codec, GROUP);
    // SAFETY: as in `few`; `acc` is a whole number of groups.
    unsafe {
        for g in 0..acc.len() / GROUP {
            let a = acc.as_mut_ptr().add(g * GROUP);
            let mut v: [O::F; 4] = [O::load(a), O::load(a.add(16)), O::load(a.add(32)), O::load(a.add(48))];
            for j in 0..J {
                let q = load_64::<O>(codec, columns[j].add(g * step));
                let s = match P {
                    0 => [O::splat(values[j]); 2],
                    1 => [O::splat(scales[j].0[2 * g]); 2],
                    _ => [O::splat(scales[j].0[4 * g]), O::splat(scales[j].0[4 * g + 2])],
                };
                for i in 0..4 {
                    v[i] = O::fma(q[i], s[i / 2], v[i]);
                }
            }
            for (i, v) in v.into_iter().enumerate() {
                O::store(a.add(16 * i), v);
            }
        }
    }
}

/// `y = acc + off`; `off(g, p)` is the offset of half `p` (or all, with one pair) of the 64 outputs of group `g`.
#[inline(always)]
fn finish<const P: usize>(acc: &[f32], y: &mut [f32], off: impl Fn(usize, usize) -> f32) {
    for (g, (y, acc)) in y.chunks_mut(GROUP).zip(acc.chunks(GROUP)).enumerate() {
        for (i, (y, acc)) in y.iter_mut().zip(acc).enumerate() {
            *y = match P {
                0 => *acc,
                1 => acc + off(g, 0),
                _ => acc + off(g, i / 32),
            };
        }
    }
}

/// All rows of activations, 64 outputs and a block of inputs at a time.
#[inline(always)]
unsafe fn many<O: TileOps>(w: &Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    // SAFETY: as in `matmul`.
    unsafe {
        match w.codec() {
            Codec::F32 => many_of::<O, 0>(Codec::F32, w, outs, x, y),
            Codec::F16 => many_of::<O, 0>(Codec::F16, w, outs, x, y),
            Codec::Bf16 => many_of::<O, 0>(Codec::Bf16, w, outs, x, y),
            Codec::U8 | Codec::I8 => many_of::<O, 1>(Codec::U8, w, outs, x, y),
            Codec::U4 => many_of::<O, 2>(Codec::U4, w, outs, x, y),
        }
    }
}

/// [`many`] for a codec with `P` pairs for 64 outputs.
#[inline(always)]
unsafe fn many_of<O: TileOps, const P: usize>(
    codec: Codec,
    w: &Columns<'_>,
    outs: Range<usize>,
    x: &SparseRows,
    y: &mut [f32],
) {
    let parts = Parts::new(w);
    let rows = x.rows();
    let mut acc = vec![0.0f32; rows * GROUP];
    let mut offsets = vec![[0.0f32; 2]; rows];
    let mut wide = vec![0.0f32; BLOCK * GROUP];
    let mut pairs = [[0.0f32; 4]; BLOCK];
    let mut list = Vec::with_capacity(BLOCK);
    for g in 0..outs.len().div_ceil(GROUP) {
        let first = outs.start / GROUP + g;
        acc.fill(0.0);
        offsets.fill([0.0; 2]);
        for b in 0..x.blocks() {
            active_columns(x, b, &mut list);
            // SAFETY: as in `matmul`; indices of block `b` lie in its `BLOCK` inputs, so `k % BLOCK` finds each its own place.
            unsafe {
                for &k in &list {
                    let column = parts.base.add(k as usize * parts.stride);
                    let values = load_64::<O>(codec, column.add(first * parts.bytes_per_64));
                    let slot = k as usize % BLOCK;
                    for (i, v) in values.into_iter().enumerate() {
                        O::store(wide.as_mut_ptr().add(slot * GROUP + 16 * i), v);
                    }
                    for p in 0..P {
                        let pair = column.add(parts.pairs + (first * P + p) * 4);
                        pairs[slot][2 * p] = half(pair);
                        pairs[slot][2 * p + 1] = half(pair.add(2));
                    }
                }
                for t in 0..rows {
                    let (indices, values) = x.block(t, b);
                    let a = acc.as_mut_ptr().add(t * GROUP);
                    let mut v = [O::load(a), O::load(a.add(16)), O::load(a.add(32)), O::load(a.add(48))];
                    let mut off = offsets[t];
                    for (&k, &x) in indices.iter().zip(values) {
                        let slot = k as usize % BLOCK;
                        let q = wide.as_ptr().add(slot * GROUP);
                        let pair = pairs.get_unchecked(slot);
                        let s = match P {
                            0 => [O::splat(x); 2],
                            1 => [O::splat(pair[0] * x); 2],
                            _ => [O::splat(pair[0] * x), O::splat(pair[2] * x)],
                        };
                        for p in 0..P {
                            off[p] = pair[2 * p + 1].mul_add(x, off[p]);
                        }
                        for (i, v) in v.iter_mut().enumerate() {
                            *v = O::fma(O::load(q.add(16 * i)), s[i / 2], *v);
                        }
                    }
                    offsets[t] = off;
                    for (i, v) in v.into_iter().enumerate() {
                        O::store(a.add(16 * i), v);
                    }
                }
            }
        }
        let len = outs.len();
        let part = g * GROUP..len.min((g + 1) * GROUP);
        for (t, acc) in acc.chunks_exact(GROUP).enumerate() {
            finish::<P>(acc, &mut y[t * len..][part.clone()], |_, p| offsets[t][p]);
        }
    }
}

/// The inputs of block `b` that are active in any row, each once.
fn active_columns(x: &SparseRows, b: usize, list: &mut Vec<u32>) {
    const { assert!(BLOCK == 128, "one bit per input") };
    let mut seen = 0u128;
    for t in 0..x.rows() {
        for k in x.block(t, b).0 {
            seen |= 1 << (k % BLOCK as u32);
        }
    }
    list.clear();
    while seen != 0 {
        list.push((b * BLOCK) as u32 + seen.trailing_zeros());
        seen &= seen - 1;
    }
}

/// One f16 as f32.
#[inline(always)]
unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: two bytes are readable; F16C exists with every instruction set of this file.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        std::arch::x86_64::_mm_cvtss_f32(std::arch::x86_64::_mm_cvtph_ps(
            std::arch::x86_64::_mm_cvtsi32_si128(bits),
        ))
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned<const N: usize>([f32; N]);
