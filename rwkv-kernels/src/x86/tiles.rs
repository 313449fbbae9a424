//! Products with row tiles: `T` tiles by `C` rows of activations at a time, in registers.

#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::hint::black_box;
use std::mem::MaybeUninit;

use crate::activations::Activations;
use crate::codec::{Codec, GROUP, TILE_ROWS};
use crate::tiles::{I8_SCALE_BYTES, ROW_HALVES, RowTiles, U4_GROUP_BYTES, U8_GROUP_BYTES};
use crate::x86::tile_ops::{Ahead, Avx2, Avx512, Avx512Vnni, TileOps, on};

/// # Safety
/// AVX2, FMA and F16C exist; `x` has the forms and the width of `w`, and `y` is `[x.rows(), w.rows()]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn avx2(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx2>::new(w, x, y).run::<1, 8>() }
}

/// # Safety
/// AVX-512 F, BW, DQ and VL exist; sizes as for [`avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(crate) unsafe fn avx512(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx512>::new(w, x, y).run::<2, 8>() }
}

/// # Safety
/// AVX-512 F, BW, DQ, VL and VNNI exist; sizes as for [`avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn avx512_vnni(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx512Vnni>::new(w, x, y).run::<2, 8>() }
}

/// 16 weights of a dense codec.
#[inline(always)]
unsafe fn load_dense<O: TileOps>(codec: Codec, p: *const u8) -> O::F {
    // SAFETY: the caller's pointer has 16 weights.
    unsafe {
        match codec {
            Codec::F16 => O::load_f16(p),
            Codec::Bf16 => O::load_bf16(p),
            _ => O::load_f32(p),
        }
    }
}

/// Where `C` rows of `width` elements begin.
#[inline(always)]
unsafe fn row_pointers<E, const C: usize>(x: &[E], row: usize, width: usize) -> [*const E; C] {
    let mut rows = [x.as_ptr(); C];
    for c in 0..C {
        // SAFETY: the caller's rows exist.
        rows[c] = unsafe { rows[c].add((row + c) * width) };
    }
    rows
}

struct Product<'a, O: TileOps> {
    w: RowTiles<'a>,
    x: &'a Activations,
    y: &'a mut [f32],
    /// The codes of the rows of a block, group by group, if the operations want them [widened](TileOps::WIDENS).
    codes: Vec<O::Group>,
    /// Lines of a group of 64 codes, see [`Ahead`].
    lines: usize,
}

/// One block of the product: tiles from `tile`, rows of activations from `row`.
#[derive(Clone, Copy)]
struct Block {
    tile: usize,
    row: usize,
}

impl<'a, O: TileOps> Product<'a, O> {
    fn new(w: RowTiles<'a>, x: &'a Activations, y: &'a mut [f32]) -> Self {
        Product { w, x, y, codes: Vec::new(), lines: black_box(GROUP * TILE_ROWS / 64) }
    }

    /// All tiles and rows, in blocks of `T` by `C` and smaller ones for what is left.
    ///
    /// A few rows stay in the nearest cache while all tiles pass by, then the next rows follow.
    #[inline(always)]
    unsafe fn run<const T: usize, const C: usize>(mut self) {
        let rows = self.x.rows();
        let mut row = 0;
        // SAFETY: the blocks cover rows that exist.
        unsafe {
            while row + C <= rows {
                self.tiles::<T, C>(row);
                row += C;
            }
            if C > 4 && row + 4 <= rows {
                self.tiles::<T, 4>(row);
                row += 4;
            }
            if C > 2 && row + 2 <= rows {
                self.tiles::<T, 2>(row);
                row += 2;
            }
            if C > 1 && row < rows {
                // One row is bound by memory: more tiles give more independent chains, and the sums need few registers.
                self.tiles::<4, 1>(row);
            }
        }
    }

    /// All tiles for `C` rows.
    #[inline(always)]
    unsafe fn tiles<const T: usize, const C: usize>(&mut self, row: usize) {
        // SAFETY: as in `run`; the blocks cover tiles that exist.
        unsafe {
            self.widen_codes::<C>(row);
            let mut tile = 0;
            while tile + T <= self.w.tiles() {
                self.block_of::<T, C>(Block { tile, row });
                tile += T;
            }
            if T > 1 {
                while tile < self.w.tiles() {
                    self.block_of::<1, C>(Block { tile, row });
                    tile += 1;
                }
            }
        }
    }

