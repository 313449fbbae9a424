//! Products with columns: the columns of zero activations are not read.
//!
//! A few rows take their active columns several at a time over accumulators in the first-level cache (`few`). Many rows
//! share the work of widening: a block of columns, 64 outputs wide, is widened once and added to every row where it is active (`many`).

#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use std::arch::x86_64::{
    _MM_HINT_T0, _MM_HINT_T1, _mm_cvtph_ps, _mm_cvtsi64_si128, _mm_prefetch, _mm_storeu_ps,
};
use std::ops::Range;

use crate::codec::{Codec, GROUP};
use crate::columns::{Columns, FEW, code_bytes};
use crate::sparse::{BLOCK, RowEntries, SparseRows};
use crate::x86::sparse::ones;
use crate::x86::tile_ops::{Avx2, Avx512Vnni, TileOps};

/// Outputs of a span: its accumulators stay in the first-level cache.
const SPAN: usize = 2048;
/// Active columns of a pass over the accumulators.
const PASS: usize = 8;
/// How many active columns ahead are prefetched: hardware cannot guess them.
const AHEAD: usize = 2 * PASS;

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
            let mut active = Vec::with_capacity(x.cols());
            for (t, y) in y.chunks_exact_mut(outs.len()).enumerate() {
                active.clear();
                active.extend(x.row(t));
                for (i, y) in y.chunks_mut(SPAN).enumerate() {
                    few::<O>(&w, outs.start + i * SPAN, &active, y);
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

/// Columns that are to be prefetched, one `stride` after another: the codes of some outputs, and their pairs.
struct Coming {
    column: *const u8,
    columns: usize,
    codes: [usize; 2],
    pairs: [usize; 2],
    stride: usize,
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

    /// `groups` groups of 64 outputs from `first` on, of the columns from `column` on.
    #[inline(always)]
    fn coming<const P: usize>(&self, w: &Columns<'_>, column: usize, first: usize, groups: usize) -> Coming {
        let range = |at, each| [at + first * each, at + (first + groups) * each];
        Coming {
            column: self.base.wrapping_add(column * self.stride),
            columns: w.cols().saturating_sub(column).min(BLOCK),
            codes: range(0, self.bytes_per_64),
            pairs: range(self.pairs, 4 * P),
            stride: self.stride,
        }
    }
}

impl Coming {
    /// Prefetches the first `count` columns, and leaves the others.
    #[inline(always)]
    fn prefetch(&mut self, count: usize) {
        for _ in 0..count.min(self.columns) {
            for [first, end] in [self.codes, self.pairs] {
                for line in (first..end).step_by(64) {
                    // SAFETY: a prefetch does not fault, wherever it points.
                    unsafe { _mm_prefetch::<_MM_HINT_T1>(self.column.wrapping_add(line).cast()) };
                }
            }
            self.column = self.column.wrapping_add(self.stride);
            self.columns -= 1;
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
unsafe fn few<O: TileOps>(w: &Columns<'_>, first: usize, active: &[(usize, f32)], y: &mut [f32]) {
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
    active: &[(usize, f32)],
    y: &mut [f32],
) {
    let parts = Parts::new(w);
    let groups = y.len().div_ceil(GROUP);
    let mut acc = Aligned([0.0f32; SPAN]);
    let mut pairs = [Aligned([0.0f32; 4 * SPAN / GROUP]); PASS];
    let codes_at = first / GROUP * parts.bytes_per_64;
    let pairs_at = parts.pairs + first / GROUP * 4 * P;
    let mut at = 0;
    // SAFETY: as in `few`.
    unsafe {
        while at < active.len() {
            let left = active.len() - at;
            let end = at + if left < PASS { 1 << left.ilog2() } else { PASS };
            let mut ahead = [parts.base; PASS];
            let coming = active.get(at + AHEAD..).unwrap_or_default();
            for (ahead, &(k, _)) in ahead.iter_mut().zip(coming) {
                let column = parts.base.add(k * parts.stride);
                *ahead = column.add(codes_at);
                for line in (0..groups * 4 * P).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(column.add(pairs_at).wrapping_add(line).cast());
                }
            }
            let mut columns = [parts.base; PASS];
            let mut values = [0.0; PASS];
            for (j, &(k, x)) in active[at..end].iter().enumerate() {
                let column = parts.base.add(k * parts.stride);
                columns[j] = column.add(codes_at);
                values[j] = x;
                for i in (0..groups * P).step_by(8) {
                    let some = load_pairs::<O>(column.add(pairs_at + 4 * i), groups * P - i);
                    O::store(pairs[j].0.as_mut_ptr().add(2 * i), some);
                }
            }
            let acc = &mut acc.0[..groups * GROUP];
            match end - at {
                PASS => pass::<O, P, PASS>(codec, &columns, &ahead, &values, &pairs, acc),
                4 => pass::<O, P, 4>(codec, &columns, &ahead, &values, &pairs, acc),
                2 => pass::<O, P, 2>(codec, &columns, &ahead, &values, &pairs, acc),
                _ => pass::<O, P, 1>(codec, &columns, &ahead, &values, &pairs, acc),
            }
            at = end;
        }
    }
    y.copy_from_slice(&acc.0[..y.len()]);
}

/// Adds `J` columns to the accumulators, and prefetches as much of the columns `ahead`, in step with the lines that it uses:
/// many prefetches at once would fill the queue of misses, and loads would wait behind them. They go to the second-level
/// cache, which has room for `AHEAD` columns beside the accumulators and can wait for more lines at a time.
#[inline(always)]
unsafe fn pass<O: TileOps, const P: usize, const J: usize>(
    codec: Codec,
    columns: &[*const u8; PASS],
    ahead: &[*const u8; PASS],
    values: &[f32; PASS],
    pairs: &[Aligned<{ 4 * SPAN / GROUP }>; PASS],
    acc: &mut [f32],
) {
    let step = code_bytes(codec, GROUP);
    // SAFETY: as in `few`; `acc` is a whole number of groups.
    unsafe {
        for g in 0..acc.len() / GROUP {
            let a = acc.as_mut_ptr().add(g * GROUP);
            let mut v: [O::F; 4] = [O::load(a), O::load(a.add(16)), O::load(a.add(32)), O::load(a.add(48))];
            for j in 0..J {
                for line in 0..if step < 64 { 1 - g % 2 } else { step / 64 } {
                    _mm_prefetch::<_MM_HINT_T1>(ahead[j].wrapping_add(g * step + 64 * line).cast());
                }
                let w =
                    weights_64::<O, P>(codec, columns[j].add(g * step), pairs[j].0.as_ptr().add(2 * P * g));
                for i in 0..4 {
                    v[i] = O::fma(w[i], O::splat(values[j]), v[i]);
                }
            }
            for (i, v) in v.into_iter().enumerate() {
                O::store(a.add(16 * i), v);
            }
        }
    }
}

/// 64 weights of a column, given its `P` pairs of scale and minimum as f32.
#[inline(always)]
unsafe fn weights_64<O: TileOps, const P: usize>(
    codec: Codec,
    codes: *const u8,
    pairs: *const f32,
) -> [O::F; 4] {
    // SAFETY: the caller's pointers have 64 outputs of this codec and `P` pairs.
    unsafe {
        let mut w = load_64::<O>(codec, codes);
        if P > 0 {
            for (i, w) in w.iter_mut().enumerate() {
                let pair = pairs.add(if P == 2 { i / 2 * 2 } else { 0 });
                *w = O::fma(*w, O::splat(*pair), O::splat(*pair.add(1)));
            }
        }
        w
    }
}

/// All rows of activations, a block of inputs and 64 outputs at a time.
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
    let (rows, len) = (x.rows(), outs.len());
    let first = outs.start / GROUP;
    let groups = len.div_ceil(GROUP);
    let mut acc = vec![Aligned([0.0f32; GROUP]); groups * rows];
    let mut wide = vec![Aligned([0.0f32; GROUP]); BLOCK];
    // A block's entries are used for all groups before the next block's: a cache does not hold all of them.
    for b in 0..x.blocks() {
        let (order, room) = (x.order(b), x.room(b));
        let (sets, singles) = if O::SUMS < 16 { (&[][..], order) } else { order.as_chunks::<2>() };
        // The next block's columns are prefetched a few at a time: many at once would fill the queue of misses, and loads would
        // wait behind them.
        let mut coming = parts.coming::<P>(w, (b + 1) * BLOCK, first, groups);
        let count = BLOCK.div_ceil(groups * (sets.len() + singles.len()));
        for (g, acc) in acc.chunks_exact_mut(rows).enumerate() {
            let column = parts.base.wrapping_add(b * BLOCK * parts.stride);
            let codes = column.wrapping_add((first + g) * parts.bytes_per_64);
            let pairs = column.wrapping_add(parts.pairs + (first + g) * 4 * P);
            // SAFETY: as in `matmul`; active inputs are columns, and the order has each row of `acc` once.
            unsafe {
                for slot in ones(x.active(b)) {
                    let pairs = pairs_of::<P>(pairs.add(slot * parts.stride));
                    let w = weights_64::<O, P>(codec, codes.add(slot * parts.stride), pairs.as_ptr());
                    for (i, w) in w.into_iter().enumerate() {
                        O::store(wide[slot].0.as_mut_ptr().add(16 * i), w);
                    }
                }
                for set in sets {
                    coming.prefetch(count);
                    add_rows::<O, 2>(acc, set, room, &wide);
                }
                for &row in singles {
                    coming.prefetch(count);
                    add_rows::<O, 1>(acc, &[row], room, &wide);
                }
            }
        }
    }
    for (g, acc) in acc.chunks_exact(rows).enumerate() {
        let part = g * GROUP..len.min((g + 1) * GROUP);
        for (t, acc) in acc.iter().enumerate() {
            y[t * len..][part.clone()].copy_from_slice(&acc.0[..part.len()]);
        }
    }
}

/// Adds a block's widened columns to the accumulators of `R` rows: several rows side by side, so that the sums of one need not
/// wait for each other. The last has the most entries, and the others about as many.
#[inline(always)]
unsafe fn add_rows<O: TileOps, const R: usize>(
    acc: &mut [Aligned<GROUP>],
    rows: &[RowEntries; R],
    (places, values): (&[u8], &[f32]),
    wide: &[Aligned<GROUP>],
) {
    debug_assert!(rows.iter().all(|entries| (entries.start + entries.len) as usize <= places.len()));
    // SAFETY: `acc` has the rows, `places` and `values` their entries, and every place is below `BLOCK`, the length of `wide`.
    unsafe {
        let mut v = [[O::zero(); 4]; R];
        let mut entries = [(places.as_ptr(), values.as_ptr()); R];
        for r in 0..R {
            let start = rows[r].start as usize;
            entries[r] = (places.as_ptr().add(start), values.as_ptr().add(start));
            for i in 0..4 {
                v[r][i] = O::load(acc.get_unchecked(rows[r].row as usize).0.as_ptr().add(16 * i));
            }
        }
        let common = rows[0].len as usize;
        for n in 0..common {
            for r in 0..R {
                v[r] = add_entry::<O>(v[r], entries[r], n, wide);
            }
        }
        for r in 0..R {
            for n in common..rows[r].len as usize {
                v[r] = add_entry::<O>(v[r], entries[r], n, wide);
            }
            for i in 0..4 {
                O::store(acc.get_unchecked_mut(rows[r].row as usize).0.as_mut_ptr().add(16 * i), v[r][i]);
            }
        }
    }
}

/// Adds the widened column of entry `n` of a row to its sums.
#[inline(always)]
unsafe fn add_entry<O: TileOps>(
    mut v: [O::F; 4],
    (places, values): (*const u8, *const f32),
    n: usize,
    wide: &[Aligned<GROUP>],
) -> [O::F; 4] {
    // SAFETY: as in `add_rows`; the row has an entry `n`.
    unsafe {
        let w = wide.get_unchecked(usize::from(*places.add(n))).0.as_ptr();
        let x = O::splat(*values.add(n));
        for i in 0..4 {
            v[i] = O::fma(O::load(w.add(16 * i)), x, v[i]);
        }
        v
    }
}

/// `P` pairs of a scale and a minimum as f32.
#[inline(always)]
unsafe fn pairs_of<const P: usize>(p: *const u8) -> [f32; 4] {
    let mut pairs = [0.0; 4];
    // SAFETY: `P` times two f16 are readable; F16C exists with every instruction set of this file.
    unsafe {
        let bits = match P {
            0 => return pairs,
            1 => i64::from(p.cast::<i32>().read_unaligned()),
            _ => p.cast::<i64>().read_unaligned(),
        };
        _mm_storeu_ps(pairs.as_mut_ptr(), _mm_cvtph_ps(_mm_cvtsi64_si128(bits)));
    }
    pairs
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned<const N: usize>([f32; N]);