    /// The codes that this matrix is multiplied with, `[rows, padded]`.
    fn all_codes(&self) -> &'a [i8] {
        if self.w.codec() == Codec::I8 { self.x.row_codes() } else { self.x.codes() }
    }

    /// Leaves the codes of `C` rows in `codes`, if they are to be widened: group `g` of row `c` at `g * C + c`.
    #[inline(always)]
    unsafe fn widen_codes<const C: usize>(&mut self, row: usize) {
        if !O::WIDENS || !matches!(self.w.codec(), Codec::U8 | Codec::I8) {
            return;
        }
        let groups = self.x.padded() / GROUP;
        self.codes.clear();
        self.codes.reserve(groups * C);
        // SAFETY: the caller's rows exist, and each has `groups` groups of 64 codes.
        unsafe {
            let rows = row_pointers::<_, C>(self.all_codes(), row, self.x.padded());
            for g in 0..groups {
                for codes in rows {
                    self.codes.push(O::group(codes.add(g * GROUP)));
                }
            }
        }
    }

    /// The first group of each of `C` rows, and how many groups lie between one of a row and its next.
    #[inline(always)]
    unsafe fn groups_of<const C: usize>(&self, row: usize) -> ([*const O::Group; C], usize) {
        let mut groups = [self.codes.as_ptr(); C];
        // SAFETY: the caller's rows exist, or `widen_codes` left them; where codes are not widened, a group is 64 of them.
        unsafe {
            let rows = row_pointers::<_, C>(self.all_codes(), row, self.x.padded());
            for c in 0..C {
                groups[c] = if O::WIDENS { groups[c].add(c) } else { rows[c].cast() };
            }
        }
        // For all that the compiler knows, nothing ties one pointer to another: it would compute each from the last, in the inner loop.
        (black_box(groups), if O::WIDENS { C } else { 1 })
    }

    /// The first rows wait for memory; those after them find the tiles in a cache. What is left of few rows has no kernel of its own
    /// for that.
    #[inline(always)]
    unsafe fn block_of<const T: usize, const C: usize>(&mut self, at: Block) {
        // SAFETY: handed on.
        unsafe {
            if C <= 4 || at.row == 0 {
                self.block::<T, C, true>(at);
            } else {
                self.block::<T, C, false>(at);
            }
        }
    }

    #[inline(always)]
    unsafe fn block<const T: usize, const C: usize, const MEMORY: bool>(&mut self, at: Block) {
        // SAFETY: as in `run`.
        unsafe {
            match self.w.codec() {
                Codec::F32 => self.dense_block::<T, C, MEMORY>(Codec::F32, at),
                Codec::F16 => self.dense_block::<T, C, MEMORY>(Codec::F16, at),
                Codec::Bf16 => self.dense_block::<T, C, MEMORY>(Codec::Bf16, at),
                Codec::U8 => {
                    let sums = self.groups_u8::<T, C, MEMORY>(at);
                    self.store(at, sums);
                }
                Codec::U4 => {
                    let sums = self.groups_u4::<T, C, MEMORY>(at);
                    self.store(at, sums);
                }
                Codec::I8 => {
                    let sums = self.rows_i8::<T, C, MEMORY>(at);
                    self.store(at, sums);
                }
            }
        }
    }

    /// All sums of a block in registers, or half of them at a time if they would not fit.
    #[inline(always)]
    unsafe fn dense_block<const T: usize, const C: usize, const MEMORY: bool>(
        &mut self,
        codec: Codec,
        at: Block,
    ) {
        // SAFETY: as in `run`.
        unsafe {
            if T * C > O::SUMS && C == 8 {
                for row in [at.row, at.row + 4] {
                    let sums = self.floats::<T, 4, MEMORY>(codec, Block { row, ..at });
                    self.store(Block { row, ..at }, sums);
                }
            } else {
                let sums = self.floats::<T, C, MEMORY>(codec, at);
                self.store(at, sums);
            }
        }
    }

    /// `acc = fma(w[k], x[k], acc)`, `k` ascending.
    #[inline(always)]
    unsafe fn floats<const T: usize, const C: usize, const MEMORY: bool>(
        &self,
        codec: Codec,
        at: Block,
    ) -> [[O::F; C]; T] {
        let step = if codec == Codec::F32 { 4 * TILE_ROWS } else { ROW_HALVES };
        // SAFETY: each tile has `cols` times `step` bytes, each row of the dense form at least `cols` elements.
        unsafe {
            let w = self.tile_pointers::<T>(at.tile);
            let x = row_pointers::<_, C>(self.x.dense(), at.row, self.x.padded());
            let mut acc = [[O::zero(); C]; T];
            for k in 0..self.w.cols() {
                let ahead = self.ahead::<T>(k * step);
                let w = on(w, k * step);
                if MEMORY && (step == 64 || k % 2 == 0) {
                    ahead.prefetch(w);
                }
                let mut weights = [O::zero(); T];
                for t in 0..T {
                    weights[t] = load_dense::<O>(codec, w[t]);
                }
                for c in 0..C {
                    let x = O::splat(*x[c].add(k));
                    for t in 0..T {
                        acc[t][c] = O::fma(weights[t], x, acc[t][c]);
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn groups_u8<const T: usize, const C: usize, const MEMORY: bool>(
        &self,
        at: Block,
    ) -> [[O::F; C]; T] {
        // SAFETY: each tile has `groups` groups of the codec's size, each row of codes `groups` times 64.
        unsafe {
            let groups = self.x.padded() / GROUP;
            let w = self.tile_pointers::<T>(at.tile);
            let (x, step) = self.groups_of::<C>(at.row);
            let scales = row_pointers::<_, C>(self.x.scales(), at.row, groups);
            let sums = row_pointers::<_, C>(self.x.sums(), at.row, groups);
            let mut acc = [[O::zero(); C]; T];
            for g in 0..groups {
                let ahead = self.ahead::<T>(g * U8_GROUP_BYTES);
                let w = on(w, g * U8_GROUP_BYTES);
                if MEMORY {
                    ahead.prefetch(w);
                } else {
                    self.prefetch_next(w, at.row / C);
                }
                let codes = on(w, 2 * ROW_HALVES);
                let d = O::dots_u8::<T, C, MEMORY>(codes, on(x, g * step), ahead);
                let mut scale = [O::zero(); T];
                let mut min = [O::zero(); T];
                for t in 0..T {
                    scale[t] = O::load_f16(w[t]);
                    min[t] = O::load_f16(w[t].add(ROW_HALVES));
                }
                for c in 0..C {
                    let (x_scale, x_sum) = (O::splat(*scales[c].add(g)), O::splat(*sums[c].add(g)));
                    for t in 0..T {
                        let dotted = O::fma(O::to_f32(d[t][c]), O::mul(scale[t], x_scale), acc[t][c]);
                        acc[t][c] = O::fma(x_sum, min[t], dotted);
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn groups_u4<const T: usize, const C: usize, const MEMORY: bool>(
        &self,
        at: Block,
    ) -> [[O::F; C]; T] {
        // SAFETY: as in `groups_u8`.
        unsafe {
            let groups = self.x.padded() / GROUP;
            let w = self.tile_pointers::<T>(at.tile);
            let x = row_pointers::<_, C>(self.x.codes(), at.row, self.x.padded());
            let scales = row_pointers::<_, C>(self.x.scales(), at.row, groups);
            let sums = row_pointers::<_, C>(self.x.half_sums(), at.row, 2 * groups);
            let mut acc = [[O::zero(); C]; T];
            for g in 0..groups {
                let ahead = self.ahead::<T>(g * U4_GROUP_BYTES);
                let w = on(w, g * U4_GROUP_BYTES);
                for half in 0..2 {
                    if MEMORY {
                        ahead.prefetch(on(w, 64 * half));
                    }
                    let codes = on(w, 4 * ROW_HALVES + 4 * half * 64);
                    let d = O::dots_u4::<T, C, MEMORY>(codes, on(x, g * GROUP + half * GROUP / 2), ahead);
                    for t in 0..T {
                        let pair = w[t].add(2 * half * ROW_HALVES);
                        let (scale, min) = (O::load_f16(pair), O::load_f16(pair.add(ROW_HALVES)));
                        for c in 0..C {
                            let s = O::mul(scale, O::splat(*scales[c].add(g)));
                            let dotted = O::fma(O::to_f32(d[t][c]), s, acc[t][c]);
                            acc[t][c] = O::fma(O::splat(*sums[c].add(2 * g + half)), min, dotted);
                        }
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn rows_i8<const T: usize, const C: usize, const MEMORY: bool>(
        &self,
        at: Block,
    ) -> [[O::F; C]; T] {
        // SAFETY: each tile has its scales and `padded` codes per row, as many as a row of activations.
        unsafe {
            let w = self.tile_pointers::<T>(at.tile);
            let (x, step) = self.groups_of::<C>(at.row);
            let mut d = [[O::izero(); C]; T];
            for g in 0..self.x.padded() / GROUP {
                let codes = on(w, I8_SCALE_BYTES + g * GROUP * TILE_ROWS);
                let ahead = self.ahead::<T>(g * GROUP * TILE_ROWS);
                let group = O::dots_u8::<T, C, MEMORY>(codes, on(x, g * step), ahead);
                for t in 0..T {
                    for c in 0..C {
                        d[t][c] = O::iadd(d[t][c], group[t][c]);
                    }
                }
            }
            let mut acc = [[O::zero(); C]; T];
            for t in 0..T {
                let scale = O::load_f32(w[t]);
                for c in 0..C {
                    // The codes are stored with a bias of 128: Σ(q - 128)x = Σqx - 128 Σx, exactly.
                    let bias = O::isplat(128 * self.x.row_sums()[at.row + c]);
                    let d = O::to_f32(O::isub(d[t][c], bias));
                    acc[t][c] = O::mul(d, O::mul(scale, O::splat(self.x.row_scales()[at.row + c])));
                }
            }
            acc
        }
    }

    /// Prefetches a line of the group at `w`, but of the tiles that follow this matrix in memory: a thread's next call is for them.
    /// Each block of rows prefetches another line, until the group is complete.
    #[inline(always)]
    unsafe fn prefetch_next<const T: usize>(&self, w: [*const u8; T], block: usize) {
        let ahead = self.w.bytes().len() + block % (U8_GROUP_BYTES / 64) * 64;
        for w in w {
            // SAFETY: a prefetch does not fault, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(ahead).cast()) };
        }
    }

    /// What is prefetched at a place of `T` tiles.
    #[inline(always)]
    fn ahead<const T: usize>(&self, at: usize) -> Ahead {
        Ahead::new::<T>(at, self.w.tile_bytes(), self.lines)
    }

    /// Where `T` tiles begin.
    #[inline(always)]
    unsafe fn tile_pointers<const T: usize>(&self, tile: usize) -> [*const u8; T] {
        debug_assert!(tile + T <= self.w.tiles());
        let mut tiles = [self.w.bytes().as_ptr(); T];
        for t in 0..T {
            // SAFETY: the caller's tiles exist.
            tiles[t] = unsafe { tiles[t].add((tile + t) * self.w.tile_bytes()) };
        }
        tiles
    }

    /// Writes the outputs of a block, but not the padding of the last tile.
    #[inline(always)]
    unsafe fn store<const T: usize, const C: usize>(&mut self, block: Block, sums: [[O::F; C]; T]) {
        for t in 0..T {
            let first = (block.tile + t) * TILE_ROWS;
            let count = (self.w.rows() - first).min(TILE_ROWS);
            for c in 0..C {
                let at = (block.row + c) * self.w.rows() + first;
                // SAFETY: `y` is `[x.rows(), w.rows()]`, so `count` outputs exist from `at` on.
                unsafe {
                    if count == TILE_ROWS {
                        O::store(self.y.as_mut_ptr().add(at), sums[t][c]);
                    } else {
                        let mut tail = MaybeUninit::<[f32; TILE_ROWS]>::uninit();
                        O::store(tail.as_mut_ptr().cast(), sums[t][c]);
                        self.y[at..at + count].copy_from_slice(&tail.assume_init()[..count]);
                    }
                }
            }
        }
    }
}
